"""Which tasks or rows a step takes: a seeded shuffle per epoch, the same after every restart."""

import itertools
import random
from collections.abc import Collection, Sequence

from trajectory.types import Phase, Slot, Task


def tasks_of_step(
    tasks: Sequence[Task],
    *,
    step: int,
    groups: int,
    seed: int,
    quarantined: Collection[str] = (),
) -> list[Task]:
    """Returns the `groups` tasks of a step, without those in quarantine.

    Steps walk through a fresh shuffle of all tasks in each epoch; the result is a pure function of its arguments, so
    the data cursor of a checkpoint is the step alone.

    Raises:
        ValueError: no task is left.
    """
    if all(task.task_id in quarantined for task in tasks):
        raise ValueError(f"no task is left: all {len(tasks)} are in quarantine or the set is empty")
    chosen: list[Task] = []
    position = step * groups
    while len(chosen) < groups:
        epoch, index = divmod(position, len(tasks))
        task = tasks[_order(len(tasks), seed, epoch)[index]]
        if task.task_id not in quarantined:
            chosen.append(task)
        position += 1
    return chosen


def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"hone-plan/{seed}/{epoch}").shuffle(order)
    return order


def reserve_tasks_of_step(
    tasks: Sequence[Task],
    *,
    step: int,
    groups: int,
    seed: int,
    chosen: Sequence[Task],
    quarantined: Collection[str] = (),
) -> list[Task]:
    """Returns the tasks that stand in, in order, for those of a step whose groups turn out without spread.

    A shuffle of the step's own, so that the walk of `tasks_of_step` stays a function of the step alone. Tasks that the
    step has not `chosen` come first; fewer than `groups` are returned only where every task is in quarantine.
    """
    order = [task for task in tasks if task.task_id not in quarantined]
    random.Random(f"hone-reserve/{seed}/{step}").shuffle(order)
    taken = {task.task_id for task in chosen}
    order.sort(key=lambda task: task.task_id in taken)
    return list(itertools.islice(itertools.cycle(order), groups))


def slots_of_step(
    run_id: str,
    phase: Phase,
    step: int,
    tasks: Sequence[Task],
    group_size: int,
    *,
    first_group: int = 0,
) -> dict[Slot, str]:
    """Returns the slots of a step, or of groups from `first_group` on, with the task_id of each."""
    return {
        Slot(
            run_id=run_id, phase=phase, step=step, group_index=group, sample_index=sample
        ): task.task_id
        for group, task in enumerate(tasks, first_group)
        for sample in range(group_size)
    }


def seed_of(run_seed: int, slot: Slot, attempt: int) -> int:
    """Returns the sampling seed of an attempt: 63 bits, a pure function of what it fills."""
    name = (
        f"hone-sample/{run_seed}/{slot.phase}/{slot.step}/{slot.group_index}/"
        f"{slot.sample_index}/{attempt}"
    )
    return random.Random(name).getrandbits(63)


def rows_of_step(
    count: int, *, step: int, batch_size: int, seed: int, left_out: Collection[int] = ()
) -> list[int]:
    """Returns the indices of the supervised rows of a step, by the same walk as tasks, without those left out.

    Raises:
        ValueError: no row is left.
    """
    if len(set(left_out)) >= count:
        raise ValueError(f"no row is left: all {count} are left out")
    chosen: list[int] = []
    position = step * batch_size
    while len(chosen) < batch_size:
        epoch, index = divmod(position, count)
        row = _order(count, seed, epoch)[index]
        if row not in left_out:
            chosen.append(row)
        position += 1
    return chosen
