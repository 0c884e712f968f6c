"""Starts the programs of `grader.boxed` in a box and reads their verdicts.

A verdict is the line that begins with a nonce which only the judging process knows. Without one the response has ended
that process, which is its own doing, unless the process never began, which is ours.
"""

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from grader.boxed.start import BOOT
from grader.instruments.boxes import Box, Ran
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

PATIENCE = 3.0
"""How many times its limit a process may take that is kept waiting by others; see `grader.boxed.judge`."""
GRACE_SECONDS = 10.0
"""For starting and ending beside the time of the tests, which the judging process keeps itself."""
CODE_GRACE_SECONDS = 1.0
"""For starting Python beside the time of a grader that people wrote."""
MAX_JOB_BYTES = 3 * 1024 * 1024
"""What the standard input of a command in a box may hold."""
_JUDGE = ("wire", "start", "candidate", "remote", "stopwatch", "commands", "judge")
_STOPPED = {
    "timeout": "the time limit passed",
    "oom": "memory ran out",
    "pids_limit": "it started too many processes",
    "output_limit": "it wrote too much",
}


class JobTooLargeError(ValueError):
    """The work is larger than a box takes in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the judging process said."""

    said: Mapping[str, object] | None
    """None if it was ended before it could say anything."""
    ended: str
    """Why it could not."""


async def judge(box: Box, job: Mapping[str, object], *, timeout_seconds: float) -> Verdict:
    """Have a job judged; see `grader.boxed.judge`.

    Args:
        box: where.
        job: `task` and what it needs.
        timeout_seconds: for the work itself.

    Raises:
        GradingFaultError: the judging did not begin (kind sandbox), or the tests are not fit to run (kind code).
        JobTooLargeError: code, tests and files together are too large.
    """
    nonce = secrets.token_hex(16)
    limits = {"timeout_seconds": timeout_seconds, "patience": PATIENCE}
    fields = {**job, **limits, "nonce": nonce}
    limit = PATIENCE * timeout_seconds + GRACE_SECONDS
    ran = await _run(box, "judge", _JUDGE, fields, limit)
    lines = _lines(ran, nonce)
    if not lines:
        raise _not_begun(ran)
    if len(lines) < 2:
        ended = _STOPPED.get(ran.stopped_by, "the code ended the process that judges it")
        return Verdict(said=None, ended=ended)
    said = json.loads(lines[1])
    if "fault" in said:
        raise GradingFaultError(
            str(said["fault"]), kind=GraderErrorKind.CODE, retryable=False, client=True
        )
    return Verdict(said=said, ended="")


async def run_code_grader(
    box: Box, job: Mapping[str, object], *, timeout_seconds: float
) -> Mapping[str, object] | None:
    """Run a grader that people wrote; None if it did not end in time.

    Raises:
        GradingFaultError: the box could not run it, kind sandbox or code.
        JobTooLargeError: the grader and what it reads are too large.
    """
    nonce = secrets.token_hex(16)
    fields = {**job, "nonce": nonce}
    limit = timeout_seconds + CODE_GRACE_SECONDS
    ran = await _run(box, "code_grader", ("code_grader",), fields, limit)
    lines = _lines(ran, nonce)
    if lines:
        said: dict[str, object] = json.loads(lines[-1])
        return said
    if ran.stopped_by == "timeout":
        return None
    if ran.stopped_by or ran.exit_code in (0, None):
        why = _STOPPED.get(ran.stopped_by, "it ended its own process")
        raise GradingFaultError(
            f"the grader returned nothing: {why}",
            kind=GraderErrorKind.CODE,
            retryable=False,
            client=True,
        )
    raise _not_begun(ran)


async def _run(
    box: Box,
    main: str,
    modules: tuple[str, ...],
    fields: Mapping[str, object],
    timeout_seconds: float,
) -> Ran:
    stdin = await asyncio.to_thread(_frame, main, modules, fields)
    return await box.run(
        ("python3", "-I", "-S", "-c", BOOT, "0"),
        timeout_seconds=timeout_seconds,
        stdin=stdin,
    )


def _frame(main: str, modules: tuple[str, ...], fields: Mapping[str, object]) -> bytes:
    sources = {f"grader.boxed.{name}": _source(name) for name in modules}
    job = {
        **fields,
        "main": f"grader.boxed.{main}",
        "modules": {"grader": "", "grader.boxed": "", **sources},
    }
    data = json.dumps(job).encode("ascii")
    if len(data) + 4 > MAX_JOB_BYTES:
        raise JobTooLargeError(f"{len(data)} bytes; at most {MAX_JOB_BYTES} can be sent to a box")
    return len(data).to_bytes(4, "big") + data


@cache
def _source(name: str) -> str:
    return files("grader.boxed").joinpath(f"{name}.py").read_text(encoding="utf-8")


def _lines(ran: Ran, nonce: str) -> list[str]:
    text = ran.stdout.decode("ascii", "replace")
    return [line[len(nonce) + 1 :] for line in text.splitlines() if line.startswith(nonce)]


def _not_begun(ran: Ran) -> GradingFaultError:
    tail = ran.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    missing = ran.exit_code in (126, 127)
    detail = "python3 is not there" if missing else f"{ran.stopped_by or ran.exit_code} {tail}"
    return GradingFaultError(
        f"the judging process did not begin in the grading box: {detail}",
        kind=GraderErrorKind.SANDBOX,
        retryable=not missing,
        client=missing,
    )
