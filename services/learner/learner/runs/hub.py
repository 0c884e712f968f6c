"""What watchers of runs are told: finished steps and where the step under way stands."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from learner.runs.store import Run, RunState, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the step under way stands."""

    step: int
    stage: str
    done: int
    total: int


class RunHub:
    """Live news of one run; every watcher sees each step once and the newest progress."""

    def __init__(self, run: Run, steps: list[Step]) -> None:
        """Starts from what is on disk."""
        self.run = run
        self._steps = list(steps)
        self._progress: Progress | None = None
        self._changed = asyncio.Event()

    def step_done(self, run: Run, step: Step) -> None:
        """Tells that a step is done; a step told twice counts once."""
        self.run = run
        if not self._steps or step.step > self._steps[-1].step:
            self._steps.append(step)
        self._wake()

    def progressed(self, progress: Progress) -> None:
        """Tells where the step under way stands."""
        self._progress = progress
        self._wake()

    def changed(self, run: Run) -> None:
        """Tells the run's new state."""
        self.run = run
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[Step | Progress | Run]:
        """Yields past and future steps, newest progress between, and the run when it has ended."""
        seen, last = 0, None
        while True:
            changed = self._changed
            while seen < len(self._steps):
                seen += 1
                yield self._steps[seen - 1]
            if self.run.state not in (RunState.QUEUED, RunState.RUNNING):
                yield self.run
                return
            if self._progress is not None and self._progress is not last:
                last = self._progress
                yield last
            await changed.wait()
