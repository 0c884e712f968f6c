"""Every pair of conversions loses nothing, and refuses what a sender must not leave out."""

from datetime import UTC, datetime

import pytest
from hone.common.v1 import identity_pb2, outcome_pb2, token_record_pb2
from hypothesis import given
from hypothesis import strategies as st

from trajectory import convert, outcome_convert
from trajectory import types as t

TEXT = st.text(max_size=30)
CALLS = st.builds(t.ToolCall, tool_call_id=TEXT, name=TEXT, arguments_json=TEXT)
IMAGES = st.one_of(
    st.builds(t.ImagePart, uri=st.text(min_size=1, max_size=9), media_type=TEXT),
    st.builds(t.ImagePart, data=st.binary(min_size=1, max_size=9), media_type=TEXT),
)
MESSAGES = st.builds(
    t.ChatMessage,
    role=st.sampled_from(t.Role),
    content=st.lists(TEXT | IMAGES, max_size=3).map(tuple),
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    tool_call_id=TEXT,
    reasoning_content=TEXT,
    name=TEXT,
)
SAMPLING = st.builds(
    t.SamplingParams,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    top_k=st.integers(0, 99),
    min_p=st.floats(0, 1),
    max_new_tokens=st.integers(1, 4096),
    seed=st.none() | st.integers(0, 2**64 - 1),
)
TASKS = st.builds(
    t.Task,
    task_id=TEXT,
    messages=st.lists(MESSAGES, max_size=2).map(tuple),
    reference=st.dictionaries(TEXT, st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=2),
)


@st.composite
def rows(draw: st.DrawFn) -> t.TokenRow:
    pieces = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=5))
    ids: list[int] = []
    mask: list[bool] = []
    spans: list[t.TokenSpan] = []
    for turn, (sampled, length) in enumerate(pieces):
        if sampled:
            end = len(ids) + length
            spans.append(t.TokenSpan(start=len(ids), end=end, turn=turn, policy_version=turn))
        ids += draw(st.lists(st.integers(0, 49151), min_size=length, max_size=length))
        mask += [sampled] * length
    logprobs = tuple(-1.5 if sampled else 0.0 for sampled in mask)
    return t.TokenRow(
        token_ids=tuple(ids), loss_mask=tuple(mask), logprobs=logprobs, spans=tuple(spans)
    )


@given(
    TASKS, st.lists(rows(), max_size=2), SAMPLING, st.sampled_from(t.StopReason), st.lists(CALLS)
)
def test_rollout_record_survives_both_ways(
    task: t.Task,
    token_rows: list[t.TokenRow],
    sampling: t.SamplingParams,
    stop: t.StopReason,
    calls: list[t.ToolCall],
) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    turn = t.TurnRecord(
        turn=1,
        policy_version=7,
        prompt_token_count=3,
        sampled_token_count=2,
        generate_seconds=0.25,
        tools_seconds=1.5,
        tool_calls=tuple(t.ToolCallRecord(call=c, result="r", error_kind="e") for c in calls),
    )
    record = t.RolloutRecord(
        task=task,
        messages=task.messages,
        tokens=t.TokenRecord(rows=tuple(token_rows), sampling=sampling, nan_logprob_count=1),
        stop_reason=stop,
        sandbox_id="sbx_1",
        sandbox_isolation="optimistic(ns-root)",
        turns=(turn,),
        grader_json="{}",
        start_time=moment,
        end_time=moment,
    )
    assert convert.rollout_record_from_proto(convert.rollout_record_to_proto(record)) == record


@pytest.mark.parametrize("phase", list(t.Phase))
def test_slot_survives_both_ways(phase: t.Phase) -> None:
    slot = t.Slot(run_id="run_1", phase=phase, step=3, group_index=2, sample_index=1)
    assert convert.slot_from_proto(convert.slot_to_proto(slot)) == slot


@pytest.mark.parametrize("kind", [None, *t.OutcomeKind])
def test_outcomes_survive_both_ways(kind: t.OutcomeKind | None) -> None:
    reward = t.Reward(
        name="accuracy",
        value=0.5,
        weight=1.0,
        grader_name="answer",
        grader_version="v1",
        explanation="why",
        parts={"precision": 0.5},
    )
    scored = t.Scored(
        rewards=(reward,),
        score=0.5,
        kind=kind,
        errors=(t.GraderError(name="judge", kind=t.GraderErrorKind.PARSE, detail="no verdict"),),
        abstained=("style",),
        flags=(t.Flag(name="lucky_guess", detail="no call", priced=True),),
        step_rewards=(0.1, 0.0),
    )
    masked = t.Masked(kind=kind, reason="unreadable")
    assert outcome_convert.scored_from_proto(outcome_convert.scored_to_proto(scored)) == scored
    assert outcome_convert.masked_from_proto(outcome_convert.masked_to_proto(masked)) == masked


@pytest.mark.parametrize("kind", list(t.FailureKind))
@pytest.mark.parametrize("attributable", list(t.Attribution))
def test_failure_survives_both_ways(kind: t.FailureKind, attributable: t.Attribution) -> None:
    for grader_error in (None, *t.GraderErrorKind):
        failure = t.Failure(
            kind=kind,
            retryable=True,
            attributable=attributable,
            detail="d",
            grader_error=grader_error,
        )
        sent = outcome_convert.failure_to_proto(failure)
        assert outcome_convert.failure_from_proto(sent) == failure


def test_unsaid_enum_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"slot\.phase: found PHASE_UNSPECIFIED"):
        convert.slot_from_proto(identity_pb2.Slot(run_id="r"))
    with pytest.raises(ValueError, match=r"failure\.kind"):
        outcome_convert.failure_from_proto(outcome_pb2.Failure(attributable=1))
    with pytest.raises(ValueError, match=r"failure\.kind: found 99"):
        outcome_convert.failure_from_proto(outcome_pb2.Failure(kind=99, attributable=1))  # type: ignore[arg-type]


def test_row_of_unequal_lists_is_refused() -> None:
    row = token_record_pb2.TokenRow(token_ids=[1, 2], loss_mask=[True], logprobs=[0.0])
    with pytest.raises(ValueError, match="2 ids, 1 mask entries and 1"):
        convert.token_record_from_proto(token_record_pb2.TokenRecord(rows=[row]))


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [t.TokenSpan(start=0, end=1, turn=0, policy_version=1)],
        [t.TokenSpan(start=1, end=1, turn=0, policy_version=1)],
        [t.TokenSpan(start=1, end=4, turn=0, policy_version=1)],
        [
            t.TokenSpan(start=1, end=3, turn=0, policy_version=1),
            t.TokenSpan(start=2, end=3, turn=0, policy_version=1),
        ],
    ],
)
def test_trained_token_outside_a_sampled_span_is_refused(spans: list[t.TokenSpan]) -> None:
    with pytest.raises(ValueError, match="token row"):
        t.TokenRow(
            token_ids=(1, 2, 3),
            loss_mask=(False, True, True),
            logprobs=(0.0, -1.0, -1.0),
            spans=tuple(spans),
        )
