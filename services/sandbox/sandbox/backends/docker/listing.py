"""The names in a folder of a container, which the engine has no call for: a shell in it prints them."""

from collections.abc import Awaitable, Callable

from sandbox.rootfs import SHELL
from sandbox.types import Command, ExecOutcome, Termination
from servicekit.errors import FailedPrecondition

_SECONDS = 20.0
_MAX_BYTES = 8 * 1024 * 1024
_SCRIPT = (
    'cd -- "$1" && for n in * .*; do [ -e "$n" ] || [ -L "$n" ] || continue; printf %s/ "$n"; done'
)


async def names_in(
    folder: str, run: Callable[[Command], Awaitable[ExecOutcome]], user: int
) -> list[str]:
    """Return the names in a folder, as whoever `run` runs commands as may see them.

    Raises:
        FailedPrecondition: it cannot be listed.
    """
    command = Command(
        exec_id="",
        argv=(SHELL, "-c", _SCRIPT, "sh", folder),
        working_dir="/",
        timeout_seconds=_SECONDS,
        max_output_bytes=_MAX_BYTES,
    )
    outcome = await run(command)
    ended = outcome.termination is Termination.EXITED and outcome.exit_code == 0
    if not ended or outcome.stdout_truncated:
        raise FailedPrecondition(
            f"{folder}: cannot be listed by user {user} with at most {_MAX_BYTES} bytes of names",
            attributable="workload",
        )
    names = [name for name in outcome.stdout.split(b"/") if name not in (b"", b".", b"..")]
    return [name.decode(errors="surrogateescape") for name in names]
