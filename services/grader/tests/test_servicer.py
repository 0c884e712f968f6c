"""The RPCs over a real in-process server."""

# The async stub types exist for type checkers only.
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from hone.common.v1 import outcome_pb2
from hone.grader.v1 import grader_pb2, grader_pb2_grpc

from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.instruments.all import Instruments
from grader.instruments.endpoints import Call, Reply
from grader.results import GradingFaultError
from grader.servicer import GraderServicer
from servicekit.channels import connect
from servicekit.errors import InvalidArgument, Unavailable
from servicekit.testing import running_server
from trajectory.convert import rollout_record_to_proto
from trajectory.types import GraderErrorKind, RolloutRecord

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


class Endpoints:
    """Cannot be reached, for a while or for good."""

    def __init__(self, *, retryable: bool) -> None:
        self.retryable = retryable

    async def call(self, call: Call) -> Reply:
        raise GradingFaultError(
            "no answer within 30 s",
            kind=GraderErrorKind.TIMEOUT,
            retryable=self.retryable,
            client=False,
        )


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_fault_is_unavailable_if_it_may_pass_and_the_answer_if_not(
    instruments: Instruments, make_record: MakeRecord, retryable: bool
) -> None:
    record = make_record(grader_json='{"type": "endpoint", "url": "http://127.0.0.1:9/grade"}')
    away = replace(instruments, endpoints=Endpoints(retryable=retryable))
    servicer = GraderServicer(GradingDesk(Definitions(package_version="1"), away))
    request = grader_pb2.GradeRolloutRequest(record=rollout_record_to_proto(record))
    async with (
        running_server(
            lambda server: grader_pb2_grpc.add_GraderServiceServicer_to_server(servicer, server)
        ) as address,
        connect(address) as channel,
    ):
        stub = grader_pb2_grpc.GraderServiceStub(channel)
        if not retryable:
            failure = (await stub.GradeRollout(request)).failure
            assert failure.grader_error_kind == outcome_pb2.GRADER_ERROR_KIND_TIMEOUT
            assert failure.attributable == outcome_pb2.ATTRIBUTION_INFRA
            return
        with pytest.raises(Unavailable, match=r"^timeout: no answer") as caught:
            await stub.GradeRollout(request)
    assert caught.value.reason == "GRADING_FAULT"
    assert caught.value.retry_after_seconds == 2.0


async def test_record_and_request_without_a_definition_are_refused(
    stub: grader_pb2_grpc.GraderServiceAsyncStub, make_record: MakeRecord
) -> None:
    record = rollout_record_to_proto(make_record(grader_json=""))
    with pytest.raises(InvalidArgument, match="grader_json"):
        await stub.GradeRollout(grader_pb2.GradeRolloutRequest(record=record))


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
