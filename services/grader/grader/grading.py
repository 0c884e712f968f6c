"""Grades one record by one definition: components, combined score, and why it did not succeed."""

import math

from grader.definition import Component, Definition
from grader.kinds.base import Instruments
from grader.sample import Graded, GradingFaultError, Sample, sample_of
from trajectory.types import (
    Attribution,
    Failure,
    FailureKind,
    Masked,
    Outcome,
    Reward,
    RolloutRecord,
    Scored,
)


def grade(
    record: RolloutRecord, definition: Definition, instruments: Instruments
) -> Scored | Masked:
    """Grade a record.

    Raises:
        GradingFaultError: a grader could not do its work, or a value is not usable; never a zero reward.
    """
    sample = sample_of(record)
    found = [
        (component, _grade(component, sample, instruments)) for component in definition.components
    ]
    counted = [(component, graded) for component, graded in found if component.weight > 0]
    unread = next(((c, g) for c, g in counted if g.masked), None)
    if unread is not None:
        component, graded = unread
        return Masked(kind=graded.kind, reason=f"{component.name}: {graded.explanation}")
    total = sum(component.weight for component, _ in counted)
    combined = sum(component.weight * graded.value for component, graded in counted) / total
    score = definition.bounds.apply(combined)
    if score is None:
        bounds = definition.bounds
        raise GradingFaultError(
            f"the combined score {combined:g} lies outside the range [{bounds.low:g}, {bounds.high:g}] "
            "and the rule is refuse; widen the range or use clip or affine",
            retryable=False,
            client=True,
        )
    rewards = tuple(
        _reward(component, graded, definition.version)
        for component, graded in found
        if not graded.masked
    )
    kind = next((graded.kind for _, graded in counted if graded.kind is not None), None)
    return Scored(rewards=rewards, score=score, kind=kind)


def failure_of(fault: GradingFaultError) -> Failure:
    """Return the outcome that says that grading could not be done."""
    return Failure(
        kind=FailureKind.GRADER,
        retryable=fault.retryable,
        attributable=Attribution.CLIENT if fault.client else Attribution.INFRA,
        detail=fault.detail,
    )


def is_success(outcome: Outcome) -> bool:
    """Whether the response did what the task asked."""
    return isinstance(outcome, Scored) and outcome.kind is None


def _grade(component: Component, sample: Sample, instruments: Instruments) -> Graded:
    graded = component.grader.grade(sample, instruments)
    if not math.isfinite(graded.value):
        raise GradingFaultError(
            f"grader {component.name} returned {graded.value}, which is not a finite number",
            retryable=False,
            client=True,
        )
    return graded


def _reward(component: Component, graded: Graded, version: str) -> Reward:
    return Reward(
        name=component.name,
        value=graded.value,
        weight=component.weight,
        grader_name=component.type,
        grader_version=version,
        explanation=graded.explanation[:400],
    )
