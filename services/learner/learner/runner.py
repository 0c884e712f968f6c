"""Puts a run together: its spec, its data, its log, its training core, and the job for its algorithm."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from google.protobuf import json_format
from hone.common.v1 import run_spec_pb2

from eventbus.bus import EventBus
from learner.datasets import DatasetStore
from learner.jobs.context import JobContext
from learner.jobs.evaluate import run_evaluate
from learner.jobs.reinforce import ReinforcementJob
from learner.jobs.rows import RowJob, RowSteps
from learner.loggers.base import MetricsLogger, RunInfo
from learner.loggers.board import Board, LoggedReporter
from learner.loggers.table import check_installed, make_logger
from learner.ports import RowData, Stopped, TrainingCore
from learner.rollouts.runlog import BusRunLog
from learner.runs.adapters import AdapterStore
from learner.runs.checkpoints import RolledBack
from learner.runs.dtype_choice import AUTO, choice_without_measuring, choose_dtype
from learner.runs.manager import RunReporter
from learner.runs.store import Run, RunStore
from learner.workers.dtype_probe import MeasureDtypes
from runspec.convert import run_spec_from_proto
from runspec.schema import RunSpec, flat
from servicekit.errors import FailedPrecondition
from trajectory.types import ToolDefinition


class Tools(Protocol):
    """Where the descriptions of tools come from."""

    async def definitions(self, names: Sequence[str]) -> Mapping[str, ToolDefinition]:
        """Returns the named tools."""
        ...


class MakeCore(Protocol):
    """Makes the training core of a run."""

    def __call__(
        self,
        spec: RunSpec,
        folder: Path,
        adapter: Path | None,
        data: RowData,
    ) -> TrainingCore:
        """Takes the spec, the run's folder, the starting adapter, and rows of a run without rollouts."""
        ...


class Runner:
    """Carries out runs; its `run` is the manager's job."""

    def __init__(
        self,
        *,
        bus: EventBus,
        store: RunStore,
        datasets: DatasetStore,
        adapters: AdapterStore,
        make_core: MakeCore,
        measure_dtypes: MeasureDtypes,
        tools: Tools,
        rng: random.Random,
    ) -> None:
        """Works for one learner."""
        self._bus = bus
        self._store = store
        self._datasets = datasets
        self._adapters = adapters
        self._make_core = make_core
        self._measure_dtypes = measure_dtypes
        self._tools = tools
        self._rng = rng

    async def run(self, run: Run, reporter: RunReporter, stop: asyncio.Event) -> dict[str, float]:
        """Carries out a run from its last checkpoint and returns its figures."""
        run = await self._with_dtype(run, reporter, stop)
        spec = spec_of(run)
        folder = self._store.folder(run.run_id)
        run_log = await self._log(run)
        # Nothing may fail from here to the `try`: its thread is ended there.
        board = self._board(run, spec)
        context = JobContext(
            run_id=run.run_id,
            spec=spec,
            log=run_log,
            report=LoggedReporter(reporter, board),
            stop=stop,
            folder=folder,
            monotonic=time.monotonic,
            history=partial(self._store.steps, run.run_id),
            life=run.life,
        )
        state, metrics = "failed", dict[str, float]()
        try:
            metrics = await self._carry_out(context, run.step)
            state = "completed"
        except Stopped:
            state = "stopped"
            raise
        finally:
            await asyncio.to_thread(board.close, state, metrics)
        return metrics

    async def _with_dtype(self, run: Run, reporter: RunReporter, stop: asyncio.Event) -> Run:
        """Returns the run with what `model.dtype: auto` stands for, which is found out once."""
        spec = spec_of(run)
        if spec.model.dtype != AUTO:
            return run
        choice = choice_without_measuring(spec)
        if choice is None:
            reporter.progress(run.step, "measuring")(0, 0)
            choice = choose_dtype(await self._measure_dtypes(spec, stop))
        reporter.dtype_chosen(choice)
        return replace(run, dtype_choice=choice)

    async def _carry_out(self, context: JobContext, step: int) -> dict[str, float]:
        spec = context.spec
        adapter = self._adapters.resolve(spec.model.adapter)
        if spec.algorithm == "evaluate":
            return await run_evaluate(context, self._datasets.tasks(spec.data.eval), adapter)
        # A packaged model is unpacked the first time, which takes a while.
        context.report.progress(step, "loading")(0, 0)
        return await self._train(context, adapter)

    def _board(self, run: Run, spec: RunSpec) -> Board:
        run_id, folder = run.run_id, self._store.folder(run.run_id)
        info = RunInfo(
            run_id=run_id,
            project=spec.metrics.project,
            settings=flat(spec),
            folder=folder,
            shared=folder.parent.parent,
        )
        makers: dict[str, Callable[[], MetricsLogger]] = {
            name: partial(make_logger, name, info) for name in spec.metrics.loggers
        }
        # A run that went back to an earlier checkpoint takes the steps after it anew.
        steps = [step for step in self._store.steps(run_id) if step.step < run.step]
        return Board(run_id, makers, steps, time.time)

    async def _train(self, context: JobContext, adapter: Path | None) -> dict[str, float]:
        spec = context.spec
        data = await self._row_data(spec)
        core = self._make_core(spec, context.folder, adapter, data)
        watch = asyncio.create_task(_interrupt_on(context.stop, core))
        try:
            if spec.reinforces:
                tasks = self._datasets.tasks(spec.data.train)
                wants_eval = bool(spec.eval.every_steps and spec.data.eval)
                eval_tasks = self._datasets.tasks(spec.data.eval) if wants_eval else []
                metrics = await ReinforcementJob(context, core, tasks, eval_tasks).run()
            else:
                metrics = await RowJob(context, core, _row_steps(core, data)).run()
            await core.export(self._result_folder(context))
            return metrics
        finally:
            watch.cancel()
            await core.close()

    def _result_folder(self, context: JobContext) -> Path:
        """Returns where the run's result goes; a reward model is no adapter that another run could start from."""
        if context.spec.algorithm == "reward_model":
            return self._adapters.reward_model(context.run_id)
        if context.spec.train.weights == "full":
            return self._adapters.model(context.run_id)
        return self._adapters.folder(context.run_id)

    async def _row_data(self, spec: RunSpec) -> RowData:
        limit = spec.health.max_rows or None
        off_task = self._datasets.sft_rows(spec.health.off_task) if spec.health.off_task else []
        watched = off_task[:limit]
        if spec.compares:
            return RowData(
                off_task=watched,
                pairs=self._datasets.preferences(spec.data.train),
                held_out=self._datasets.preferences(spec.data.eval) if spec.data.eval else (),
                tools=await self._tools.definitions(spec.rollout.tools),
            )
        if spec.algorithm == "sft":
            return RowData(
                off_task=watched,
                conversations=self._datasets.sft_rows(spec.data.train),
                tools=await self._tools.definitions(spec.rollout.tools),
            )
        return RowData(off_task=watched)

    async def announce_end(self, run: Run) -> None:
        """Tells the log how a run ended."""
        log = await self._log(run)
        await log.finished(run.state.value, run.detail, run.metrics, run.life)

    async def announce_rollback(self, run: Run, rolled: RolledBack) -> None:
        """Tells the log that a run went back to earlier weights."""
        log = await self._log(run)
        await log.rolled_back(rolled)

    async def _log(self, run: Run) -> BusRunLog:
        spec = spec_of(run)
        temperature = spec.rollout.temperature
        measured_at = spec.eval.temperature
        return BusRunLog(
            run_id=run.run_id,
            spec=_message_of(run),
            bus=self._bus,
            blobs=await self._bus.blobs(),
            clock=time.time,
            rng=self._rng,
            temperature=temperature,
            eval_temperature=temperature if measured_at is None else measured_at,
        )


def spec_of(run: Run) -> RunSpec:
    """Returns what a run should do, with the number type that was chosen for it."""
    return run_spec_from_proto(_message_of(run))


def _message_of(run: Run) -> run_spec_pb2.RunSpec:
    message = json_format.Parse(run.spec_json, run_spec_pb2.RunSpec())
    if run.dtype_choice is not None:
        message.model.dtype = run.dtype_choice.dtype
    return message


def _row_steps(core: TrainingCore, data: RowData) -> RowSteps:
    if data.conversations:
        return RowSteps(num_rows=len(data.conversations), step=core.sft_step)
    return RowSteps(
        num_rows=len(data.pairs),
        step=core.preference_step,
        measure=core.measure if data.held_out else None,
    )


async def _interrupt_on(stop: asyncio.Event, core: TrainingCore) -> None:
    """Lets a long update end at its next safe point when the run is stopped."""
    await stop.wait()
    core.interrupt()


def check_supported(spec: RunSpec) -> None:
    """Refuses what this version does not do, before a run exists.

    Raises:
        FailedPrecondition: a setting asks for more than there is.
        InvalidArgument: a logger's package is not installed.
    """
    check_installed(spec.metrics.loggers)
    if spec.algorithm == "sft" and spec.data.eval:
        raise FailedPrecondition(
            "data.eval: an sft run does not measure; leave it out and use `hone evaluate`",
            reason="NOT_SUPPORTED",
            violations={"data.eval": "has no effect with algorithm sft"},
        )
