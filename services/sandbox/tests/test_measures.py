"""Figures, and the alarms on them."""

import logging

import pytest

from sandbox.figures.alerts import Alarms
from sandbox.figures.measures import Measures
from sandbox.types import BoxKey, Caller, Cause, Command, Purpose, Role, SandboxInfo
from servicekit.metrics import CallEnd, silent_meter

SERVICE = "hone.sandbox.v1.SandboxService"


@pytest.fixture
def measures(clock) -> Measures:
    return Measures(clock, silent_meter())


def call(measures: Measures, attributable: str = "", **changes: str) -> None:
    fields = {"service": SERVICE, "method": "Exec", "code": "OK"} | changes
    measures.call_ended(CallEnd(**fields, attributable=attributable, seconds=0.1))


def provisioned(measures: Measures, seconds: float, *, warm: bool = False) -> None:
    key = BoxKey(rollout_id="r", purpose=Purpose.AGENT, sequence=0)
    measures.provisioned(
        SandboxInfo(
            sandbox_id="sbx_1",
            key=key,
            run_id="run-1",
            epoch=1,
            backend="scripted",
            isolation="none",
            rootfs_digest="",
            create_time=0.0,
            deadline_time=0.0,
            idle_deadline_time=0.0,
            provision_seconds=seconds,
            warm=warm,
        )
    )


def said(caplog) -> list[tuple[str, float, float]]:
    found = [
        (record.getMessage(), record.figure, record.threshold)
        for record in caplog.records
        if record.name == "sandbox.figures.alerts"
    ]
    caplog.clear()
    return found


def test_only_our_own_faults_count_and_only_calls_through_the_service(measures):
    for attributable in ("infra", "client", "workload", ""):
        call(measures, attributable)
    call(measures, "infra", method="GetStats")
    call(measures, "infra", service="grpc.health.v1.Health")
    assert measures.calls.counts() == (1, 4)


def test_each_figure_is_said_once_when_it_crosses_and_once_when_it_is_back(measures, clock, caplog):
    caplog.set_level(logging.INFO)
    alarms = Alarms(measures)
    alarms.check(0, 0)
    assert said(caplog) == []
    for number in range(100):
        call(measures, "infra" if number < 6 else "")
        measures.destroyed(Cause.LIFETIME if number < 2 else Cause.OUTCOME, polluted=False)
        provisioned(measures, 10.5 if number < 10 else 0.1)
    for _ in range(3):
        alarms.check(58, 7)
    assert said(caplog) == [
        ("ALERT: provision_p95_seconds is over its threshold", 10.5, 10.0),
        ("ALERT: leaked_count is over its threshold", 58, 57),
        ("ALERT: infra_error_rate is over its threshold", 0.06, 0.05),
        ("ALERT: rollout_timeout_rate is over its threshold", 0.02, 0.01),
    ]
    clock.now += 700
    for _ in range(3):
        alarms.check(57, 7)
    assert [text for text, _, _ in said(caplog)] == [
        "alert over: provision_p95_seconds is back",
        "alert over: leaked_count is back",
        "alert over: infra_error_rate is back",
        "alert over: rollout_timeout_rate is back",
    ]


def test_figures_at_the_limit_and_rates_over_few_raise_no_alarm(measures, caplog):
    alarms = Alarms(measures)
    for _ in range(19):
        call(measures, "infra")
        measures.destroyed(Cause.LIFETIME, polluted=False)
    for number in range(100):
        provisioned(measures, 60.0 if number >= 96 else 10.0)
    alarms.check(50, 0)
    assert said(caplog) == []
    call(measures)
    alarms.check(50, 0)
    assert [(text, figure) for text, figure, _ in said(caplog)] == [
        ("ALERT: infra_error_rate is over its threshold", 0.95)
    ]


def test_provisioning_is_taken_over_the_last_and_over_a_time(measures, clock):
    assert measures.provisioning().p50_seconds == 0.0
    provisioned(measures, 4.0)
    clock.now += 700
    for seconds in (1.0, 2.0, 3.0):
        provisioned(measures, seconds, warm=True)
    assert measures.provisioning().p50_seconds == 2.5
    assert measures.provisioning(600.0).p50_seconds == 2.0
    assert measures.provisioning(600.0).p95_seconds == 3.0  # never below the median, however few
    assert (measures.created_count, measures.warm_hit_count) == (4, 3)


async def test_the_fleet_raises_the_alarm_on_a_leak(suite, backend, caplog):
    for _ in range(51):
        made = (await suite.create(suite.rollout_id())).info
        await suite.fleet.end_rollout(made.key.rollout_id)
    await suite.fleet.expire()
    assert said(caplog) == []
    for box in backend.boxes.values():
        box.destroyed = False
    await suite.fleet.expire()
    assert said(caplog) == [("ALERT: leaked_count is over its threshold", 51, 50)]


async def test_stats_say_what_was_measured(suite, clock):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id, lifetime_seconds=10.0)).info
    caller = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    await suite.manager.run(caller, rollout_id, info.sandbox_id, Command(exec_id="a", argv=("x",)))
    other = (await suite.create(suite.rollout_id())).info
    await suite.fleet.end_rollout(other.key.rollout_id)
    clock.now += 11
    await suite.fleet.expire()
    for attributable in ("infra", "", "", "client"):
        call(suite.measures, attributable)
    stats = suite.manager.stats()
    assert (stats.infra_error_rate, stats.rollout_timeout_rate) == (0.25, 0.5)
    clock.now += 700
    stats = suite.manager.stats()
    assert (stats.infra_error_rate, stats.rollout_timeout_rate) == (0.0, 0.0)
