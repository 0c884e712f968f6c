"""`shell`: runs a shell command in the rollout's sandbox."""

from collections.abc import Mapping

from tool_gateway.sandboxes import Command, Sandbox, tell, with_nul
from tool_gateway.tools.base import CallSite, ToolOutput, ToolSpec, one_text_parameter

MAX_COMMAND = 32_000
"""Characters of a command; as one argument it must stay below 128 KiB."""


class ShellTool:
    """A fresh shell per call; files stay, variables and the working directory do not."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Run in `sandbox`."""
        self._sandbox = sandbox

    @property
    def spec(self) -> ToolSpec:
        """Name, description and schema."""
        return ToolSpec(
            name="shell",
            description=(
                "Run a shell command and return its output. Each call starts a new shell in the "
                "working directory; files stay."
            ),
            parameters=one_text_parameter("command", "The command line for sh.", MAX_COMMAND),
            side_by_side=False,
        )

    async def run(self, arguments: Mapping[str, object], site: CallSite) -> ToolOutput:
        """Run the command."""
        line = str(arguments["command"])
        if "\0" in line:
            return with_nul("command")
        command = Command(
            rollout_id=site.rollout_id,
            sandbox_id=site.sandbox_id,
            exec_id=site.tool_call_id,
            argv=("/bin/sh", "-c", line),
            timeout_seconds=site.timeout_seconds,
        )
        ended = await self._sandbox.exec(command)
        return tell(ended, command, silent="[no output]")
