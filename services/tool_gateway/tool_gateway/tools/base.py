"""The seam that every tool fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

TOOL_ERROR = "tool_error"
TOOL_TIMEOUT = "tool_timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model is told about a tool, and how it may run."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments object."""
    side_by_side: bool
    """Whether calls of one turn may run at once; otherwise they run in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What the model is told after a call."""

    content: str
    error_kind: str = ""
    """Empty if the call went well, else tool_error or tool_timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where and for how long a call may run."""

    rollout_id: str
    sandbox_id: str
    tool_call_id: str
    timeout_seconds: float


class Tool(Protocol):
    """Something that an agent can call."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description and schema."""
        ...

    async def run(self, arguments: Mapping[str, object], site: CallSite) -> ToolOutput:
        """Run one call; the arguments fit the schema.

        What goes wrong with the call is output; what goes wrong with us is raised.
        """
        ...


def one_text_parameter(name: str, description: str, max_length: int) -> Mapping[str, object]:
    """Return the schema of a tool that takes one text."""
    return {
        "type": "object",
        "properties": {
            name: {
                "type": "string",
                "description": description,
                "minLength": 1,
                "maxLength": max_length,
            }
        },
        "required": [name],
        "additionalProperties": False,
    }
