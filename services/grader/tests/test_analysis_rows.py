"""Graded rows survive their JSON line; the score before the range is that of the definition."""

import json

import pytest

from grader.analysis.rows import GradedRow, row_from_json, row_to_json, unbounded_score
from grader.definition import Definitions
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

REWARD = Reward(
    name="a", value=0.5, weight=1, grader_name="x", grader_version="v", parts={"precision": 0.25}
)
OUTCOMES: list[Outcome] = [
    Scored(rewards=(REWARD,), score=1.0),
    Scored(
        rewards=(),
        score=0.0,
        kind=OutcomeKind.TOOL_USE,
        errors=(GraderError(name="b", kind=GraderErrorKind.PARSE, detail="d"),),
        abstained=("c",),
        flags=(Flag(name="lucky_guess", detail="d", priced=True),),
        step_rewards=(0.1, 0.2),
    ),
    Masked(kind=OutcomeKind.EXTRACTION, reason="r"),
    Masked(kind=None, reason="r"),
    Failure(
        kind=FailureKind.GRADER,
        retryable=True,
        attributable=Attribution.INFRA,
        detail="d",
        grader_error=GraderErrorKind.SERVER,
    ),
    Failure(kind=FailureKind.ENGINE, retryable=False, attributable=Attribution.CLIENT, detail="d"),
]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_row_survives_its_json_line(outcome: Outcome) -> None:
    row = GradedRow(
        row_id="f:1",
        task_id="t",
        step=3,
        turn_count=2,
        fields=("answer",),
        low=-1.0,
        unbounded=1.5,
        grader_version="v",
        digest="d",
        outcome=outcome,
    )
    assert row_from_json(json.loads(json.dumps(row_to_json(row)))) == row


@pytest.mark.parametrize("value", [{}, {"row_id": 1}, {"outcome": "odd"}])
def test_other_objects_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="has no"):
        row_from_json(value)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, 1.75),
        ({"rule": "affine", "from": [0, 2]}, 0.875),
        ({"rule": "affine", "from": [0, 1]}, 1.75),
    ],
)
def test_unbounded_score_is_the_one_before_the_range_cuts(
    extra: dict[str, object], expected: float
) -> None:
    check = {"type": "string_check", "operation": "eq", "input": "a", "reference": "a"}
    definition = Definitions(package_version="1").parse(
        json.dumps(
            {
                "type": "multi",
                "graders": [
                    {"name": "a", "weight": 3, **check},
                    {"name": "b", "weight": 1, **check},
                    {"name": "measured", "weight": 0, **check},
                ],
                **extra,
            }
        )
    )
    rewards = [("a", 2.0), ("b", 1.0), ("measured", 9.0)]
    scored = Scored(
        rewards=tuple(
            Reward(name=name, value=value, weight=0, grader_name="x", grader_version="v")
            for name, value in rewards
        ),
        score=1.0,
    )
    assert unbounded_score(definition, scored) == pytest.approx(expected)
