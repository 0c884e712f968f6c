from collections import Counter

import pytest

from learner.rollouts.plan import (
    reserve_tasks_of_step,
    rows_of_step,
    seed_of,
    slots_of_step,
    tasks_of_step,
)
from trajectory.types import Phase, Slot, Task


def tasks(count: int) -> list[Task]:
    return [Task(task_id=f"t{i}", messages=()) for i in range(count)]


def test_an_epoch_visits_every_task_once_and_epochs_differ() -> None:
    seen = [
        task.task_id
        for step in range(10)
        for task in tasks_of_step(tasks(10), step=step, groups=2, seed=3)
    ]
    assert set(Counter(seen[:10]).values()) == {1}
    assert set(Counter(seen[10:]).values()) == {1}
    assert seen[:10] != seen[10:]


def test_a_step_is_the_same_whenever_it_is_asked_for() -> None:
    first = tasks_of_step(tasks(7), step=5, groups=3, seed=1)
    assert first == tasks_of_step(tasks(7), step=5, groups=3, seed=1)
    assert first != tasks_of_step(tasks(7), step=5, groups=3, seed=2)


def test_quarantined_tasks_are_passed_over() -> None:
    for step in range(6):
        chosen = tasks_of_step(tasks(4), step=step, groups=3, seed=0, quarantined=["t1"])
        assert len(chosen) == 3
        assert all(task.task_id != "t1" for task in chosen)
    with pytest.raises(ValueError, match="no task is left"):
        tasks_of_step(tasks(2), step=0, groups=1, seed=0, quarantined=["t0", "t1"])


def test_slots_are_groups_times_samples() -> None:
    slots = slots_of_step("r", Phase.TRAIN, 4, tasks(3), 2)
    assert len(slots) == 6
    assert Counter(slots.values()) == {"t0": 2, "t1": 2, "t2": 2}
    assert all(slot.step == 4 for slot in slots)


def test_every_attempt_has_a_seed_of_its_own() -> None:
    slot = Slot(run_id="r", phase=Phase.TRAIN, step=0, group_index=0, sample_index=0)
    other = Slot(run_id="r", phase=Phase.TRAIN, step=0, group_index=0, sample_index=1)
    seeds = {seed_of(1, slot, 0), seed_of(1, slot, 1), seed_of(2, slot, 0), seed_of(1, other, 0)}
    assert len(seeds) == 4
    assert seed_of(1, slot, 0) == seed_of(1, slot, 0)


def test_supervised_rows_walk_the_set_in_shuffled_epochs() -> None:
    rows = [i for step in range(5) for i in rows_of_step(10, step=step, batch_size=4, seed=1)]
    assert sorted(rows[:10]) == list(range(10))
    assert sorted(rows[10:]) == list(range(10))


def test_reserve_starts_with_tasks_that_the_step_has_not_and_leaves_out_those_in_quarantine() -> (
    None
):
    known = tasks(6)
    chosen = tasks_of_step(known, step=2, groups=3, seed=0, quarantined=["t5"])
    reserve = reserve_tasks_of_step(
        known, step=2, groups=7, seed=0, chosen=chosen, quarantined=["t5"]
    )
    first, rest = [t.task_id for t in reserve[:2]], [t.task_id for t in reserve]
    assert not {*first} & {t.task_id for t in chosen}
    assert len(rest) == 7
    assert "t5" not in rest
    again = reserve_tasks_of_step(
        known, step=2, groups=7, seed=0, chosen=chosen, quarantined=["t5"]
    )
    assert reserve == again


def test_groups_of_the_reserve_come_after_those_of_the_step() -> None:
    slots = slots_of_step("r", Phase.TRAIN, 0, tasks(2), 2, first_group=5)
    assert {slot.group_index for slot in slots} == {5, 6}
