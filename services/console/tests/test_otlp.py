import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from console.archive import Archive
from console.archive_reader import ArchiveReader
from console.otlp import OtlpServer
from console.otlp_convert import spans_from_proto
from console.span_tree import build_tree
from console.writer import ArchiveWriter
from servicekit.identity import new_rollout_id, rollout_scope
from servicekit.telemetry import otlp_exporter, tracer_provider


@pytest.fixture
async def otlp(archive: Archive) -> AsyncIterator[OtlpServer]:
    writer = ArchiveWriter(archive)
    async with writer, asyncio.TaskGroup() as group:
        group.create_task(writer.run())
        server = OtlpServer(writer, host="127.0.0.1", port=0, max_message_bytes=1 << 22)
        await server.start()
        yield server
        await server.stop()
        await writer.close()


def export_a_rollout(port: int, rollout_id: str) -> None:
    """Sends what a service would, with the exporter that services use."""
    provider = tracer_provider(
        "rollout", ratio=1.0, exporter=otlp_exporter(f"127.0.0.1:{port}"), rng=random.Random(1)
    )
    tracer = provider.get_tracer("test")
    with (
        rollout_scope(rollout_id),
        tracer.start_as_current_span("request rollout", kind=SpanKind.PRODUCER) as root,
        tracer.start_as_current_span("invoke_agent") as agent,
    ):
        agent.set_attribute("hone.turn", 3)
        agent.set_attribute("tags", ["a", "b"])
        agent.add_event("retry", {"n": 1})
        agent.set_status(Status(StatusCode.ERROR, "engine gone"))
        with tracer.start_as_current_span("chat", links=[Link(root.get_span_context())]):
            pass
    # Exports what waits and returns when it was answered.
    provider.shutdown()


async def test_spans_of_a_real_exporter_arrive_under_the_rollout_id(
    otlp: OtlpServer, reader: ArchiveReader
) -> None:
    rollout_id = new_rollout_id(lambda: 1_772_000_000.0, random.Random(7))
    await asyncio.to_thread(export_a_rollout, otlp.port, rollout_id)
    spans = {span.name: span for span in reader.spans(rollout_id.replace("-", ""))}
    tree = build_tree(spans.values())
    assert [(row.span.name, row.depth) for row in tree.rows] == [
        ("request rollout", 0),
        ("invoke_agent", 1),
        ("chat", 2),
    ]
    assert tree.num_missing_parents == 0
    agent = spans["invoke_agent"]
    assert agent.service_name == "rollout"
    assert agent.attributes["hone.turn"] == 3
    assert agent.attributes["tags"] == ["a", "b"]
    assert (agent.status, agent.status_message) == ("error", "engine gone")
    assert [event.name for event in agent.events] == ["retry"]
    assert spans["request rollout"].kind == "producer"
    assert spans["chat"].links[0].span_id == spans["request rollout"].span_id


def export_request(**fields: Any) -> trace_service_pb2.ExportTraceServiceRequest:
    request = trace_service_pb2.ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id = b"t" * 16, b"s" * 8
    for name, value in fields.items():
        setattr(span, name, value)
    return request


async def test_sending_the_same_spans_twice_changes_nothing(
    otlp: OtlpServer, reader: ArchiveReader
) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{otlp.port}") as channel:
        stub: Any = trace_service_pb2_grpc.TraceServiceStub(channel)  # type: ignore[no-untyped-call]
        for name in ("first", "again"):
            await stub.Export(export_request(name=name))
    assert [span.name for span in reader.spans(b"t".hex() * 16)] == ["first"]


async def test_a_span_with_a_bad_id_is_rejected_and_counted(otlp: OtlpServer) -> None:
    request = export_request()
    bad = request.resource_spans[0].scope_spans[0].spans.add()
    bad.trace_id, bad.span_id = b"\0" * 16, b"s" * 8
    async with grpc.aio.insecure_channel(f"127.0.0.1:{otlp.port}") as channel:
        stub: Any = trace_service_pb2_grpc.TraceServiceStub(channel)  # type: ignore[no-untyped-call]
        response = await stub.Export(request)
    assert response.partial_success.rejected_spans == 1
    assert "16 bytes" in response.partial_success.error_message


async def test_a_second_console_on_the_same_port_is_told_which_setting_is_wrong(
    otlp: OtlpServer, archive: Archive
) -> None:
    with pytest.raises(OSError, match=f"HONE_CONSOLE_OTLP_PORT: port {otlp.port}"):
        OtlpServer(
            ArchiveWriter(archive), host="127.0.0.1", port=otlp.port, max_message_bytes=1 << 20
        )


def test_times_beyond_what_sqlite_holds_are_clamped() -> None:
    request = export_request(start_time_unix_nano=(1 << 64) - 1, end_time_unix_nano=0)
    (span,), _ = spans_from_proto(request)
    assert span.start_ns == (1 << 63) - 1
    assert span.seconds == 0.0
    assert span.service_name == "unknown_service"
