"""One graded response as reports read it, and its JSON line.

{"row_id": "answers.jsonl:3", "task_id": "t7", "step": null, "phase": "", "turn_count": 1, "fields": ["answer"],
 "low": 0.0, "high": 1.0, "unbounded": 1.3, "grader_version": "0.1.0+5f1d...", "digest": "9c0e...",
 "outcome": "scored", "score": 1.0, "kind": null, "rewards": [{"name": "accuracy", "value": 1.0, ...}], ...}
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from grader.combination import Finding
from grader.definition import Definition
from grader.results import Graded
from trajectory.types import (
    Attribution,
    Failure,
    FailureKind,
    Flag,
    GraderError,
    GraderErrorKind,
    Masked,
    Outcome,
    OutcomeKind,
    Reward,
    Scored,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedRow:
    """One response and how it was judged."""

    row_id: str
    """The rollout_id, or file and line."""
    task_id: str
    step: int | None = None
    """None for a row of a file."""
    phase: str = ""
    """What the rollout was for, for example train; empty for a row of a file."""
    turn_count: int = 0
    fields: tuple[str, ...] = ()
    """Top-level names of the task's reference fields."""
    low: float = 0.0
    high: float = 1.0
    """The declared range of the score."""
    unbounded: float | None = None
    """The combined score before the rule held it in the range; None if there is no score."""
    grader_version: str = ""
    digest: str = ""
    """Of what was graded."""
    outcome: Outcome

    @property
    def scored(self) -> Scored | None:
        """The judgement, if the response has a score."""
        return self.outcome if isinstance(self.outcome, Scored) else None


def unbounded_score(definition: Definition, scored: Scored) -> float | None:
    """Return the combined score as it is before the rule holds it in the range.

    Raises:
        GradingFaultError: the formula has no value for these rewards.
    """
    found = {reward.name: reward.value for reward in scored.rewards}
    findings = [
        Finding(
            member=member,
            graded=Graded(value=found[member.name], kind=None, explanation=""),
        )
        for member in definition.combination.members
        if member.name in found
    ]
    combined = definition.combination.value(findings)
    return None if combined is None else definition.bounds.mapped(combined)


_WORDS: Mapping[type[Outcome], str] = {Scored: "scored", Masked: "masked", Failure: "failed"}


def row_to_json(row: GradedRow) -> dict[str, object]:
    """Return the row's JSON object."""
    about = {f.name: getattr(row, f.name) for f in fields(row) if f.name != "outcome"}
    return about | {"outcome": _WORDS[type(row.outcome)]} | asdict(row.outcome)


def row_from_json(value: Mapping[str, Any]) -> GradedRow:
    """Read what `row_to_json` wrote.

    Raises:
        ValueError: it is no such object; says what is missing or wrong.
    """
    try:
        about = {f.name: value[f.name] for f in fields(GradedRow) if f.name != "outcome"}
        about["fields"] = tuple(about["fields"])
        return GradedRow(**about, outcome=_READERS[value["outcome"]](value))
    except KeyError as err:
        raise ValueError(f"has no {err}") from err
    except TypeError as err:
        raise ValueError(f"is no graded row: {err}") from err


def _scored(value: Mapping[str, Any]) -> Scored:
    return Scored(
        rewards=tuple(Reward(**reward) for reward in value["rewards"]),
        score=value["score"],
        kind=_kind(value["kind"]),
        errors=tuple(
            GraderError(**{**error, "kind": GraderErrorKind(error["kind"])})
            for error in value["errors"]
        ),
        abstained=tuple(value["abstained"]),
        flags=tuple(Flag(**flag) for flag in value["flags"]),
        step_rewards=tuple(value["step_rewards"]),
    )


def _masked(value: Mapping[str, Any]) -> Masked:
    return Masked(kind=_kind(value["kind"]), reason=value["reason"])


def _failure(value: Mapping[str, Any]) -> Failure:
    stopped = value["grader_error"]
    return Failure(
        kind=FailureKind(value["kind"]),
        retryable=value["retryable"],
        attributable=Attribution(value["attributable"]),
        detail=value["detail"],
        grader_error=None if stopped is None else GraderErrorKind(stopped),
    )


def _kind(value: str | None) -> OutcomeKind | None:
    return None if value is None else OutcomeKind(value)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Outcome]] = {
    "scored": _scored,
    "masked": _masked,
    "failed": _failure,
}
