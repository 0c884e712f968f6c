import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hone_cli.launcher import table
from hone_cli.launcher.child import ProcessSpec, environment_of
from hone_cli.launcher.layout import Layout
from hone_cli.launcher.logtail import LogTail, Printer, last_complaint, parse_line
from hone_cli.launcher.natsserver import config_text, find_binary
from hone_cli.launcher.plan import UpOptions, make_plan
from hone_cli.launcher.ports import HOST, PortAllocator
from hone_cli.launcher.procfs import SUITE_VARIABLE, start_ticks
from hone_cli.launcher.readiness import nats_probe
from hone_cli.launcher.state import AlreadyRunningError, SuiteLock, read_state
from servicekit.settings import SERVICES, ServiceSettings


def busy_port() -> socket.socket:
    taken = socket.create_server((HOST, 0))
    return taken


def test_port_that_is_busy_is_stepped_over() -> None:
    with busy_port() as taken:
        port = taken.getsockname()[1]
        ports = PortAllocator()
        given = ports.take(port)
        assert given > port
        assert ports.moved == {port: given}
        assert ports.take(port) > given


def test_table_follows_the_services_of_the_house() -> None:
    assert table.PORT_ORDER == SERVICES
    waves = [name for wave in table.START_WAVES for name in wave]
    assert sorted(waves) == sorted(table.DRAIN_ORDER) == sorted(table.SERVICES)


def test_service_logs_what_grpc_says_unless_the_user_chose(tmp_path: Path) -> None:
    spec = ProcessSpec(name="a", argv=(), log_path=tmp_path / "log", environment={"A": "1"})
    assert environment_of(spec, {"GRPC_VERBOSITY": "NONE", "B": "2"}) == {"A": "1", "B": "2"}
    chosen = {"GRPC_VERBOSITY": "DEBUG"}
    assert environment_of(spec, chosen) == {**chosen, "A": "1"}


def test_plan_tells_each_service_its_settings(tmp_path: Path) -> None:
    layout = Layout.in_folder(tmp_path)
    layout.make_folders()
    options = UpOptions(folder=tmp_path, engine="scripted", replicas={"rollout": 2})
    plan = make_plan(options, layout, "suite")
    specs = {spec.name: spec for wave in plan.waves for spec in wave}
    assert set(specs) == {"nats", "rollout-2", *table.SERVICES}
    assert [spec.name for spec in plan.waves[0]] == ["nats"]
    rollout, second = specs["rollout"].environment, specs["rollout-2"].environment
    assert rollout["HONE_ROLLOUT_ENGINE"] == "scripted"
    assert f"{HOST}:{rollout['HONE_ROLLOUT_PORT']}" == plan.endpoints["rollout"]
    assert rollout["HONE_ROLLOUT_PORT"] != second["HONE_ROLLOUT_PORT"]
    assert rollout["HONE_ROLLOUT_DATA_DIR"] != second["HONE_ROLLOUT_DATA_DIR"]
    assert rollout["HONE_ROLLOUT_OTLP_ENDPOINT"] == plan.endpoints["otlp"]
    named = {key.removeprefix("HONE_LEARNER_").lower() for key in specs["learner"].environment}
    assert set(ServiceSettings.model_fields) >= {
        name for name in named if not name.startswith(("hone", "python", "omp"))
    }
    ports = [address.rpartition(":")[2] for address in plan.endpoints.values()]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("rolout",)}, "--only: found 'rolout', expected one of learner"),
        ({"replicas": {"sandbox": 2}}, "only rollout or grader can have replicas"),
        ({"replicas": {"rollout": 0}}, "found rollout=0, expected 1 to 16"),
        ({"engine": "tgi"}, "--engine: found 'tgi', expected auto, transformers, vllm, scripted"),
        ({"only": ("learner",), "replicas": {"rollout": 2}}, "rollout is not among --only"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        UpOptions(folder=tmp_path, **options).check()  # type: ignore[arg-type]


async def test_nats_starts_with_our_configuration(tmp_path: Path) -> None:
    binary = find_binary()
    assert binary is not None
    ports = PortAllocator()
    port, monitor = ports.take(14222), ports.take(18222)
    config = tmp_path / "nats.conf"
    store = tmp_path / 'odd "name"'
    config.write_text(config_text(host=HOST, port=port, monitor_port=monitor, store=store))
    probe = nats_probe(HOST, monitor)
    assert not await probe()
    process = await asyncio.create_subprocess_exec(str(binary), "--config", str(config))
    try:
        async with asyncio.timeout(10):
            while not await probe():
                await asyncio.sleep(0.02)
    finally:
        process.terminate()
        await process.wait()
    assert store.is_dir()


def test_second_launcher_is_told_who_runs(tmp_path: Path) -> None:
    layout = Layout.in_folder(tmp_path)
    first, second = SuiteLock(layout), SuiteLock(layout)
    assert first.acquire("one", detached=False) == []
    with pytest.raises(AlreadyRunningError, match=rf"{tmp_path} as process {os.getpid()}"):
        second.acquire("two", detached=False)
    first.publish({"learner": "127.0.0.1:50051"})
    first.mark_ready()
    state = read_state(layout)
    assert state is not None and state.ready and state.alive
    assert json.loads(layout.endpoints.read_text()) == {"learner": "127.0.0.1:50051"}
    first.release()
    assert not layout.endpoints.exists() and not layout.state.exists()
    assert second.acquire("two", detached=False) == []
    second.release()


def test_what_a_killed_launcher_left_is_cleared(tmp_path: Path) -> None:
    layout = Layout.in_folder(tmp_path)
    layout.make_folders()
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, SUITE_VARIABLE: f"stale-{os.getpid()}"},
        start_new_session=True,
    )
    layout.state.write_text(
        json.dumps({"suite_id": f"stale-{os.getpid()}", "pid": 1, "start_ticks": 1})
    )
    layout.endpoints.write_text('{"learner": "127.0.0.1:1"}')
    lock = SuiteLock(layout)
    assert lock.acquire("new", detached=False) == [left.pid]
    assert not layout.endpoints.exists()
    lock.release()
    assert left.wait(5) == -9


def test_process_number_alone_is_not_identity() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    assert start_ticks(2**22 + 1) is None


def test_log_lines_are_told_for_people() -> None:
    line = json.dumps(
        {
            "time": "2026-01-02T03:04:05.678Z",
            "level": "WARNING",
            "service": "rollout",
            "logger": "x",
            "message": "lease lost",
            "rollout_id": "r1",
            "trace_id": "0",
        }
    )
    read = parse_line(line)
    assert (read.level, read.message) == ("WARNING", "lease lost")
    assert read.text == "03:04:05 WARN lease lost rollout_id=r1"
    assert parse_line("plain text").text == "plain text"
    assert parse_line("[1]").text == "[1]"
    nats = parse_line("[7] 2026/11/29 13:37:51.174 [FTL] Can't listen on port 4222")
    assert (nats.level, nats.message) == ("CRITICAL", "Can't listen on port 4222")
    assert parse_line("[7] 2026/11/29 13:37:51.174 [INF] Server is ready").level == "DEBUG"


def test_tail_prints_whole_lines_and_survives_truncation(tmp_path: Path) -> None:
    path, printed = tmp_path / "a.log", []
    path.write_text("old\n")
    tail = LogTail("a", path, Printer(printed.append, colour=False, names=("a", "long")))
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        tail.step()
        file.write("o\n")
        file.flush()
        tail.step()
    path.write_text("new\n")
    tail.step()
    assert printed == ["a    | one\n", "a    | two\n", "a    | new\n"]


def test_last_complaint_is_the_last_error_of_this_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    old = json.dumps({"level": "ERROR", "message": "old"}) + "\n"
    new = json.dumps({"level": "ERROR", "message": "port 1 is in use", "time": "T" * 24})
    path.write_text(old + new + "\nbye\n")
    assert last_complaint(path, len(old)) == "port 1 is in use"
    assert last_complaint(tmp_path / "none", 0) == ""
    path.write_text(json.dumps({"level": "INFO", "message": "serving", "time": "T" * 24}) + "\n")
    assert last_complaint(path, 0) == ""
    path.write_text("Traceback:\nImportError: no module named torch\n")
    assert last_complaint(path, 0) == "ImportError: no module named torch"
