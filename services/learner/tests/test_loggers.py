"""Loggers hold every step once, whatever became of the process that wrote them, and none of them ends a run."""

import asyncio
import logging
import math
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from learner_world import never_measured
from logged import READERS, Points

from eventbus.memory_bus import MemoryBus
from learner.datasets import DatasetStore
from learner.health.alarms import Alarm
from learner.loggers.base import RunInfo
from learner.loggers.board import Board
from learner.loggers.table import check_installed, is_installed, make_logger
from learner.ports import Restored, Stopped
from learner.runner import Runner
from learner.runs.adapters import AdapterStore
from learner.runs.store import Run, RunState, RunStore, Step
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec, flat
from servicekit.errors import InvalidArgument
from trajectory.types import ToolDefinition

INSTALLED = [
    pytest.param(
        name,
        marks=[pytest.mark.skipif(not is_installed(name), reason=f"{name} is not installed")]
        + ([] if name == "tensorboard" else [pytest.mark.slow]),
    )
    for name in READERS
]


def step(number: int) -> Step:
    return Step(
        step=number, policy_version=number + 1, end_time=1000.0 + number, metrics=told(number)
    )


def told(number: int) -> dict[str, float]:
    return {"loss": number / 4, "reward/mean": 1.0 - number / 4}


def points(*numbers: int) -> Points:
    return {number: sorted(told(number).items()) for number in numbers}


def info(folder: Path) -> RunInfo:
    (folder / "runs" / "r-1").mkdir(parents=True, exist_ok=True)
    return RunInfo(
        run_id="r-1",
        project="tests",
        settings={"algorithm": "grpo", "train.learning_rate": 1e-4, "rollout.tools": "[]"},
        folder=folder / "runs" / "r-1",
        shared=folder,
    )


def held(name: str, folder: Path) -> Points:
    found = READERS[name](folder / "runs" / "r-1", folder)
    return {number: sorted(values) for number, values in found.items()}


@pytest.mark.parametrize("name", INSTALLED)
def test_log_holds_what_it_was_told(name: str, tmp_path: Path) -> None:
    logger = make_logger(name, info(tmp_path))
    logger.begin([])
    for number in range(3):
        logger.step(step(number))
    logger.end("completed")
    assert held(name, tmp_path) == points(0, 1, 2)


@pytest.mark.parametrize("name", INSTALLED)
def test_life_that_goes_on_adds_what_is_missing_and_takes_back_what_no_longer_holds(
    name: str, tmp_path: Path
) -> None:
    first = make_logger(name, info(tmp_path))
    first.begin([step(0)])
    first.step(step(1))
    first.end("stopped")
    second = make_logger(name, info(tmp_path))
    second.begin([step(0), step(1), step(2)])
    second.step(step(3))
    second.end("failed")
    assert held(name, tmp_path) == points(0, 1, 2, 3)
    back = make_logger(name, info(tmp_path))
    back.begin([step(0)])
    back.step(step(1))
    back.end("completed")
    assert held(name, tmp_path) == points(0, 1)


KILLED = """
import sys, signal
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_loggers import info, make_logger, step
logger = make_logger({name!r}, info(Path({folder!r})))
logger.begin([])
for number in range(4):
    logger.step(step(number))
print("told", flush=True)
signal.pause()
"""


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("name", INSTALLED)
def test_after_a_kill_every_step_is_there_once(name: str, tmp_path: Path) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent), name=name, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"told\n"
        process.send_signal(signal.SIGKILL)
    # The run's file had one step more than the logger was told of, and one less.
    for last in (4, 2):
        logger = make_logger(name, info(tmp_path))
        logger.begin([step(number) for number in range(last + 1)])
        logger.step(step(last + 1))
        logger.end("completed")
        assert held(name, tmp_path) == points(*range(last + 2))


class Kept:
    """Keeps what it is told; fails or waits where the test says so."""

    def __init__(self, fail_at: int | None = None, wait: threading.Event | None = None) -> None:
        self.steps: list[Step] = []
        self.ended = ""
        self._fail_at = fail_at
        self._wait = wait

    def begin(self, steps: Sequence[Step]) -> None:
        self.steps += steps

    def step(self, told: Step) -> None:
        if self._wait is not None:
            self._wait.wait(10)
        if told.step == self._fail_at:
            raise OSError("no room")
        self.steps.append(told)

    def end(self, state: str) -> None:
        self.ended = state


def board(makers: Mapping[str, Callable[[], Any]], steps: Sequence[Step] = ()) -> Board:
    return Board("r-1", makers, steps, lambda: 5.0)


def test_logger_that_fails_is_warned_about_once_and_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, bad = Kept(), Kept(fail_at=1)

    def absent() -> Any:
        raise ImportError("no module")

    shown = board({"bad": lambda: bad, "absent": absent, "good": lambda: good})
    for number in range(4):
        shown.step(number, number, told(number))
    shown.close("completed", told(3))
    assert [s.step for s in good.steps] == [0, 1, 2, 3]
    assert (good.ended, bad.ended) == ("completed", "")
    warned = [(r.logger, r.error) for r in caplog.records]  # type: ignore[attr-defined]
    assert warned == [("absent", "no module"), ("bad", "no room")]


def test_step_told_again_counts_once_and_the_last_evaluation_is_a_step_more() -> None:
    kept = Kept()
    shown = board({"kept": lambda: kept}, [step(0), step(1)])
    for number in (1, 2):
        shown.step(number, number, told(number))
    shown.close("completed", told(2) | {"eval/reward/mean": 0.5})
    assert [s.step for s in kept.steps] == [0, 1, 2, 3]
    assert kept.steps[-1].metrics == {"eval/reward/mean": 0.5}


def test_figure_that_stays_no_number_is_no_step_more() -> None:
    kept = Kept()
    shown = board({"kept": lambda: kept}, [])
    shown.step(0, 1, {"kl": math.nan})
    shown.close("completed", {"kl": math.nan})
    assert [s.step for s in kept.steps] == [0]


def test_logger_that_hangs_holds_the_end_of_a_run_up_no_longer_than_it_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = threading.Event()
    stuck = Kept(wait=go)
    shown = Board("r-1", {"stuck": lambda: stuck}, (), lambda: 5.0, close_seconds=0.01)
    shown.step(0, 1, told(0))
    shown.close("completed", {})
    assert "did not finish in time" in caplog.text
    go.set()


def test_absent_package_is_refused_with_the_command_that_installs_it() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_installed(["tensorboard", "wandb", "mlflow"], lambda name: name == "tensorboard")
    assert caught.value.violations == {
        "metrics.loggers": "found wandb, mlflow, which is not installed at the learner; run: "
        "pip install wandb mlflow"
    }


class Core:
    """Takes supervised steps that do nothing; its disk outlives it."""

    def __init__(self, disk: dict[str, Restored]) -> None:
        self._disk = disk

    async def restore(self) -> Restored | None:
        return self._disk.get("last")

    async def sft_step(self, rows: Sequence[int], progress: Any) -> dict[str, float]:
        return {"loss": 0.5}

    async def save(self, restored: Restored) -> None:
        self._disk["last"] = restored

    async def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def interrupt(self) -> None: ...

    async def close(self) -> None: ...


class NoTools:
    async def definitions(self, names: Sequence[str]) -> Mapping[str, ToolDefinition]:
        return {}


class Report:
    """Keeps steps in the run's file, and stops the run after one."""

    def __init__(self, store: RunStore, stop: asyncio.Event, stop_after: int) -> None:
        self._store, self._stop, self._stop_after = store, stop, stop_after

    def progress(self, number: int, stage: str) -> Callable[[int, int], None]:
        return lambda done, total: None

    def alarmed(self, step: int, alarms: Sequence[Alarm]) -> None:
        raise AssertionError(f"alarms in step {step}: {alarms}")

    def step_done(self, number: int, version: int, metrics: Mapping[str, float]) -> None:
        done = Step(step=number, policy_version=version, end_time=1.0, metrics=metrics)
        self._store.append_step("r-1", done)
        if number == self._stop_after:
            self._stop.set()


@pytest.mark.skipif(not is_installed("tensorboard"), reason="tensorboard is not installed")
async def test_run_that_is_stopped_and_resumed_is_whole_in_tensorboard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store, datasets = RunStore(tmp_path / "runs"), DatasetStore(tmp_path / "datasets")
    rows, _ = datasets.store("sft", b'{"text": "abc"}')
    spec = RunSpec.model_validate(
        {
            "algorithm": "sft",
            "model": {"path": "m"},
            "data": {"train": rows},
            "train": {"max_steps": 4},
            "metrics": {"loggers": ["tensorboard"]},
        }
    )
    run = Run(
        run_id="r-1",
        request_id="q",
        spec_json=json_format.MessageToJson(run_spec_to_proto(spec)),
        state=RunState.RUNNING,
        create_time=0.0,
    )
    store.folder("r-1").mkdir(parents=True)
    disk: dict[str, Restored] = {}
    runner = Runner(
        bus=MemoryBus(),
        store=store,
        datasets=datasets,
        adapters=AdapterStore(store),
        make_core=lambda *_: Core(disk),  # type: ignore[arg-type,return-value]
        measure_dtypes=never_measured,
        tools=NoTools(),
        rng=random.Random(0),
    )
    stop = asyncio.Event()
    with pytest.raises(Stopped):
        await runner.run(run, Report(store, stop, 1), stop)  # type: ignore[arg-type]
    stop, run = asyncio.Event(), replace(run, step=2)
    await runner.run(run, Report(store, stop, -1), stop)  # type: ignore[arg-type]
    found = held("tensorboard", tmp_path)
    losses = {number: dict(values).get("loss") for number, values in found.items()}
    assert losses == dict.fromkeys(range(4), 0.5)
    assert all(len(values) == len(dict(values)) for values in found.values())
    assert not caplog.records


def test_settings_of_a_run_are_flat() -> None:
    spec = RunSpec.model_validate(
        {
            "algorithm": "grpo",
            "model": {"path": "m"},
            "data": {"train": "d"},
            "grader": {"type": "answer", "reference": "{{item.answer}}"},
            "rollout": {"tools": ["python"]},
        }
    )
    found = flat(spec)
    assert found["train.learning_rate"] == 1e-4
    assert found["rollout.tools"] == '["python"]'
    assert found["grader"] == '{"reference": "{{item.answer}}", "type": "answer"}'
    assert all(isinstance(value, str | int | float | bool) for value in found.values())
