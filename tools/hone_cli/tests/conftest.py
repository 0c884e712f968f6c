import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_status import rpc_status
from hone.console.v1 import console_pb2, console_pb2_grpc
from hone.events.v1 import events_pb2
from hone.grader.v1 import grader_pb2, grader_pb2_grpc
from hone.learner.v1 import learner_pb2, learner_pb2_grpc

from hone_cli.launcher.child import ProcessSpec
from hone_cli.launcher.procfs import SUITE_VARIABLE, kill_suite
from hone_cli.main import main
from servicekit.errors import HoneError, InvalidArgument, NotFound
from servicekit.status import status_from_error

DUMMY = """
import os, signal, sys, time
out = open(os.environ["DUMMY_OUT"], "a", buffering=1)
name = sys.argv[1]
mode = sys.argv[2] if len(sys.argv) > 2 else "serve"
print(f"start {name} {os.getpid()}", file=out)
if mode == "crash":
    print('{"level": "ERROR", "message": "cannot start: no engine"}', flush=True)
    sys.exit(3)
if mode == "crash-once" and not os.path.exists(os.environ["DUMMY_OUT"] + ".crashed"):
    open(os.environ["DUMMY_OUT"] + ".crashed", "w").close()
    sys.exit(3)
if mode == "child":
    import subprocess
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(f"inner {name} {inner.pid}", file=out)
def stop(*_):
    print(f"stop {name} {os.getpid()}", file=out)
    sys.exit(0)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, stop)
print(f"ready {name} {os.getpid()}", file=out)
while True:
    time.sleep(0.05)
"""


@dataclass
class Dummies:
    """Tiny processes that write down when they start, are ready and stop."""

    folder: Path
    suite_id: str
    said: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder / "events.txt"

    def spec(self, name: str, mode: str = "serve", drain_seconds: float = 5.0) -> ProcessSpec:
        script = self.folder / "dummy.py"
        script.write_text(DUMMY)

        async def ready() -> bool:
            return f"ready {name}" in self.text()

        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-I", "-S", str(script), name, mode),
            log_path=self.folder / f"{name}.log",
            environment={"DUMMY_OUT": str(self.out), SUITE_VARIABLE: self.suite_id},
            ready=ready,
            drain_seconds=drain_seconds,
            hint=f"hint for {name}",
        )

    def text(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    def events(self, *kinds: str) -> list[str]:
        lines = [line.rpartition(" ")[0] for line in self.text().splitlines()]
        return [line for line in lines if line.split()[0] in kinds]

    def pids(self, kind: str, name: str) -> list[int]:
        lines = [line.split() for line in self.text().splitlines()]
        return [int(line[2]) for line in lines if line[:2] == [kind, name]]

    def say(self, text: str, level: str) -> None:
        self.said.append(text)


@pytest.fixture
def dummies(tmp_path: Path) -> Iterator[Dummies]:
    suite_id = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield Dummies(tmp_path, suite_id)
    kill_suite(suite_id)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits until something holds, for at most ten seconds."""

    async def wait(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.02)

    return wait


def refuse(context: grpc.ServicerContext, error: HoneError) -> NoReturn:
    """Ends a call as the suite's own interceptor would."""
    context.abort_with_status(rpc_status.to_status(status_from_error(error)))
    raise AssertionError("abort raises")


class FakeLearner(learner_pb2_grpc.LearnerServiceServicer):
    """Plays back what a test wrote down."""

    def __init__(self) -> None:
        self.uploads: dict[str, bytes] = {}
        self.kinds: list[int] = []
        self.started: list[Any] = []
        self.runs: dict[str, Any] = {}
        self.script: list[Any] = []
        self.refusal: HoneError | None = None
        self.break_after: int | None = None
        self.stop_asked = threading.Event()
        self.steps: dict[str, list[Any]] = {}
        self.export: list[Any] = []
        self.asked: list[Any] = []

    def UploadDataset(self, request_iterator: Any, context: Any) -> Any:
        requests = list(request_iterator)
        data = b"".join(request.chunk for request in requests)
        self.kinds.append(requests[0].kind)
        dataset_id = f"ds_{len(self.uploads)}"
        self.uploads[dataset_id] = data
        return learner_pb2.UploadDatasetResponse(
            dataset_id=dataset_id, row_count=len(data.splitlines())
        )

    def StartRun(self, request: Any, context: Any) -> Any:
        if self.refusal is not None:
            refuse(context, self.refusal)
        self.started.append(request.spec)
        run = learner_pb2.Run(
            run_id="tiny-1",
            spec=request.spec,
            state=learner_pb2.RUN_STATE_RUNNING,
            create_time=Timestamp(seconds=1_700_000_000),
        )
        self.runs[run.run_id] = run
        return learner_pb2.StartRunResponse(run=run)

    def ResumeRun(self, request: Any, context: Any) -> Any:
        if request.run_id not in self.runs:
            refuse(context, NotFound(f"there is no run {request.run_id}"))
        return learner_pb2.ResumeRunResponse(run=self.runs[request.run_id])

    def WatchRun(self, request: Any, context: Any) -> Any:
        for position, response in enumerate(self.script):
            if self.break_after == position:
                self.break_after = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            if response == "wait for stop":
                os.kill(os.getpid(), signal.SIGINT)
                self.stop_asked.wait(10)
            else:
                yield response

    def ExportRun(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        if self.refusal is not None:
            refuse(context, self.refusal)
        yield from self.export

    def RollBackRun(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        if self.refusal is not None:
            refuse(context, self.refusal)
        run = learner_pb2.Run(run_id=request.run_id, policy_version=7)
        return learner_pb2.RollBackRunResponse(run=run, to_step=4, to_policy_version=4)

    def StopRun(self, request: Any, context: Any) -> Any:
        self.stop_asked.set()
        return learner_pb2.StopRunResponse(run=self.runs[request.run_id])

    def GetRun(self, request: Any, context: Any) -> Any:
        if request.run_id not in self.runs:
            refuse(context, NotFound(f"there is no run {request.run_id}"))
        steps = self.steps.get(request.run_id) or [
            item.step for item in self.script if item != "wait for stop" and item.HasField("step")
        ]
        return learner_pb2.GetRunResponse(run=self.runs[request.run_id], steps=steps)

    def ListRuns(self, request: Any, context: Any) -> Any:
        runs = list(self.runs.values())
        start = int(request.page_token or 0)
        end = start + min(request.page_size, 2)
        token = str(end) if end < len(runs) else ""
        return learner_pb2.ListRunsResponse(runs=runs[start:end], next_page_token=token)


class FakeConsole(console_pb2_grpc.ConsoleServiceServicer):
    """Holds what a test puts in."""

    def __init__(self) -> None:
        self.summaries: list[Any] = []
        self.rollouts: dict[str, Any] = {}
        self.findings: list[Any] = []
        self.events: list[Any] = []
        self.ends_after = 0
        self.asked: list[Any] = []

    def ListRuns(self, request: Any, context: Any) -> Any:
        self.ends_after -= 1
        if self.ends_after < 0:
            for summary in self.summaries:
                summary.end = events_pb2.RUN_END_COMPLETED
        return console_pb2.ListRunsResponse(runs=self.summaries)

    def ListRollouts(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        found = [
            reply.summary
            for reply in self.rollouts.values()
            if not request.phase
            or (reply.summary.slot.run_id, reply.summary.slot.phase)
            == (request.run_id, request.phase)
        ]
        return console_pb2.ListRolloutsResponse(rollouts=found)

    def GetRollout(self, request: Any, context: Any) -> Any:
        if request.rollout_id not in self.rollouts:
            refuse(context, NotFound("no such rollout"))
        return self.rollouts[request.rollout_id]

    def ListEvents(self, request: Any, context: Any) -> Any:
        found = [e for e in self.events if e.WhichOneof("payload") == request.type]
        start = int(request.page_token or 0)
        end = start + min(request.page_size, 2)
        token = str(end) if end < len(found) else ""
        return console_pb2.ListEventsResponse(events=found[start:end], next_page_token=token)

    def AuditRun(self, request: Any, context: Any) -> Any:
        if all(summary.run_id != request.run_id for summary in self.summaries):
            refuse(context, NotFound("no such run"))
        return console_pb2.AuditRunResponse(
            findings=self.findings, counts={"slots": 64, "attempts": 66}, stream_sequence=812
        )


class FakeGrader(grader_pb2_grpc.GraderServiceServicer):
    """Accepts definitions that have a name."""

    def ValidateGrader(self, request: Any, context: Any) -> Any:
        definition = json.loads(request.grader_json)
        if "name" not in definition:
            refuse(
                context, InvalidArgument("bad grader", violations={"grader_json.name": "missing"})
            )
        return grader_pb2.ValidateGraderResponse(
            reward_names=[definition["name"]], grader_version="v1"
        )


@dataclass
class Suite:
    """Fake services on loopback, and the command run against them."""

    learner: FakeLearner
    console: FakeConsole
    folder: Path
    capture: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def hone(self, *arguments: str) -> int:
        """Runs the command in this process; keeps what it printed."""
        code = main(arguments)
        self.out, self.err = self.capture.readouterr()
        return code

    def json(self) -> Any:
        return json.loads(self.out)

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        return file


@pytest.fixture
def suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Suite]:
    server = grpc.server(ThreadPoolExecutor(8))
    learner, console = FakeLearner(), FakeConsole()
    learner_pb2_grpc.add_LearnerServiceServicer_to_server(learner, server)
    console_pb2_grpc.add_ConsoleServiceServicer_to_server(console, server)
    grader_pb2_grpc.add_GraderServiceServicer_to_server(FakeGrader(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    (tmp_path / ".hone").mkdir()
    endpoints = {"learner": address, "console": address, "grader": address}
    (tmp_path / ".hone" / "endpoints.json").write_text(json.dumps(endpoints))
    monkeypatch.chdir(tmp_path)
    for service in endpoints:
        monkeypatch.delenv(f"HONE_{service.upper()}_ADDRESS", raising=False)
    try:
        yield Suite(learner, console, tmp_path, capsys)
    finally:
        server.stop(0).wait()
