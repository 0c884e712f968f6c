from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from hone.common.v1 import identity_pb2, outcome_pb2
from hone.console.v1 import console_pb2, console_pb2_grpc
from hone.events.v1 import events_pb2

from console.archive import Archive
from console.archive_reader import ArchiveReader
from console.audit import audit_run
from console.convert import archived_event, stored_row
from console.servicer import ConsoleServicer
from console.spans import Span
from servicekit.channels import connect
from servicekit.errors import InvalidArgument, NotFound
from servicekit.testing import running_server


def store(archive: Archive, envelopes: list[events_pb2.Envelope]) -> None:
    archive.write([archived_event(i, e) for i, e in enumerate(envelopes, start=1)], [])


NOW = 1_772_366_420.0
"""A few seconds after the events of the demo run."""


class Pauses:
    """Counts pauses, and lets a test do something in one."""

    def __init__(self) -> None:
        self.count = 0
        self.during: Callable[[], None] = lambda: None

    async def __call__(self, seconds: float) -> None:
        self.count += 1
        self.during()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def stub(reader: ArchiveReader, pauses: Pauses) -> AsyncIterator[Any]:
    servicer = ConsoleServicer(
        reader,
        lambda run_id: audit_run(map(stored_row, reader.run_events(run_id))),
        clock=lambda: NOW,
        pause=pauses,
    )

    def add(server: grpc.aio.Server) -> None:
        console_pb2_grpc.add_ConsoleServiceServicer_to_server(servicer, server)

    async with running_server(add) as address, connect(address) as channel:
        yield console_pb2_grpc.ConsoleServiceStub(channel)


async def test_list_runs_pages_newest_first(archive: Archive, stub: Any, run_writer: Any) -> None:
    for number in range(5):
        run_writer.run_id = f"run-{number}"
        run_writer.start()
    store(archive, run_writer.envelopes)
    seen, token = [], ""
    while True:
        page = await stub.ListRuns(console_pb2.ListRunsRequest(page_size=2, page_token=token))
        assert len(page.runs) <= 2
        seen += [run.run_id for run in page.runs]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["run-4", "run-3", "run-2", "run-1", "run-0"]


async def test_list_runs_tells_the_summary(archive: Archive, stub: Any, demo: Any) -> None:
    store(archive, demo.envelopes)
    (run,) = (await stub.ListRuns(console_pb2.ListRunsRequest())).runs
    assert (run.rollouts_scored_count, run.rollouts_failed_count) == (1, 1)
    assert (run.algorithm, run.reward_mean, run.steps_trained_count) == ("grpo", 0.85, 1)
    assert run.end == events_pb2.RUN_END_UNSPECIFIED
    assert not run.HasField("end_time")


async def test_list_rollouts_pages_and_filters(archive: Archive, stub: Any, demo: Any) -> None:
    store(archive, demo.envelopes)
    request = console_pb2.ListRolloutsRequest(run_id="run-1", page_size=2)
    first = await stub.ListRollouts(request)
    assert [r.rollout_id for r in first.rollouts] == [demo.scored_id, demo.failed_id]
    request.page_token = first.next_page_token
    second = await stub.ListRollouts(request)
    assert [r.rollout_id for r in second.rollouts] == [demo.retried_id]
    assert second.next_page_token == ""
    failed = console_pb2.ListRolloutsRequest(run_id="run-1", outcome="failed", step=-1)
    (only,) = (await stub.ListRollouts(failed)).rollouts
    assert only.failure_kind == outcome_pb2.FAILURE_KIND_SANDBOX
    assert only.slot.phase == identity_pb2.PHASE_TRAIN
    assert only.slot.sample_index == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run_id": ""}, "run_id"),
        ({"outcome": "lost"}, "outcome"),
        ({"page_size": -1}, "page_size"),
        ({"page_token": "nonsense!"}, "page_token"),
    ],
)
async def test_list_rollouts_names_the_field_that_is_wrong(
    stub: Any, changes: dict[str, Any], field: str
) -> None:
    request = console_pb2.ListRolloutsRequest(**{"run_id": "run-1", **changes})
    with pytest.raises(InvalidArgument) as caught:
        await stub.ListRollouts(request)
    assert list(caught.value.violations) == [field]


async def test_a_token_of_another_question_is_refused(
    archive: Archive, stub: Any, demo: Any
) -> None:
    store(archive, demo.envelopes)
    request = console_pb2.ListRolloutsRequest(run_id="run-1", page_size=1)
    request.page_token = (await stub.ListRollouts(request)).next_page_token
    request.outcome = "failed"
    with pytest.raises(InvalidArgument, match="made for another request"):
        await stub.ListRollouts(request)


async def test_get_rollout_gives_everything(archive: Archive, stub: Any, demo: Any) -> None:
    store(archive, demo.envelopes)
    span = Span(
        trace_id=demo.scored_id.replace("-", ""),
        span_id="cd" * 8,
        service_name="rollout",
        name="chat",
        start_ns=1_000,
        end_ns=3_000,
        attributes={"n": 1, "text": "t"},
    )
    archive.write([], [span])
    for asked in (demo.scored_id, demo.scored_id.replace("-", "")):
        found = await stub.GetRollout(console_pb2.GetRolloutRequest(rollout_id=asked))
        assert found.summary.outcome == "scored"
        assert found.record.task.task_id == "task-7"
        assert found.WhichOneof("outcome") == "reward_assigned"
        assert found.trained_in_step == 0 and found.HasField("trained_in_step")
        kinds = [event.WhichOneof("payload") for event in found.events]
        assert kinds == [
            "rollout_requested",
            "sandbox_created",
            "rollout_started",
            "rollout_finished",
            "reward_assigned",
            "sandbox_destroyed",
        ]
        assert found.events[3].rollout_finished.WhichOneof("record") is None
        assert found.spans[0].attributes == {"n": "1", "text": "t"}


async def test_get_rollout_of_a_failed_and_an_open_one(
    archive: Archive, stub: Any, demo: Any
) -> None:
    store(archive, demo.envelopes)
    failed = await stub.GetRollout(console_pb2.GetRolloutRequest(rollout_id=demo.failed_id))
    assert failed.WhichOneof("outcome") == "failure"
    assert failed.failure.detail == "box is gone"
    assert not failed.HasField("record")
    opened = await stub.GetRollout(console_pb2.GetRolloutRequest(rollout_id=demo.retried_id))
    assert opened.WhichOneof("outcome") is None
    assert not opened.HasField("trained_in_step")


async def test_unknown_rollouts_and_runs_are_not_found(stub: Any) -> None:
    with pytest.raises(NotFound, match="knows no rollout"):
        await stub.GetRollout(console_pb2.GetRolloutRequest(rollout_id="nobody"))
    with pytest.raises(NotFound, match="knows no run"):
        await stub.AuditRun(console_pb2.AuditRunRequest(run_id="nobody"))


async def test_list_events_gives_them_whole_in_the_order_of_the_stream(
    archive: Archive, stub: Any, demo: Any
) -> None:
    store(archive, demo.envelopes)
    seen, token = [], ""
    while True:
        request = console_pb2.ListEventsRequest(run_id="run-1", page_size=3, page_token=token)
        page = await stub.ListEvents(request)
        seen += list(page.events)
        token = page.next_page_token
        if not token:
            break
    assert seen == demo.envelopes
    one = await stub.ListEvents(
        console_pb2.ListEventsRequest(run_id="run-1", type="rollout_failed")
    )
    assert len(one.events) == 1


async def test_audit_run_reports_findings_and_how_far_the_log_reached(
    archive: Archive, stub: Any, demo: Any
) -> None:
    demo.writer.fail(demo.scored_id)
    store(archive, demo.envelopes)
    report = await stub.AuditRun(console_pb2.AuditRunRequest(run_id="run-1"))
    # The archive, like the stream, drops the second end of an attempt: both carry the same id.
    assert list(report.findings) == []
    assert report.stream_sequence == len(demo.envelopes) - 2
    demo.writer.end()
    store(archive, demo.envelopes)
    report = await stub.AuditRun(console_pb2.AuditRunRequest(run_id="run-1"))
    assert {finding.rule for finding in report.findings} == {"slot_without_outcome"}
    assert list(report.findings[0].rollout_ids) == [demo.retried_id]
    assert report.counts["slots"] == 2


async def test_an_audit_right_after_the_end_waits_for_the_last_events(
    archive: Archive, stub: Any, demo: Any, pauses: Pauses
) -> None:
    demo.writer.end()
    store(archive, demo.envelopes)

    def fail_the_open_one() -> None:
        if pauses.count == 3:
            demo.writer.fail(demo.retried_id, sample=1)
            store(archive, demo.envelopes)

    pauses.during = fail_the_open_one
    report = await stub.AuditRun(console_pb2.AuditRunRequest(run_id="run-1"))
    assert (list(report.findings), pauses.count) == ([], 3)


async def test_an_audit_does_not_wait_for_what_nothing_can_mend(
    archive: Archive, stub: Any, demo: Any, pauses: Pauses
) -> None:
    demo.writer.train(5)
    demo.writer.end()
    store(archive, demo.envelopes)
    report = await stub.AuditRun(console_pb2.AuditRunRequest(run_id="run-1"))
    rules = {finding.rule for finding in report.findings}
    assert rules == {"steps_not_consecutive", "slot_without_outcome"}
    assert pauses.count == 0
