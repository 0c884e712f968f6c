"""`performance`: code that passes its tests, priced by how long it takes.

    {"type": "performance", "tests": {"test": "{{item.test}}", "entry_point": "solve"},
     "call": "assert solve({{item.big_input}}) == {{item.big_output}}", "reference": "{{item.solution}}", "runs": 5}
    {"type": "performance", "tests": {"source": "files", "command": ["sh", "test.sh"]},
     "command": ["sh", "-c", "./prog big.txt | cmp - big.out"], "reference_seconds": 1.5}

`tests` are those of kind `tests`. Once all pass, `call` runs `runs` times, each time in a new box, where first the
reference and then the code are loaded and timed: nothing can be kept from one run to the next, disturb the reference,
or be prepared for nothing. A `reference` imports nothing from the folder, where the agent may have left modules under
any name; a `reference_command` runs among them. Time that a busy machine keeps code waiting does not count
(`grader.boxed.stopwatch`). A command is timed by the clock alone, against `reference_command` or `reference_seconds`;
`timeout_seconds` (60) is for one timing. What is timed is as right as `call` asserts, or as the command's exit code:
code may know a large input when it sees one and skip the work. value = min(`cap` = 1, reference / median of the runs).
Where the middle half of the runs spreads by more than `max_spread` (0.25) of their median, the explanation says so.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from grader.boxing import JobTooLargeError, Verdict, judge
from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.instruments.boxes import AgentFilesError
from grader.kinds import tests as tests_kind
from grader.kinds.base import Kinds
from grader.kinds.boxed_fields import BoxFields, box_fields, code_field, unusable
from grader.kinds.tests import CommandTests, TestsGrader, memory_of_code, too_large
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import Template
from trajectory.types import GraderErrorKind, OutcomeKind

MAX_RUNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceGrader:
    """Times code that is right."""

    tests: TestsGrader
    call: Template
    command: tuple[str, ...]
    reference: Template | None
    reference_command: tuple[str, ...]
    reference_seconds: float
    """0 where it is measured."""
    runs: int
    cap: float
    max_spread: float
    box: BoxFields

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return 0 unless all tests pass, then the reference's time over the code's, at most `cap`."""
        tested = await self.tests.grade(sample, instruments)
        if not tested.counts or tested.value < 1.0:
            return Graded(value=0.0, kind=tested.kind, explanation=tested.explanation)
        times, references = [], []
        for _ in range(self.runs):
            try:
                timed = await self._time(sample, instruments)
            except JobTooLargeError as err:
                return too_large(err, sample)
            except AgentFilesError as err:
                return unusable(err, sample)
            if timed.broken:
                return Graded(
                    value=0.0,
                    kind=sample.shortfall(OutcomeKind.REASONING),
                    explanation=f"the tests pass, but when it was timed: {timed.broken}",
                )
            times.append(timed.seconds)
            references.append(timed.reference_seconds)
        return self._graded(times, references)

    async def _time(self, sample: Sample, instruments: Instruments) -> "_Timed":
        """Time the reference and the code once, in a box of their own."""
        folders = (self.tests.folder,) if self.tests.uses_files else ()
        limit = self.box.timeout_seconds
        async with instruments.boxes.box(self.box.spec(agent_folders=folders)) as box:
            reference = self.reference_seconds
            if self.reference_command:
                job = await asyncio.to_thread(self._command_job, sample, self.reference_command)
                measured = _of_command(await judge(box, job, timeout_seconds=limit))
                if measured.broken:
                    raise _fault(f"reference_command: {measured.broken}")
                reference = measured.seconds
            if self.command:
                job = await asyncio.to_thread(self._command_job, sample, self.command)
                return _of_command(await judge(box, job, timeout_seconds=limit), reference)
            job = await asyncio.to_thread(self._code_job, sample)
            verdict = await judge(box, job, timeout_seconds=2 * limit)
        said = verdict.said
        if said is None or "broken" in said:
            return _Timed(broken=verdict.ended if said is None else str(said["broken"]))
        seconds = said["seconds"]
        assert isinstance(seconds, dict)
        return _Timed(
            seconds=seconds["code"], reference_seconds=seconds.get("reference", reference)
        )

    def _command_job(self, sample: Sample, command: tuple[str, ...]) -> dict[str, object]:
        job = self.tests.job(sample)
        assert not isinstance(job, Graded), "a command needs nothing of the response"
        return {**job, "command": list(command)}

    def _code_job(self, sample: Sample) -> dict[str, object]:
        job = self.tests.job(sample)
        assert not isinstance(job, Graded), "the tests have found code"
        code = job["code"]
        assert isinstance(code, dict)
        reference = None
        if self.reference is not None:
            text = self.reference.render(sample)
            reference = {**code, "code": text, "path": "", "imports": False}
        return {
            "task": "timing",
            "statement": self.call.render(sample),
            "code": code,
            "reference": reference,
            "entry_point": job["entry_point"],
            "module_names": job["module_names"],
            "assets": job["assets"],
            "folder": self.tests.folder,
            "memory_bytes": memory_of_code(self.box),
        }

    def _graded(self, times: Sequence[float], references: Sequence[float]) -> Graded:
        taken, wanted = statistics.median(times), statistics.median(references)
        spread = max(_spread(times), _spread(references))
        explanation = f"{taken:.4g} s, reference {wanted:.4g} s, median of {len(times)} runs"
        if spread > self.max_spread:
            explanation += f"; unsteady: the middle half of the runs spreads by {spread:.0%}"
        return Graded(
            value=min(self.cap, wanted / max(taken, 1e-9)),
            kind=None,
            explanation=explanation,
            parts={"seconds": taken, "reference_seconds": wanted, "spread": spread},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One run."""

    seconds: float = 0.0
    reference_seconds: float = 0.0
    broken: str = ""
    """Why there is no time."""


def _of_command(verdict: Verdict, reference_seconds: float = 0.0) -> _Timed:
    said = verdict.said
    if said is None:
        return _Timed(broken=verdict.ended)
    if "broken" in said:
        return _Timed(broken=str(said["broken"]))
    if said["exit_code"] != 0:
        ended = "the time limit passed" if said["exit_code"] is None else f"{said['exit_code']}"
        return _Timed(broken=f"ended with {ended}: {str(said['detail'])[-200:]}")
    return _Timed(seconds=float(str(said["seconds"])), reference_seconds=reference_seconds)


def parse(fields: Fields, kinds: Kinds) -> PerformanceGrader | None:
    """Read the definition."""
    child = fields.child("tests")
    if child is None:
        return None
    tests = tests_kind.parse(child, kinds)
    child.has("type")
    child.finish()
    timed_command = isinstance(tests.how, CommandTests)
    referees = ("reference_command" if timed_command else "reference", "reference_seconds")
    given = [key for key in referees if fields.has(key)]
    if len(given) != 1:
        fields.problems.add(
            fields.path,
            f"needs one of {' and '.join(referees)}, found {' and '.join(given) or 'none'}",
        )
    return PerformanceGrader(
        tests=tests,
        call=code_field(fields, "call", "" if timed_command else None),
        command=fields.texts("command") if timed_command else (),
        reference=code_field(fields, "reference") if "reference" in given else None,
        reference_command=fields.texts("reference_command") if "reference_command" in given else (),
        reference_seconds=fields.number("reference_seconds", low=1e-6)
        if "reference_seconds" in given
        else 0.0,
        runs=fields.whole("runs", 5, low=1, high=MAX_RUNS),
        cap=fields.number("cap", 1.0, low=1e-6),
        max_spread=fields.number("max_spread", 0.25, low=0.0),
        box=box_fields(fields, timeout_seconds=60.0, memory_mb=1024),
    )


def _spread(times: Sequence[float]) -> float:
    """Return the interquartile range over the median; 0 for fewer than two."""
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / max(statistics.median(times), 1e-9)


def _fault(detail: str) -> GradingFaultError:
    return GradingFaultError(detail, kind=GraderErrorKind.CODE, retryable=False, client=True)
