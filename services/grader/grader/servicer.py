"""The grader's RPCs: thin, the desk does the work."""

import asyncio
from typing import Any

import grpc
from hone.grader.v1 import grader_pb2, grader_pb2_grpc

from grader.agreement.demand import checked_minimum, shortfalls
from grader.agreement.measure import measure
from grader.convert import (
    agreement_to_proto,
    ratings_from_proto,
    record_from_proto,
    verdict_to_proto,
    weights_from_proto,
)
from grader.desk import GradingDesk
from grader.results import GradingFaultError
from servicekit.errors import InvalidArgument, Unavailable

RETRY_AFTER_SECONDS = 2.0
"""When a caller should ask again after a fault that may pass."""


class GraderServicer(grader_pb2_grpc.GraderServiceServicer):
    """Grades and checks on request; tells nobody."""

    def __init__(self, desk: GradingDesk) -> None:
        """Answer from the desk."""
        self._desk = desk
        self._measuring = asyncio.Lock()

    async def GradeRollout(
        self,
        request: grader_pb2.GradeRolloutRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> grader_pb2.GradeRolloutResponse:
        """Score one record."""
        record = record_from_proto(request.record)
        definition = request.grader_json or record.grader_json
        if not definition:
            problem = "is empty, and so is the record's own; a grader definition is right"
            raise InvalidArgument(f"grader_json {problem}", violations={"grader_json": problem})
        await self._desk.read(definition)
        try:
            verdict = await self._desk.judge(record, definition)
        except GradingFaultError as fault:
            raise Unavailable(
                f"{fault.kind}: {fault.detail}",
                reason="GRADING_FAULT",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from fault
        return verdict_to_proto(verdict)

    async def ValidateGrader(
        self,
        request: grader_pb2.ValidateGraderRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> grader_pb2.ValidateGraderResponse:
        """Check a definition."""
        definition = await self._desk.read(request.grader_json)
        return grader_pb2.ValidateGraderResponse(
            reward_names=[member.name for member in definition.combination.members],
            grader_version=definition.version,
        )

    async def MeasureAgreement(
        self,
        request: grader_pb2.MeasureAgreementRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> grader_pb2.MeasureAgreementResponse:
        """Compare raters, off the event loop; one table at a time, for gradings need the threads too."""
        async with self._measuring:
            return await asyncio.to_thread(_measured, request)


def _measured(
    request: grader_pb2.MeasureAgreementRequest,
) -> grader_pb2.MeasureAgreementResponse:
    minimum = checked_minimum(request.minimum) if request.HasField("minimum") else None
    table = measure(
        ratings_from_proto(request),
        weights=weights_from_proto(request.weights),
        order=request.order,
        seed=request.seed,
    )
    return agreement_to_proto(table, () if minimum is None else shortfalls(table, minimum))
