"""`answer`: 1 if the final answer equals the reference, in whatever notation; see `grader.answer`.

    {"type": "answer", "reference": "{{item.answer}}",
     "extract": {"pattern": "Result: (.+)", "group": 1, "which": "last"},
     "tolerance": {"absolute": 0.01, "relative": 0.001}}

`extract` is `auto` (the default: every form), `boxed`, `hash`, `last_number`, a pattern, or
{"json_field": "result.answer"}; where it finds nothing there is no answer, kind format. Without `tolerance` numbers
must be equal; with it, they may differ by the larger of `absolute` and `relative` times the reference.
"""

import asyncio
from dataclasses import dataclass
from fractions import Fraction

from grader.answer.compare import Tolerance
from grader.answer.extraction import Extractor, extract
from grader.answer.extractors import FromForms, FromJson, FromLastNumber, FromPattern, is_path
from grader.answer.judge import AnswerJudgement, ReferenceUnreadableError, judge_answer
from grader.answer.symbolic import NoSymbolic, SymbolicNeededError
from grader.fields import Fields, nearest, shown
from grader.instruments.all import Instruments
from grader.kinds.base import Kinds, reference_field
from grader.patterns import pattern_field
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import Template
from trajectory.types import GraderErrorKind

INLINE_CHARACTERS = 2_000
"""Shorter responses are judged at once, unless formulas have to be compared; that takes less than a thread does."""
FORMS: dict[str, Extractor] = {
    "auto": extract,
    "boxed": FromForms(sources=frozenset(("box", "box percent"))),
    "hash": FromForms(sources=frozenset(("hash",))),
    "last_number": FromLastNumber(),
}
"""The ways to find an answer that have a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGrader:
    """Compares the final answer with a reference."""

    reference: Template
    extractor: Extractor = extract
    tolerance: Tolerance | None = None

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return 1 for a right answer, else 0; masked if the answer could not be read."""
        reference = self.reference.render(sample)
        try:
            judgement = await self._judge(sample, reference, instruments)
        except ReferenceUnreadableError as err:
            raise GradingFaultError(
                str(err), kind=GraderErrorKind.REFERENCE, retryable=False, client=True
            ) from err
        kind = None if judgement.kind is None else sample.shortfall(judgement.kind)
        return Graded(
            value=float(judgement.correct),
            kind=kind,
            explanation=judgement.explanation,
            masked=judgement.masked,
        )

    async def _judge(
        self, sample: Sample, reference: str, instruments: Instruments
    ) -> AnswerJudgement:
        short = len(sample.output_text) + len(reference) <= INLINE_CHARACTERS
        if short and not isinstance(self.extractor, FromPattern):
            try:
                return judge_answer(
                    sample.output_text,
                    reference,
                    NoSymbolic(),
                    stated_only=sample.stated_only,
                    extractor=self.extractor,
                    tolerance=self.tolerance,
                )
            except SymbolicNeededError:
                # It takes longer, so it must not hold the event loop.
                pass
        return await asyncio.to_thread(
            judge_answer,
            sample.output_text,
            reference,
            instruments.symbolic,
            stated_only=sample.stated_only,
            extractor=self.extractor,
            tolerance=self.tolerance,
        )


def parse(fields: Fields, kinds: Kinds) -> AnswerGrader:
    """Read the definition."""
    return AnswerGrader(
        reference=reference_field(fields),
        extractor=_extractor(fields),
        tolerance=_tolerance(fields),
    )


def _extractor(fields: Fields) -> Extractor:
    given = fields.values.get("extract")
    if not isinstance(given, dict):
        return FORMS[fields.choice("extract", tuple(FORMS), "auto")]
    asked = fields.child("extract")
    assert asked is not None
    extractor = _from_json(asked) if asked.has("json_field") else _from_pattern(asked)
    asked.finish()
    return extractor


def _from_json(asked: Fields) -> Extractor:
    path = asked.text("json_field")
    if path and not is_path(path):
        asked.problems.add(
            asked.at("json_field"),
            f"must be a path such as answer or result.values[0], found {shown(path)}",
        )
    return FromJson(path=path)


def _from_pattern(asked: Fields) -> Extractor:
    pattern = pattern_field(asked, "pattern")
    group: object = 1 if pattern.compiled.groups else 0
    if asked.has("group"):
        group = asked.raw("group")
    known = [*range(pattern.compiled.groups + 1), *pattern.compiled.groupindex]
    if isinstance(group, bool) or not isinstance(group, int | str) or group not in known:
        hint = nearest(str(group), [str(name) for name in known])
        asked.problems.add(asked.at("group"), f"the pattern has no group {shown(group)}; {hint}")
        group = 0
    last = asked.choice("which", ("last", "first"), "last") == "last"
    return FromPattern(pattern=pattern, group=group, last=last)


def _tolerance(fields: Fields) -> Tolerance | None:
    if not fields.has("tolerance"):
        return None
    given = fields.child("tolerance")
    if given is None:
        return None
    absolute = given.number("absolute", 0.0, low=0.0)
    relative = given.number("relative", 0.0, low=0.0, high=1.0)
    given.finish()
    return Tolerance(absolute=Fraction(str(absolute)), relative=Fraction(str(relative)))
