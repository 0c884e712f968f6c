"""The RPCs over a real in-process server."""

# The async stub types exist for type checkers only.
from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from hone.common.v1 import outcome_pb2
from hone.grader.v1 import grader_pb2, grader_pb2_grpc

from grader.desk import GradingDesk
from grader.servicer import GraderServicer
from servicekit.channels import connect
from servicekit.errors import InvalidArgument
from servicekit.testing import running_server
from trajectory.convert import rollout_record_to_proto
from trajectory.types import RolloutRecord

MakeRecord = Callable[..., RolloutRecord]


@pytest.fixture
async def stub(desk: GradingDesk) -> AsyncIterator[grader_pb2_grpc.GraderServiceAsyncStub]:
    servicer = GraderServicer(desk)
    add = grader_pb2_grpc.add_GraderServiceServicer_to_server
    async with (
        running_server(lambda server: add(servicer, server)) as address,
        connect(address) as channel,
    ):
        yield grader_pb2_grpc.GraderServiceStub(channel)


async def test_grade_rollout_uses_the_records_own_definition(
    stub: grader_pb2_grpc.GraderServiceAsyncStub, make_record: MakeRecord
) -> None:
    record = rollout_record_to_proto(make_record(calls=3))
    response = await stub.GradeRollout(grader_pb2.GradeRolloutRequest(record=record))
    assert response.scored.score == pytest.approx(0.7)
    assert response.grader_version.startswith("1.2.3+")


async def test_grade_rollout_by_another_definition(
    stub: grader_pb2_grpc.GraderServiceAsyncStub, make_record: MakeRecord
) -> None:
    record = rollout_record_to_proto(make_record("Final Answer: 1", calls=3))
    request = grader_pb2.GradeRolloutRequest(
        record=record, grader_json='{"type": "answer", "reference": "72"}'
    )
    response = await stub.GradeRollout(request)
    assert (response.scored.score, response.scored.kind) == (
        0.0,
        outcome_pb2.OUTCOME_KIND_REASONING,
    )


async def test_a_task_without_reference_is_a_failure_in_the_answer(
    stub: grader_pb2_grpc.GraderServiceAsyncStub, make_record: MakeRecord
) -> None:
    record = rollout_record_to_proto(make_record(item={"solution": 1}))
    response = await stub.GradeRollout(grader_pb2.GradeRolloutRequest(record=record))
    assert response.failure.attributable == outcome_pb2.ATTRIBUTION_CLIENT
    assert "item.answer" in response.failure.detail


async def test_record_without_stop_reason_is_refused(
    stub: grader_pb2_grpc.GraderServiceAsyncStub, make_record: MakeRecord
) -> None:
    record = rollout_record_to_proto(make_record())
    record.ClearField("stop_reason")
    with pytest.raises(InvalidArgument, match="stop_reason"):
        await stub.GradeRollout(grader_pb2.GradeRolloutRequest(record=record))


async def test_validate_grader_names_rewards_or_violations(
    stub: grader_pb2_grpc.GraderServiceAsyncStub, demo_json: str
) -> None:
    good = await stub.ValidateGrader(grader_pb2.ValidateGraderRequest(grader_json=demo_json))
    assert list(good.reward_names) == ["reward", "accuracy"]
    with pytest.raises(InvalidArgument) as caught:
        await stub.ValidateGrader(
            grader_pb2.ValidateGraderRequest(grader_json='{"type": "answer"}')
        )
    assert caught.value.violations == {"reference": "is required"}
