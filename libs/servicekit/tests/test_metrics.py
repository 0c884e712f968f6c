"""Metrics as Prometheus finds them: a real server, real calls, a real GET."""

import asyncio
import socket
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from servicekit.channels import connect
from servicekit.errors import FailedPrecondition, HoneError, ResourceExhausted
from servicekit.metrics import CallEnd, CallMetrics, MetricsPort
from servicekit.testing import running_server


class Health(health_pb2_grpc.HealthServicer):
    """Answers by the name that is asked about."""

    def __init__(self) -> None:
        self.hanging = asyncio.Event()

    async def Check(self, request, context):
        match request.service:
            case "full":
                raise ResourceExhausted("no room")
            case "ended":
                raise FailedPrecondition("over")
            case "defect":
                raise KeyError("x")
            case "hangs":
                self.hanging.set()
                await asyncio.Event().wait()
        return health_pb2.HealthCheckResponse(status=1)

    async def Watch(self, request, context):
        yield health_pb2.HealthCheckResponse(status=1)
        if request.service == "full":
            raise ResourceExhausted("no room")


@pytest.fixture
def port() -> Iterator[MetricsPort]:
    made = MetricsPort("probe", "127.0.0.1", 0)
    yield made
    made.close()


def scrape(port: MetricsPort) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def test_every_call_is_measured_by_its_status_and_whose_doing_it_was(port: MetricsPort):
    ends: list[CallEnd] = []
    observers = [CallMetrics(port.meter).observe, ends.append]

    health = Health()

    def add(server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(health, server)

    async with running_server(add, observers=observers) as address, connect(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "", "full", "ended", "defect"):
            try:
                await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            except HoneError:
                assert name
        hanging = asyncio.ensure_future(stub.Check(health_pb2.HealthCheckRequest(service="hangs")))
        async with asyncio.timeout(5):
            await health.hanging.wait()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        for name in ("", "full"):
            try:
                async for _ in stub.Watch(health_pb2.HealthCheckRequest(service=name)):
                    pass
            except ResourceExhausted:
                assert name
        async with asyncio.timeout(5):
            while len(ends) < 8:
                await asyncio.sleep(0.005)
    counts = await asyncio.to_thread(scrape, port)
    assert {
        (labels["rpc_method"], labels["rpc_grpc_status_code"], labels["hone_error_attributable"]): n
        for key, n in counts["rpc_server_call_duration_seconds_count"].items()
        for labels in [dict(key)]
    } == {
        ("Check", "OK", ""): 2,
        ("Check", "RESOURCE_EXHAUSTED", "infra"): 1,
        ("Check", "FAILED_PRECONDITION", "client"): 1,
        ("Check", "INTERNAL", "infra"): 1,
        ("Check", "CANCELLED", "client"): 1,
        ("Watch", "OK", ""): 1,
        ("Watch", "RESOURCE_EXHAUSTED", "infra"): 1,
    }
    assert {end.service for end in ends} == {"grpc.health.v1.Health"}
    assert dict(next(iter(counts["target_info"])))["service_name"] == "probe"


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"metrics_port: port {number}"):
            MetricsPort("probe", "127.0.0.1", number)
