r"""`python`: a grader of people's own, run in a grading box.

    {"type": "python", "source": "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])"}

`sample` is {choices, output_text, output_json, output_tools} as in reinforcement fine-tuning services, and `messages`
with more (`grader.sample_json`); `item` is the task's reference fields. `grade` returns a number, or None for no
opinion; it may be async. With `folders` (for example ["/work"]) it also reads what the agent left there. Its prints go
nowhere; an exception, NaN, or no answer within `timeout_seconds` (120) is a typed error and never a zero. No network;
`memory_mb` is 2048.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grader.boxing import JobTooLargeError, run_code_grader
from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.instruments.boxes import AgentFilesError
from grader.kinds.base import Kinds
from grader.kinds.boxed_fields import BoxFields, box_fields, is_sound_path, unusable
from grader.results import Graded, GradingFaultError, abstain
from grader.sample import Sample
from grader.sample_json import sample_json
from trajectory.types import GraderErrorKind, OutcomeKind

MAX_SOURCE_BYTES = 256 * 1024
MAX_OUTPUT = 200_000
"""Characters of a response that are sure to fit beside source and item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonGrader:
    """Runs `grade(sample, item)`."""

    source: str
    folders: tuple[str, ...]
    box: BoxFields

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return what the code returned; kind reasoning below 1."""
        try:
            said = await self._run(sample_json(sample), sample, instruments)
        except AgentFilesError as err:
            return unusable(err, sample)
        except JobTooLargeError as err:
            if len(sample.output_text) < MAX_OUTPUT:
                raise _fault(f"sample and item do not fit: {err}", GraderErrorKind.CODE) from err
            return Graded(
                value=0.0,
                kind=sample.shortfall(OutcomeKind.FORMAT),
                explanation=f"the response has {len(sample.output_text)} characters, more than can be graded",
            )
        if said is None:
            raise _fault(
                f"grade did not return within {self.box.timeout_seconds:g} s",
                GraderErrorKind.TIMEOUT,
            )
        if "raised" in said:
            raise _fault(f"grade raised an error: {said['raised']}", GraderErrorKind.CODE)
        if said["value"] is None:
            return abstain("grade returned None")
        value = float(str(said["value"]))
        if not math.isfinite(value):
            raise _fault(f"grade returned {value}, a finite number is needed", GraderErrorKind.CODE)
        kind = None if value >= 1.0 else sample.shortfall(OutcomeKind.REASONING)
        return Graded(value=value, kind=kind, explanation=f"grade returned {value:g}")

    async def _run(
        self, shown: dict[str, object], sample: Sample, instruments: Instruments
    ) -> Mapping[str, object] | None:
        job = {"source": self.source, "sample": shown, "item": dict(sample.item)}
        async with instruments.boxes.box(self.box.spec(agent_folders=self.folders)) as box:
            try:
                return await run_code_grader(box, job, timeout_seconds=self.box.timeout_seconds)
            except JobTooLargeError:
                # A long conversation is no reason to fail: most graders look at its end.
                short = {**shown, "messages": []}
                return await run_code_grader(
                    box, {**job, "sample": short}, timeout_seconds=self.box.timeout_seconds
                )


def parse(fields: Fields, kinds: Kinds) -> PythonGrader:
    """Read the definition; the source is compiled, so that a wrong one is found before anything is graded."""
    source = fields.text("source")
    if source:
        problem = _problem(source)
        if problem:
            fields.problems.add(fields.at("source"), problem)
    folders = fields.texts("folders") if fields.has("folders") else ()
    if not all(is_sound_path(folder) for folder in folders):
        fields.problems.add(fields.at("folders"), "must be absolute paths without '..'")
    return PythonGrader(
        source=source,
        folders=folders,
        box=box_fields(fields, timeout_seconds=120.0, memory_mb=2048),
    )


def _problem(source: str) -> str:
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        return f"has {size} bytes, at most {MAX_SOURCE_BYTES} are allowed"
    try:
        code = compile(source, "<grader>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        return f"is no Python: {err}"
    if "grade" not in code.co_names:
        return "must define grade(sample, item)"
    return ""


def _fault(detail: str, kind: GraderErrorKind) -> GradingFaultError:
    return GradingFaultError(detail, kind=kind, retryable=False, client=True)
