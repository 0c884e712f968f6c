"""Grades one record by one definition: components, combined score, why it did not succeed, and the guards' say."""

from grader.combination import Finding
from grader.definition import Definition
from grader.gathering import gather
from grader.guards.base import Case
from grader.guards.guarding import guarded
from grader.instruments.all import Instruments
from grader.results import Graded, GradingFaultError
from grader.sample import sample_of
from trajectory.types import (
    Attribution,
    Failure,
    FailureKind,
    GraderError,
    GraderErrorKind,
    Masked,
    Outcome,
    Reward,
    RolloutRecord,
    Scored,
)

MAX_EXPLANATION = 400
"""Characters of a grader's explanation that are kept."""
MAX_DETAIL = 8000
"""Characters of a failure's detail: room for all that is wrong with a definition."""


async def grade(
    record: RolloutRecord, definition: Definition, instruments: Instruments
) -> Scored | Masked:
    """Grade a record.

    Raises:
        GradingFaultError: a grader that counts could not do its work, or a value is not usable; never a zero reward.
    """
    sample = sample_of(record)
    findings = await gather(definition.combination, sample, instruments)
    found = [(f.member, f.graded) for f in findings if f.graded is not None]
    counted = [(member, graded) for member, graded in found if member.counted]
    unread = next(((m, g) for m, g in counted if g.masked), None)
    if unread is not None:
        member, graded = unread
        return Masked(kind=graded.kind, reason=told(f"{member.name}: {graded.explanation}"))
    combined = definition.combination.value(findings)
    if combined is None:
        names = ", ".join(member.name for member, graded in counted if graded.abstained)
        return Masked(kind=None, reason=f"the graders that count have no opinion: {names}")
    scored = Scored(
        rewards=tuple(
            _reward(finding, finding.graded, definition.version)
            for finding in findings
            if finding.graded is not None and finding.graded.counts
        ),
        score=_bounded(combined, definition),
        kind=next((graded.kind for _, graded in counted if graded.kind is not None), None),
        errors=tuple(
            GraderError(name=f.member.name, kind=f.error.kind, detail=told(f.error.detail))
            for f in findings
            if f.error is not None
        ),
        abstained=tuple(member.name for member, graded in found if graded.abstained),
        step_rewards=next((g.step_values for _, g in counted if g.step_values), ()),
    )
    case = Case(sample=sample, right=scored.kind is None)
    return await guarded(scored, case, definition.guards, definition.bounds.low, instruments)


def failure_of(fault: GradingFaultError) -> Failure:
    """Return the outcome that says that grading could not be done."""
    return Failure(
        kind=FailureKind.GRADER,
        retryable=fault.retryable,
        attributable=Attribution.CLIENT if fault.client else Attribution.INFRA,
        detail=told(fault.detail, MAX_DETAIL),
        grader_error=fault.kind,
    )


def told(text: str, length: int = MAX_EXPLANATION) -> str:
    """Return the beginning of a text of unknown origin, without halves of surrogate pairs, which no event can hold."""
    return text[:length].encode("utf-8", "replace").decode("utf-8")


def is_success(outcome: Outcome) -> bool:
    """Whether the response did what the task asked."""
    return isinstance(outcome, Scored) and outcome.kind is None


def _bounded(combined: float, definition: Definition) -> float:
    score = definition.bounds.apply(combined)
    if score is None:
        bounds = definition.bounds
        raise GradingFaultError(
            f"the combined score {combined} lies outside the range [{bounds.low:g}, {bounds.high:g}] "
            "and the rule is refuse; widen the range or use clip or affine",
            kind=GraderErrorKind.DEFINITION,
            retryable=False,
            client=True,
        )
    return score


def _reward(finding: Finding, graded: Graded, version: str) -> Reward:
    return Reward(
        name=finding.member.name,
        value=graded.value,
        weight=finding.member.weight,
        grader_name=finding.member.type,
        grader_version=version,
        explanation=told(graded.explanation),
        parts={told(name): value for name, value in graded.parts.items()},
    )
