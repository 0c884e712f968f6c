"""Three ways to show a run while it goes: a live line with a table, plain lines, and JSON lines."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from hone.common.v1 import run_spec_pb2
from hone.learner.v1 import learner_pb2

from hone_cli.plain import plain
from hone_cli.potential import potential_plain
from hone_cli.progress import RunProgress, Standing
from hone_cli.text import number, safe, span

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sft": (
        "loss",
        "accuracy",
        "health/off_task/logprob",
        "grad_norm",
        "learning_rate",
        "time/train_seconds",
    ),
    "dpo": (
        "loss",
        "rewards/margins",
        "rewards/accuracies",
        "logps/chosen",
        "logps/rejected",
        "eval/rewards/margins",
        "eval/rewards/accuracies",
        "grad_norm",
        "time/train_seconds",
    ),
    "reward_model": (
        "loss",
        "rewards/margins",
        "rewards/accuracies",
        "eval/rewards/margins",
        "eval/rewards/accuracies",
        "grad_norm",
        "time/train_seconds",
    ),
    "grpo": (
        "reward/mean",
        "reward/std",
        "eval/reward/mean",
        "kl",
        "health/off_task/logprob",
        "tool_calls/mean",
        "completions/mean_length",
        "frac_reward_zero_std",
        "rollouts/polluted_share",
        "mismatch_kl/mean",
        "time/rollout_seconds",
        "time/train_seconds",
    ),
    "evaluate": (
        "reward/mean",
        "tool_calls/mean",
        "completions/mean_length",
        "rollouts/polluted_share",
    ),
}
"""Figures of the step table, where a step reports them."""


_SHORT = {
    "completions/mean_length": "tokens",
    "frac_reward_zero_std": "flat",
    "rewards/margins": "margin",
    "rewards/accuracies": "accuracy",
    "logps/chosen": "chosen",
    "logps/rejected": "rejected",
    "eval/rewards/margins": "eval margin",
    "eval/rewards/accuracies": "eval acc",
    "eval/reward/mean": "held out",
    "health/off_task/logprob": "off task",
    "rollouts/polluted_share": "polluted",
    "time/rollout_seconds": "rollout s",
    "time/train_seconds": "train s",
}


class RunView(Protocol):
    """Shows what happens to a run."""

    def started(self, run: learner_pb2.Run) -> None:
        """The run exists and is watched from here."""
        ...

    def step(self, report: learner_pb2.StepReport) -> None:
        """A step is done."""
        ...

    def progress(self, report: learner_pb2.ProgressReport) -> None:
        """The step under way got further."""
        ...

    def note(self, text: str) -> None:
        """Something people should know."""
        ...

    def ended(self, run: learner_pb2.Run) -> None:
        """The run is over, or watching is."""
        ...


def num_steps_of(spec: run_spec_pb2.RunSpec) -> int:
    """Steps that a run will do; 0 for one that only measures."""
    return 0 if spec.algorithm == "evaluate" else spec.train.max_steps


def to_stdout(text: str) -> None:
    """Writes at once, so that a pipe sees each line when it happens."""
    sys.stdout.write(text)
    sys.stdout.flush()


class JsonView:
    """One JSON object a line, for programs."""

    def __init__(self, write: Callable[[str], object] = to_stdout) -> None:
        """Writes to stdout."""
        self._write = write

    def started(self, run: learner_pb2.Run) -> None:
        """Prints the run."""
        self._put("started", run=plain(run))

    def step(self, report: learner_pb2.StepReport) -> None:
        """Prints the step with all its figures."""
        self._put("step", **plain(report))

    def progress(self, report: learner_pb2.ProgressReport) -> None:
        """Prints the counts."""
        self._put("progress", **plain(report))

    def note(self, text: str) -> None:
        """Prints the text."""
        self._put("note", text=text)

    def ended(self, run: learner_pb2.Run) -> None:
        """Prints the run as it ended; an evaluation of several samples with what it says of its tasks."""
        self._put("ended", run=plain(run), **potential_plain(run))

    def _put(self, event: str, **fields: object) -> None:
        self._write(json.dumps({"event": event, **fields}) + "\n")


class StepTable:
    """Lays out one row per step, with a heading before the first."""

    def __init__(self, algorithm: str, num_steps: int) -> None:
        """Picks the columns of an algorithm."""
        self._wanted = COLUMNS.get(algorithm, COLUMNS["grpo"])
        self._num_steps = num_steps
        self._columns: tuple[str, ...] | None = None

    def rows(self, report: learner_pb2.StepReport) -> list[str]:
        """The row of a step; before the first one the heading."""
        lines = []
        if self._columns is None:
            found = tuple(name for name in self._wanted if name in report.metrics)
            self._columns = found or tuple(sorted(report.metrics))[:8]
            lines.append("  ".join(["step".rjust(7), *(_heading(name) for name in self._columns)]))
        cells = [f"{report.step + 1}/{self._num_steps}".rjust(7)]
        for name in self._columns:
            text = number(report.metrics[name]) if name in report.metrics else "-"
            cells.append(text.rjust(len(_heading(name))))
        lines.append("  ".join(cells))
        if report.metrics.get("updates") == 0 and report.metrics.get("frac_reward_zero_std") == 1:
            lines.append("  no update: no two rewards of a group differ")
        return [*lines, *(alarm_text(alarm) for alarm in report.alarms)]


class PlainView:
    """Lines for a log or a pipe: a row per step, and a line when the stage changes."""

    def __init__(
        self,
        write: Callable[[str], object] = to_stdout,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Writes to stdout."""
        self._write = write
        self._clock = clock
        self._table = StepTable("grpo", 0)
        self._tracker = RunProgress(0)
        self._stage: tuple[int, str] | None = None

    def started(self, run: learner_pb2.Run) -> None:
        """Prints the run's id."""
        total = num_steps_of(run.spec)
        self._table = StepTable(run.spec.algorithm, total)
        self._tracker = RunProgress(total)
        self._tracker.begin(run.step, self._clock())
        self._put(f"run {run.run_id}")

    def step(self, report: learner_pb2.StepReport) -> None:
        """Prints the step's row."""
        self._tracker.step_done(report.step, self._clock())
        for line in self._table.rows(report):
            self._put(line)

    def progress(self, report: learner_pb2.ProgressReport) -> None:
        """Prints a line when another stage begins."""
        now = self._clock()
        self._tracker.progressed(
            report.step, report.stage, report.done_count, report.total_count, now
        )
        if self._stage != (report.step, report.stage):
            self._stage = (report.step, report.stage)
            self._put(f"  {progress_text(self._tracker.standing(now))}")

    def note(self, text: str) -> None:
        """Prints the text."""
        self._put(text)

    def ended(self, run: learner_pb2.Run) -> None:
        """Prints nothing; the command prints the outcome."""

    def _put(self, text: str) -> None:
        self._write(f"{text}\n")


class LiveView:
    """A progress line that moves at the bottom of the terminal, with a row per step above it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Draws to stdout."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._clock = clock
        self._console = Console(highlight=False, markup=False)
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=1.0)
        self._table = StepTable("grpo", 0)
        self._tracker = RunProgress(0)

    def started(self, run: learner_pb2.Run) -> None:
        """Begins to draw."""
        total = num_steps_of(run.spec)
        self._table = StepTable(run.spec.algorithm, total)
        self._tracker = RunProgress(total)
        self._tracker.begin(run.step, self._clock())
        self._console.print(f"run {run.run_id}")
        self._bar.start()
        self._draw()

    def step(self, report: learner_pb2.StepReport) -> None:
        """Prints the step's row above the line."""
        self._tracker.step_done(report.step, self._clock())
        for line in self._table.rows(report):
            self._console.print(line, overflow="ellipsis", no_wrap=True)
        self._draw()

    def progress(self, report: learner_pb2.ProgressReport) -> None:
        """Moves the line."""
        now = self._clock()
        self._tracker.progressed(
            report.step, report.stage, report.done_count, report.total_count, now
        )
        self._draw()

    def note(self, text: str) -> None:
        """Prints the text above the line."""
        self._console.print(text)

    def ended(self, run: learner_pb2.Run) -> None:
        """Takes the line away."""
        self._bar.stop()

    def _draw(self) -> None:
        standing = self._tracker.standing(self._clock())
        self._bar.update(
            self._task, completed=standing.fraction, description=progress_text(standing)
        )


def alarm_text(alarm: learner_pb2.Alarm) -> str:
    """An alarm in a line."""
    return f"  ! {safe(alarm.kind)} (step {alarm.step + 1}): {safe(alarm.detail)}"


def choose_view(as_json: bool) -> RunView:
    """JSON where it was asked for, a live line on a terminal, plain lines elsewhere."""
    if as_json:
        return JsonView()
    return LiveView() if sys.stdout.isatty() else PlainView()


def progress_text(standing: Standing) -> str:
    """The progress line in words."""
    parts = []
    if standing.num_steps:
        parts.append(f"step {standing.step}/{standing.num_steps}")
    stage = standing.stage
    if standing.total:
        stage += f" {standing.done}/{standing.total}"
    parts.append(stage)
    if standing.rate is not None:
        parts.append(f"{number(standing.rate)}/s")
    if standing.seconds_left is not None:
        parts.append(f"about {span(standing.seconds_left)} left")
    return ", ".join(parts)


def _heading(metric: str) -> str:
    return _SHORT.get(metric, metric.removesuffix("/mean")).rjust(9)
