"""`calculator`: evaluates one arithmetic expression."""

from collections.abc import Mapping

from tool_gateway.arithmetic import MAX_CHARACTERS, ArithmeticProblem, evaluate, show
from tool_gateway.tools.base import TOOL_ERROR, CallSite, ToolOutput, ToolSpec, one_text_parameter


class Calculator:
    """Exact arithmetic inside this process."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description and schema."""
        return ToolSpec(
            name="calculator",
            description="Evaluate an arithmetic expression and return the result.",
            parameters=one_text_parameter(
                "expression", "The expression, for example (48 + 24) * 3 / 2.", MAX_CHARACTERS
            ),
            side_by_side=True,
        )

    async def run(self, arguments: Mapping[str, object], site: CallSite) -> ToolOutput:
        """Evaluate the expression; a problem with it is text for the model."""
        try:
            return ToolOutput(content=show(evaluate(str(arguments["expression"]))))
        except (ArithmeticProblem, ArithmeticError, ValueError) as problem:
            return ToolOutput(content=f"Error: {problem}", error_kind=TOOL_ERROR)
