"""Answers ConsoleService from the archive; reading happens in threads, off the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from hone.common.v1 import identity_pb2
from hone.console.v1 import console_pb2, console_pb2_grpc

from console import proto_convert
from console.archive_reader import ArchiveReader, RolloutFilter, RunEntry
from console.audit import AuditReport
from console.audit_rules import SETTLING
from console.convert import stored_envelope, whole_envelope, word
from console.paging import make_token, page_limit, read_token
from console.site import rollout_id_of, trace_id_of
from console.view_convert import final_event
from servicekit.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

OUTCOMES = ("", "scored", "masked", "failed", "open")
MAX_PAGE_BYTES = 3 * 1024 * 1024
"""A page of events ends before it outgrows the smallest message limit in use, gRPC's own of 4 MiB."""

SETTLE_SECONDS = 5.0
SETTLE_TRIES = 10
RECENT_SECONDS = 30.0
"""An audit this soon after the end of a run waits up to SETTLE_SECONDS for what is still on its way."""


class ConsoleServicer(console_pb2_grpc.ConsoleServiceServicer):
    """Reads the archive for callers."""

    def __init__(
        self,
        reader: ArchiveReader,
        audit: Callable[[str], AuditReport],
        *,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Reads through `reader`; `audit` checks one run; `pause` waits so many seconds."""
        self._reader = reader
        self._audit = audit
        self._clock = clock
        self._pause = pause

    async def ListRuns(
        self, request: console_pb2.ListRunsRequest, context: "Context"
    ) -> console_pb2.ListRunsResponse:
        """Lists runs, newest first."""
        limit = page_limit(request.page_size, default=50, maximum=500)
        before = read_token(request.page_token, ["runs"])
        runs = await asyncio.to_thread(self._reader.runs, limit=limit + 1, before_position=before)
        more = len(runs) > limit
        return console_pb2.ListRunsResponse(
            runs=[proto_convert.run_summary_to_proto(run) for run in runs[:limit]],
            next_page_token=make_token(runs[limit - 1].first_position, ["runs"]) if more else "",
        )

    async def ListRollouts(
        self, request: console_pb2.ListRolloutsRequest, context: "Context"
    ) -> console_pb2.ListRolloutsResponse:
        """Lists rollouts of a run through a filter."""
        _require("run_id", request.run_id)
        if request.outcome not in OUTCOMES:
            problem = f"is {request.outcome!r}; scored, masked, failed, open or empty is right"
            raise InvalidArgument(f"outcome {problem}", violations={"outcome": problem})
        where = RolloutFilter(
            run_id=request.run_id,
            phase=word(identity_pb2.Phase, request.phase, "PHASE"),
            step=request.step if request.HasField("step") and request.step >= 0 else None,
            outcome=request.outcome,
        )
        limit = page_limit(request.page_size, default=100, maximum=1000)
        question = [where.run_id, where.phase, where.step, where.outcome]
        after = read_token(request.page_token, question) or 0
        found = await asyncio.to_thread(
            self._reader.rollouts, where, limit=limit + 1, after_position=after
        )
        more = len(found) > limit
        return console_pb2.ListRolloutsResponse(
            rollouts=[proto_convert.rollout_summary_to_proto(entry) for entry in found[:limit]],
            next_page_token=make_token(found[limit - 1].first_position, question) if more else "",
        )

    async def GetRollout(
        self, request: console_pb2.GetRolloutRequest, context: "Context"
    ) -> console_pb2.GetRolloutResponse:
        """Returns one rollout whole."""
        _require("rollout_id", request.rollout_id)
        return await asyncio.to_thread(self._rollout, rollout_id_of(request.rollout_id))

    async def ListEvents(
        self, request: console_pb2.ListEventsRequest, context: "Context"
    ) -> console_pb2.ListEventsResponse:
        """Lists events of a run as they were logged; a page also ends after 3 MiB."""
        _require("run_id", request.run_id)
        limit = page_limit(request.page_size, default=500, maximum=5000)
        question = [request.run_id, request.type]
        after = read_token(request.page_token, question) or 0
        found = await asyncio.to_thread(
            self._reader.events,
            request.run_id,
            type_name=request.type,
            limit=limit,
            max_bytes=MAX_PAGE_BYTES,
            after_position=after,
        )
        token = make_token(found.events[-1].position, question) if found.more else ""
        return console_pb2.ListEventsResponse(
            events=[whole_envelope(stored) for stored in found.events], next_page_token=token
        )

    async def AuditRun(
        self, request: console_pb2.AuditRunRequest, context: "Context"
    ) -> console_pb2.AuditRunResponse:
        """Checks the invariants of a run's log; one that has just ended gets some seconds to settle."""
        _require("run_id", request.run_id)
        run = await asyncio.to_thread(self._reader.run, request.run_id)
        if run is None:
            raise NotFound(f"the log knows no run {request.run_id}", reason="RUN_NOT_FOUND")
        report = await asyncio.to_thread(self._audit, request.run_id)
        for _ in range(SETTLE_TRIES):
            if not self._may_settle(run, report):
                break
            await self._pause(SETTLE_SECONDS / SETTLE_TRIES)
            report = await asyncio.to_thread(self._audit, request.run_id)
        return proto_convert.audit_to_proto(report)

    def _may_settle(self, run: RunEntry, report: AuditReport) -> bool:
        """Says whether events that are still on their way may mend everything that the audit found.

        A run tells its end before the last sandbox is destroyed.
        """
        just_ended = run.end_us is not None and self._clock() - run.end_us / 1e6 < RECENT_SECONDS
        rules = {finding.rule for finding in report.findings}
        return just_ended and bool(rules) and rules <= SETTLING

    def _rollout(self, rollout_id: str) -> console_pb2.GetRolloutResponse:
        entry = self._reader.rollout(rollout_id)
        if entry is None:
            raise NotFound(f"the log knows no rollout {rollout_id}", reason="ROLLOUT_NOT_FOUND")
        events = self._reader.rollout_events(rollout_id)
        return proto_convert.rollout_to_proto(
            entry,
            envelopes=[stored_envelope(stored) for stored in events],
            record=next((stored.record for stored in events if stored.record), None),
            final=final_event(entry, events),
            spans=self._reader.spans(trace_id_of(rollout_id)),
        )


def _require(field: str, value: str) -> None:
    if not value:
        raise InvalidArgument(f"{field} is empty", violations={field: "is required"})
