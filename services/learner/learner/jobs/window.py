"""Which steps are open: asked for and not trained yet, at most `max_staleness` + 1, oldest first.

Step n is opened once step n - max_staleness is the next to train, so the oldest policy that acts in it is at most
`max_staleness` versions behind when it is trained. Staleness is bounded by what is asked for, not by throwing away what
came too late. With `max_staleness: 0` a step is opened when the step before is trained: the loop is synchronous.
"""

from collections.abc import Sequence

from learner.jobs.context import JobContext
from learner.jobs.progressed import Progressed
from learner.rollouts.collect import Collector, Filling
from learner.rollouts.ledger import StepLedger
from learner.rollouts.plan import reserve_tasks_of_step, slots_of_step, tasks_of_step
from trajectory.types import Phase, Task


class Window:
    """The open steps of a run."""

    def __init__(self, context: JobContext, collector: Collector, tasks: Sequence[Task]) -> None:
        """Opens steps over `tasks`."""
        self._context = context
        self._collector = collector
        self._tasks = tasks
        self._by_id = {task.task_id: task for task in tasks}
        self._open: dict[int, Filling] = {}

    async def advance(self, at: Progressed) -> Filling:
        """Opens every step that may be, and returns the next to train."""
        train = self._context.spec.train
        for step in range(at.step, min(at.step + train.max_staleness + 1, train.max_steps)):
            if step not in self._open:
                self._open[step] = await self._fill(at, step)
        return self._open[at.step]

    def trained(self, at: Progressed) -> None:
        """Takes the next step to train out of the window, and moves the run's cursor on."""
        del self._open[at.step]
        del at.planned[str(at.step)]
        still = [filling.after_sequence for filling in self._open.values()]
        at.cursor = min(still, default=self._collector.position)

    async def _fill(self, at: Progressed, step: int) -> Filling:
        context, train = self._context, self._context.spec.train
        planned = at.planned.setdefault(str(step), self._plan(at, step))
        tasks = [self._by_id[task_id] for task_id in planned]
        chosen, reserve = tasks[: train.batch_size], tasks[train.batch_size :]
        run_id, size = context.run_id, train.group_size
        # Every step until then makes one version.
        version = at.version + step - at.step
        ledger = StepLedger(
            slots_of_step(run_id, Phase.TRAIN, step, chosen, size),
            context.budget(),
            reserve=slots_of_step(
                run_id, Phase.TRAIN, step, reserve, size, first_group=len(chosen)
            ),
            versions=range(version - train.max_staleness, version + 1),
            by_turn=train.turn_rewards,
        )
        await context.log.planned(Phase.TRAIN, step, [task.task_id for task in chosen], size)
        return self._collector.open((Phase.TRAIN, step), ledger, self._by_id)

    def _plan(self, at: Progressed, step: int) -> list[str]:
        """Returns the tasks of a step's groups, then those of its reserve."""
        train, seed = self._context.spec.train, self._context.spec.seed
        chosen = tasks_of_step(
            self._tasks,
            step=step,
            groups=train.batch_size,
            seed=seed,
            quarantined=at.quarantined,
        )
        reserve = reserve_tasks_of_step(
            self._tasks,
            step=step,
            groups=train.max_resampled_groups,
            seed=seed,
            chosen=chosen,
            quarantined=at.quarantined,
        )
        return [task.task_id for task in (*chosen, *reserve)]
