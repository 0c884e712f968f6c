"""`python`: runs a Python program in the rollout's sandbox."""

from collections.abc import Mapping

from tool_gateway.sandboxes import Command, Sandbox, tell, with_nul
from tool_gateway.tools.base import CallSite, ToolOutput, ToolSpec, one_text_parameter

MAX_CODE = 32_000
"""Characters of a program; as one argument it must stay below 128 KiB."""


class PythonTool:
    """A fresh interpreter per call; files stay, variables do not."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Run in `sandbox`."""
        self._sandbox = sandbox

    @property
    def spec(self) -> ToolSpec:
        """Name, description and schema."""
        return ToolSpec(
            name="python",
            description=(
                "Run a Python program and return what it prints. Each call starts afresh; "
                "files in the working directory stay."
            ),
            parameters=one_text_parameter(
                "code", "The program; print what you want to see.", MAX_CODE
            ),
            side_by_side=False,
        )

    async def run(self, arguments: Mapping[str, object], site: CallSite) -> ToolOutput:
        """Run the program."""
        code = str(arguments["code"])
        if "\0" in code:
            return with_nul("code")
        command = Command(
            rollout_id=site.rollout_id,
            sandbox_id=site.sandbox_id,
            exec_id=site.tool_call_id,
            argv=("python3", "-c", code),
            timeout_seconds=site.timeout_seconds,
        )
        ended = await self._sandbox.exec(command)
        return tell(ended, command, silent="[no output; use print to see a value]")
