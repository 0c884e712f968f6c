"""Going back to an earlier checkpoint: the run's result goes first, then the checkpoint is made, then the log is told.

Each part may be repeated. After a crash in the middle the run is stopped, and the same request does the rest; what was
not told yet is told when the run is resumed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from learner.runs.adapters import AdapterStore
from learner.runs.checkpoints import Choice, RolledBack, plan_rollback, roll_back
from learner.runs.store import Run, RunStore
from runspec.schema import RunSpec

Tell = Callable[[Run, RolledBack], Awaitable[None]]


class Rollbacks:
    """Takes runs back; the manager sees to it that they are not going."""

    def __init__(
        self,
        store: RunStore,
        adapters: AdapterStore,
        tell: Tell,
        spec_of: Callable[[Run], RunSpec],
    ) -> None:
        """Works on the runs of `store` and tells the log through `tell`; `spec_of` reads what a run should do."""
        self._spec_of = spec_of
        self._store = store
        self._adapters = adapters
        self._tell = tell

    async def plan(self, run: Run, choice: Choice, request_id: str) -> RolledBack:
        """Says what going back will make; changes nothing.

        Raises:
            FailedPrecondition: there is no checkpoint, or the chosen one is the newest. NotFound: it is not kept.
        """
        spec = self._spec_of(run)
        return await asyncio.to_thread(
            plan_rollback,
            self._root(run),
            choice,
            request_id=request_id,
            version_gap=spec.train.max_staleness + 1,
        )

    async def carry_out(self, run: Run, planned: RolledBack) -> None:
        """Makes it so. The result of a complete run has the weights that are given up: resuming makes it anew."""
        await asyncio.to_thread(self._adapters.discard, run.run_id)
        await asyncio.to_thread(roll_back, self._root(run), planned)
        await self._tell(run, planned)

    def _root(self, run: Run) -> Path:
        return self._store.folder(run.run_id) / "checkpoints"
