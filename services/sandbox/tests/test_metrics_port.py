"""The service as a process with its port for Prometheus: a real scrape, the alert rules, and the warm pool."""

import asyncio
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from hone.events.v1 import events_pb2
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from service_process import ROLLOUT, Service

from eventbus.envelope import new_envelope
from eventbus.nats_bus import NatsBus
from eventbus.testing import nats_server
from sandbox import alerts
from servicekit.errors import PermissionDenied

__all__ = ["nats_server"]

RULES = Path(__file__).parents[3] / "deploy" / "alerts" / "sandbox.yaml"
WAIT_SECONDS = 30.0

Scrape = dict[str, dict[tuple[tuple[str, str], ...], float]]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _scrape(port: int) -> Scrape:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    found: Scrape = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def _value(scrape: Scrape, name: str, **labels: str) -> float:
    return sum(
        value for found, value in scrape.get(name, {}).items() if set(labels.items()) <= set(found)
    )


async def _becomes(port: int, name: str, wanted: float) -> Scrape:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            scrape = await asyncio.to_thread(_scrape, port)
            if _value(scrape, name) == wanted:
                return scrape
            await asyncio.sleep(0.1)


def _names_in_rules() -> set[str]:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    text = " ".join(re.sub(r"\{[^}]*\}", "", rule["expr"]) for rule in rules)
    return set(re.findall(r"\b(?:hone|rpc)_\w+", text))


@pytest.fixture
async def service(nats_server, tmp_path):
    made = Service(tmp_path, nats_server.url, metrics_port=_free_port(), warm_max=3)
    await made.start()
    yield made
    if made.process.poll() is None:
        await made.end(signal.SIGKILL)


@pytest.mark.slow
async def test_a_planned_step_is_served_warm_and_all_figures_are_scraped(service, nats_server):
    port = int(service.settings["HONE_SANDBOX_METRICS_PORT"])
    scrape = await _becomes(port, "hone_sandbox_warm", 0.0)
    async with await NatsBus.connect(nats_server.url, name="test") as bus:
        planned = events_pb2.RunStepPlanned(phase=2, step=1, task_ids=["a", "b"], group_size=4)
        await bus.publish(
            new_envelope(planned, source="learner", run_id="run-1", rollout_id="", clock=time.time)
        )
        await _becomes(port, "hone_sandbox_warm", 3.0)
        async with service.connect() as channel:
            stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
            made = await stub.CreateSandbox(
                pb.CreateSandboxRequest(rollout_id=ROLLOUT, run_id="run-1", purpose=1)
            )
            assert (made.sandbox.warm, made.sandbox.template) == (True, "host")
            target = {"rollout_id": ROLLOUT, "sandbox_id": made.sandbox.sandbox_id}
            spec = pb.ExecSpec(**target, exec_id="a", argv=["echo", "warm"])
            assert (await stub.Exec(pb.ExecRequest(exec=spec))).result.stdout == b"warm\n"
            with pytest.raises(PermissionDenied):
                await stub.ListSandboxes(pb.ListSandboxesRequest())
            await _becomes(port, "hone_sandbox_live", 1.0)
            await stub.DestroySandbox(pb.DestroySandboxRequest(**target))
            stats = await stub.GetStats(pb.GetStatsRequest())
            assert (stats.warm_hit_count, stats.leaked_count, stats.infra_error_rate) == (1, 0, 0)
        scrape = await _becomes(port, "hone_sandbox_live", 0.0)
        log = [e.envelope async for e in bus.read(["sandbox_created", "sandbox_destroyed"])]
    assert [event.WhichOneof("payload") for event in log] == [
        "sandbox_created",
        "sandbox_destroyed",
    ]
    assert (log[0].sandbox_created.warm, log[0].sandbox_created.template) == (True, "host")
    assert _names_in_rules() <= set(scrape)
    provisioned = "hone_sandbox_provision_duration_seconds_count"
    assert _value(scrape, provisioned, hone_sandbox_start="warm") == 1
    assert _value(scrape, "hone_sandbox_destroyed_total", hone_sandbox_cause="requested") == 1
    assert _value(scrape, "hone_sandbox_destroyed_total", hone_sandbox_cause="lifetime") == 0
    assert _value(scrape, "hone_sandbox_execs_total", hone_exec_termination="exited") == 1
    calls = "rpc_server_call_duration_seconds_count"
    service_name = "hone.sandbox.v1.SandboxService"
    assert _value(scrape, calls, rpc_service=service_name, rpc_method="Exec") == 1
    assert _value(scrape, calls, rpc_service=service_name, hone_error_attributable="client") == 1
    assert await service.end(signal.SIGTERM) == 0
    assert [said for said in service.said if said["level"] in ("WARNING", "ERROR")] == []


def test_the_rules_are_those_of_the_service():
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    ends = {rule["alert"]: re.findall(r"[>+] ([\d.]+)", rule["expr"]) for rule in rules}
    assert ends == {
        "SandboxProvisioningSlow": [f"{alerts.PROVISION_SECONDS:g}"],
        "SandboxInfrastructureErrors": [f"{alerts.INFRA_ERROR_RATE:g}"],
        "SandboxRolloutTimeouts": [f"{alerts.ROLLOUT_TIMEOUT_RATE:g}"],
        "SandboxLeak": [str(alerts.LEAKED_ABOVE_BASELINE)],
    }


def test_the_rules_fire_above_their_limits_and_not_below():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: it comes with Debian's package prometheus")
    done = subprocess.run(
        [promtool, "test", "rules", RULES.with_name("sandbox_test.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
