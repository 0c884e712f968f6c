"""What the model is told about commands, however they end."""

import pytest

from tool_gateway.output import MAX_CONTENT_BYTES, clip
from tool_gateway.sandboxes import Command, Ended, Sandbox, Termination
from tool_gateway.tools.base import CallSite, Tool
from tool_gateway.tools.python import PythonTool
from tool_gateway.tools.shell import ShellTool

SITE = CallSite(rollout_id="r", sandbox_id="sbx_1", tool_call_id="call_1", timeout_seconds=5)


class OneAnswer:
    def __init__(self, ended: Ended) -> None:
        self.ended = ended
        self.commands: list[Command] = []

    async def exec(self, command: Command) -> Ended:
        self.commands.append(command)
        return self.ended


@pytest.mark.parametrize(
    ("make", "arguments", "argv"),
    [
        (PythonTool, {"code": "print(1)"}, ("python3", "-c", "print(1)")),
        (ShellTool, {"command": "ls | wc"}, ("/bin/sh", "-c", "ls | wc")),
    ],
)
async def test_command_runs_once_under_the_calls_id(
    make: type[PythonTool] | type[ShellTool], arguments: dict[str, object], argv: tuple[str, ...]
) -> None:
    sandbox = OneAnswer(Ended(termination=Termination.EXITED, stdout=b"1\n"))
    tool: Tool = make(sandbox)
    assert (await tool.run(arguments, SITE)).content == "1"
    (command,) = sandbox.commands
    assert (command.argv, command.exec_id, command.sandbox_id) == (argv, "call_1", "sbx_1")
    assert command.timeout_seconds == 5


@pytest.mark.parametrize(
    ("ended", "content", "kind"),
    [
        (Ended(termination=Termination.EXITED), "[no output]", ""),
        (Ended(termination=Termination.EXITED, stdout=b"a\n", stderr=b"b\n"), "a\n[stderr]\nb", ""),
        (
            Ended(termination=Termination.EXITED, exit_code=2, stderr=b"bad"),
            "[stderr]\nbad\n[exit code 2]",
            "tool_error",
        ),
        (Ended(termination=Termination.SIGNALED, signal=11), "[ended by signal 11]", "tool_error"),
        (
            Ended(termination=Termination.OOM_KILLED, stdout=b"x"),
            "x\n[ended: out of memory]",
            "tool_error",
        ),
        (
            Ended(termination=Termination.TIMED_OUT, stdout=b"x"),
            "x\n[stopped after 5 s]",
            "tool_timeout",
        ),
        (Ended(termination=Termination.PIDS_LIMIT), "[ended: too many processes]", "tool_error"),
        (Ended(termination=Termination.EXITED, stdout=b"\xff\x00"), "\ufffd\ufffd", ""),
        (
            Ended(termination=Termination.EXITED, stdout=b"x", truncated=True),
            "x\n[part of the output was left out]",
            "",
        ),
    ],
)
async def test_end_of_a_command_is_told(ended: Ended, content: str, kind: str) -> None:
    sandbox: Sandbox = OneAnswer(ended)
    output = await ShellTool(sandbox).run({"command": "x"}, SITE)
    assert (output.content, output.error_kind) == (content, kind)


def test_every_termination_can_be_told() -> None:
    assert {t.value for t in Termination} >= {"exited", "killed", "output_limit"}


@pytest.mark.parametrize("text", ["short", "\u00e9" * MAX_CONTENT_BYTES, "ab\n" * 100_000])
def test_long_output_keeps_head_and_tail_within_the_limit(text: str) -> None:
    clipped = clip(text)
    assert len(clipped.encode()) <= MAX_CONTENT_BYTES
    assert clipped[:5] == text[:5] and clipped[-5:] == text[-5:]
    assert ("left out" in clipped) == (len(text.encode()) > MAX_CONTENT_BYTES)


@pytest.mark.parametrize(("make", "name"), [(PythonTool, "code"), (ShellTool, "command")])
async def test_nul_is_refused_before_a_command_is_made(
    make: type[PythonTool] | type[ShellTool], name: str
) -> None:
    sandbox = OneAnswer(Ended(termination=Termination.EXITED))
    output = await make(sandbox).run({name: "a\0b"}, SITE)
    assert output.error_kind == "tool_error"
    assert output.content.startswith(f"Error: {name} contains a NUL")
    assert sandbox.commands == []
