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
from service_process import Service, control_groups

from eventbus.envelope import new_envelope
from eventbus.nats_bus import NatsBus
from eventbus.testing import nats_server
from sandbox.figures import alerts
from servicekit.errors import PermissionDenied, ResourceExhausted

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
    made = Service(
        tmp_path, nats_server.url, metrics_port=_free_port(), warm_max=3, max_sandboxes=3
    )
    await made.start()
    yield made
    if made.process.poll() is None:
        await made.end(signal.SIGKILL)


def _rollout(number: int) -> str:
    return f"01890000-0000-7000-8000-{number:012x}"


async def _create(service: Service, rollout_id: str) -> pb.Sandbox:
    async with service.connect(rollout_id) as channel:
        stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        request = pb.CreateSandboxRequest(rollout_id=rollout_id, run_id="run-1", purpose=1)
        return (await stub.CreateSandbox(request)).sandbox


@pytest.mark.slow
async def test_a_planned_step_is_served_warm_and_all_figures_are_scraped(service, nats_server):
    port = int(service.settings["HONE_SANDBOX_METRICS_PORT"])
    await _becomes(port, "hone_sandbox_warm", 0.0)
    async with await NatsBus.connect(nats_server.url, name="test") as bus:
        planned = events_pb2.RunStepPlanned(phase=2, step=1, task_ids=["a", "b"], group_size=4)
        await bus.publish(
            new_envelope(planned, source="learner", run_id="run-1", rollout_id="", clock=time.time)
        )
        await _becomes(port, "hone_sandbox_warm", 3.0)
        made = [await _create(service, _rollout(number)) for number in range(3)]
        assert [(one.warm, one.template) for one in made] == [(True, "host")] * 3
        refused = await asyncio.gather(
            *(_create(service, _rollout(number)) for number in range(3, 30)), return_exceptions=True
        )
        assert all(isinstance(error, ResourceExhausted) for error in refused)
        assert all(error.retry_after_seconds > 0 for error in refused)
        scrape = await _use_and_end(service, port, made[0])
        log = [e.envelope async for e in bus.read(["sandbox_created", "sandbox_destroyed"])]
    assert [event.WhichOneof("payload") for event in log] == [
        *["sandbox_created"] * 3,
        "sandbox_destroyed",
    ]
    assert (log[0].sandbox_created.warm, log[0].sandbox_created.template) == (True, "host")
    _check_figures(scrape)
    assert await service.end(signal.SIGTERM) == 0
    assert [(said["message"], said["threshold"]) for said in service.loud()] == [
        ("ALERT: infra_error_rate is over its threshold", 0.05)
    ]


async def _use_and_end(service: Service, port: int, sandbox: pb.Sandbox) -> Scrape:
    target = {"rollout_id": sandbox.rollout_id, "sandbox_id": sandbox.sandbox_id}
    async with service.connect(sandbox.rollout_id) as channel:
        stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        spec = pb.ExecSpec(**target, exec_id="a", argv=["echo", "warm"])
        assert (await stub.Exec(pb.ExecRequest(exec=spec))).result.stdout == b"warm\n"
        with pytest.raises(PermissionDenied):
            await stub.ListSandboxes(pb.ListSandboxesRequest())
        await _becomes(port, "hone_sandbox_live", 3.0)
        await stub.DestroySandbox(pb.DestroySandboxRequest(**target))
        stats = await stub.GetStats(pb.GetStatsRequest())
        assert (stats.warm_hit_count, stats.leaked_count) == (3, 0)
        assert stats.infra_error_rate == pytest.approx(27 / 33)
        return await _becomes(port, "hone_sandbox_live", 2.0)


def _check_figures(scrape: Scrape) -> None:
    assert _names_in_rules() <= set(scrape)
    provisioned = "hone_sandbox_provision_duration_seconds_count"
    assert _value(scrape, provisioned, hone_sandbox_start="warm") == 3
    assert _value(scrape, "hone_sandbox_destroyed_total", hone_sandbox_cause="requested") == 1
    assert _value(scrape, "hone_sandbox_destroyed_total", hone_sandbox_cause="lifetime") == 0
    assert _value(scrape, "hone_sandbox_execs_total", hone_exec_termination="exited") == 1
    calls = "rpc_server_call_duration_seconds_count"
    name = "hone.sandbox.v1.SandboxService"
    assert _value(scrape, calls, rpc_service=name, rpc_method="Exec") == 1
    assert _value(scrape, calls, rpc_service=name, hone_error_attributable="client") == 1
    assert _value(scrape, calls, rpc_service=name, hone_error_attributable="infra") == 27


@pytest.mark.slow
@pytest.mark.fault
async def test_a_warm_pool_dies_with_its_manager_and_nobody_is_told(nats_server, tmp_path):
    (tmp_path / "templates.yaml").write_text("host: {warm: 3}\n")
    port = _free_port()
    service = Service(
        tmp_path,
        nats_server.url,
        metrics_port=port,
        templates_file=tmp_path / "templates.yaml",
    )
    for _ in range(2):
        await service.start()
        scrape = await _becomes(port, "hone_sandbox_warm", 3.0)
        assert _value(scrape, "hone_sandbox_leaked") == 0
        assert await service.end(signal.SIGKILL) == -signal.SIGKILL
    await service.start()
    await _becomes(port, "hone_sandbox_warm", 3.0)
    made = await _create(service, _rollout(1))
    assert made.warm
    assert await service.end(signal.SIGTERM) == 0
    async with await NatsBus.connect(nats_server.url, name="test") as bus:
        log = [e.envelope async for e in bus.read(["sandbox_created", "sandbox_destroyed"])]
    assert [event.WhichOneof("payload") for event in log] == [
        "sandbox_created",
        "sandbox_destroyed",
    ]
    assert log[1].sandbox_destroyed.cause == "manager_lost"
    assert control_groups(service) == []


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
