"""Weights & Biases, offline: a run that `wandb sync` sends when a person wants it, in the run's folder `wandb`."""

import shutil
from collections.abc import Sequence
from typing import Any

import wandb

from learner.loggers.base import RunInfo
from learner.runs.store import Step

FOLDER = "wandb"


class WandbLogger:
    """Writes one offline run per life of the run, under one id, and removes those of its earlier lives."""

    def __init__(self, run: RunInfo) -> None:
        """Writes nothing yet."""
        self._run = run
        self._wandb: Any = None

    def begin(self, steps: Sequence[Step]) -> None:
        """Writes the steps into an offline run, which then takes the place of older ones."""
        run = self._run
        # Its helper process takes an id once, and an earlier life of this run may have given it.
        wandb.teardown()
        old = list((run.folder / FOLDER).glob("offline-run-*"))
        self._wandb = wandb.init(
            mode="offline",
            project=run.project,
            id=run.run_id,
            name=run.run_id,
            dir=str(run.folder),
            config=dict(run.settings),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
        for step in steps:
            self.step(step)
        for folder in old:
            shutil.rmtree(folder)

    def step(self, step: Step) -> None:
        """Adds the figures of a step."""
        self._wandb.log(dict(step.metrics), step=step.step)

    def end(self, state: str) -> None:
        """Closes the offline run."""
        self._wandb.summary["state"] = state
        self._wandb.finish(exit_code=1 if state == "failed" else 0)
        wandb.teardown()
