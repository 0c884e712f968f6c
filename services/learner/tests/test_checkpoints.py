"""Checkpoints are kept by age and by score, and a run goes back to one without losing its place in the log."""

import errno
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner.runs.checkpoints import (
    BEST,
    LATEST,
    RolledBack,
    Scores,
    choose,
    link_checkpoint,
    plan_rollback,
    prune,
    roll_back,
    rollbacks_of,
    standing_steps,
    stored,
)
from learner.runs.store import Step
from servicekit.errors import DataLoss, FailedPrecondition, NotFound

HELD_OUT = "eval/reward/mean"


def write(root: Path, step: int, version: int | None = None, **state: Any) -> Path:
    """Writes what stands for a checkpoint: its state and a file of weights."""
    folder = root / f"step-{step:08d}"
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "weights").write_text(f"weights of step {step}")
    made = {"format": 9, "step": step, "policy_version": version or step, "state": state}
    (folder / "state.json").write_text(json.dumps(made))
    return folder


def back(root: Path, choice: int | str, request_id: str, gap: int = 1) -> RolledBack:
    planned = plan_rollback(root, choice, request_id=request_id, version_gap=gap)
    roll_back(root, planned)
    return planned


def steps(root: Path) -> list[int]:
    return [one.step for one in stored(root)]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_newest_ones_and_the_best_are_kept(tmp_path: Path, keep: int) -> None:
    rewards = [0.1, 0.2, 0.9, 0.3, 0.2, 0.4, 0.1]
    for step, reward in enumerate(rewards):
        write(tmp_path, step)
        if step:
            Scores(tmp_path).note(step - 1, {"reward/mean": rewards[step - 1]}, HELD_OUT)
        prune(tmp_path, keep)
        assert len(stored(tmp_path)) <= keep + 1
        assert reward is not None
    newest = list(range(6, 6 - keep, -1))
    assert steps(tmp_path) == [*newest, 2]
    assert choose(tmp_path, BEST).step == 2
    assert choose(tmp_path, LATEST).step == 6


def test_best_is_by_held_out_reward_where_any_was_measured(tmp_path: Path) -> None:
    scores = Scores(tmp_path)
    scores.note(1, {"reward/mean": 0.2, HELD_OUT: 0.5}, HELD_OUT)
    scores.note(2, {"reward/mean": 0.9}, HELD_OUT)
    scores.note(3, {"reward/mean": 0.3, HELD_OUT: 0.4}, HELD_OUT)
    assert scores.best([1, 2, 3]) == 1
    assert scores.best([2]) == 2
    assert scores.best([7]) is None
    assert scores.of(1) == 0.5
    assert scores.of(2) == 0.9


def test_earliest_of_equals_is_the_best(tmp_path: Path) -> None:
    for version in (5, 3, 4):
        Scores(tmp_path).note(version, {"reward/mean": 1.0}, HELD_OUT)
    assert Scores(tmp_path).best([3, 4, 5]) == 3


def test_without_any_score_the_best_is_the_newest(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    assert choose(tmp_path, BEST).step == 2
    prune(tmp_path, 1)
    assert steps(tmp_path) == [2]


def test_checkpoint_that_is_not_kept_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="no checkpoint yet"):
        choose(tmp_path, LATEST)
    write(tmp_path, 3)
    write(tmp_path, 5)
    with pytest.raises(NotFound, match="after steps 3, 5 are"):
        choose(tmp_path, 4)


def test_half_written_folders_are_none(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / ".step-00000003-abc").mkdir()
    assert steps(tmp_path) == [1]


def test_going_back_keeps_the_place_in_the_log_and_makes_a_newer_version(tmp_path: Path) -> None:
    write(tmp_path, 4, cursor=40)
    write(tmp_path, 6, cursor=60, quarantined=["t"])
    Scores(tmp_path).note(4, {"reward/mean": 0.7}, HELD_OUT)
    made = back(tmp_path, 4, "a", 3)
    assert (made.step, made.version, made.to_step, made.to_version) == (6, 9, 4, 4)
    newest = stored(tmp_path)[0]
    assert (newest.step, newest.policy_version) == (6, 9)
    assert newest.state["cursor"] == 60
    assert newest.state["quarantined"] == ["t"]
    assert (newest.folder / "adapter" / "weights").read_text() == "weights of step 4"
    assert rollbacks_of(newest.state) == [made]
    assert Scores(tmp_path).of(9) == 0.7
    # The checkpoints that it came from are as they were.
    assert [(one.step, one.policy_version) for one in stored(tmp_path)][1:] == [(6, 6), (4, 4)]
    assert (
        json.loads((tmp_path / "step-00000004" / "state.json").read_text())["policy_version"] == 4
    )


def test_rollback_that_was_cut_off_is_done_by_the_same_plan(tmp_path: Path) -> None:
    for step in (4, 6):
        write(tmp_path, step)
    planned = plan_rollback(tmp_path, 4, request_id="a", version_gap=1)
    (tmp_path / ".step-00000006-v00000007-x").mkdir()
    assert [one.policy_version for one in stored(tmp_path)] == [6, 4]
    assert plan_rollback(tmp_path, 4, request_id="a", version_gap=1) == planned
    roll_back(tmp_path, planned)
    roll_back(tmp_path, planned)
    assert [one.policy_version for one in stored(tmp_path)] == [7, 6, 4]


def test_repeated_request_goes_back_once_and_another_one_again(tmp_path: Path) -> None:
    for step in (4, 5, 6):
        write(tmp_path, step)
    first = back(tmp_path, 4, "a", 1)
    assert back(tmp_path, 5, "a", 1) == first
    second = back(tmp_path, 5, "b", 1)
    assert (second.version, second.from_version) == (8, 7)
    assert rollbacks_of(stored(tmp_path)[0].state) == [first, second]


def test_going_back_to_the_newest_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 4)
    with pytest.raises(FailedPrecondition, match="nothing to go back from"):
        back(tmp_path, 4, "a", 1)


def test_steps_that_were_given_up_do_not_stand(tmp_path: Path) -> None:
    for step in (4, 8):
        write(tmp_path, step)
    rolled = [back(tmp_path, 4, "a", 1)]
    made = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]
    done = [
        Step(step=at, policy_version=version, end_time=0.0, metrics={})
        for at, version in enumerate(made)
    ]
    assert [step.policy_version for step in standing_steps(done, rolled)] == [1, 2, 3, 4, 10, 11]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_order_of_saves_and_rollbacks_versions_rise_and_the_best_stays(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    write(tmp_path, 0)
    step = version = 0
    best = -1.0
    for turn in range(12):
        if rng.random() < 0.25 and len(stored(tmp_path)) > 1:
            target = rng.choice(stored(tmp_path)[1:])
            if target.step == stored(tmp_path)[0].step:
                continue
            version = back(tmp_path, target.step, str(turn), 2).version
        else:
            reward = rng.random()
            best = max(best, reward)
            Scores(tmp_path).note(version, {"reward/mean": reward}, HELD_OUT)
            step, version = step + 1, version + 1
            write(tmp_path, step, version)
        prune(tmp_path, 2)
        newest = stored(tmp_path)[0]
        assert (newest.step, newest.policy_version) == (step, version)
        if best >= 0:
            found = Scores(tmp_path).of(choose(tmp_path, BEST).policy_version)
            assert found == best


@pytest.mark.parametrize("unknown", [math.nan, math.inf, -math.inf])
def test_figure_that_is_no_number_makes_no_version_the_best(tmp_path: Path, unknown: float) -> None:
    scores = Scores(tmp_path)
    scores.note(1, {"reward/mean": unknown, HELD_OUT: unknown}, HELD_OUT)
    scores.note(2, {"reward/mean": 0.5}, HELD_OUT)
    scores.note(3, {"reward/mean": 0.4, HELD_OUT: unknown}, HELD_OUT)
    assert scores.best([1, 2, 3]) == 2
    assert scores.of(1) is None
    # As an older version of this service wrote it.
    (tmp_path / "scores.json").write_text('{"1": {"held_out": NaN}, "2": {"held_out": 0.5}}')
    assert scores.best([1, 2]) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"1": 5}', '{"1": {"held_out": "x"}}', '{"a": {}}']
)
def test_spoilt_scores_are_named_and_no_checkpoint_is_removed_by_them(
    tmp_path: Path, content: str
) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    (tmp_path / "scores.json").write_text(content)
    with pytest.raises(DataLoss, match=r"scores.json is spoilt .* remove the file"):
        prune(tmp_path, 1)
    with pytest.raises(DataLoss, match="is spoilt"):
        choose(tmp_path, BEST)
    assert steps(tmp_path) == [3, 2, 1]
    assert choose(tmp_path, LATEST).step == 3


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"step": 2, "policy_version": 2}']
)
def test_checkpoint_whose_state_is_spoilt_is_named(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, 1)
    (write(tmp_path, 2) / "state.json").write_bytes(content)
    with pytest.raises(DataLoss, match=r"step-00000002/state.json is spoilt .* remove the folder"):
        choose(tmp_path, LATEST)


@pytest.mark.parametrize("removes", [prune, lambda root, _: replaced(root / "step-00000001")])
@pytest.mark.parametrize("at", [0, 1])
def test_copy_of_a_checkpoint_that_goes_away_meanwhile_is_whole_and_of_one(
    tmp_path: Path, removes: Callable[[Path, int], None], at: int
) -> None:
    root, calls = tmp_path / "checkpoints", 0
    write(root, 1)

    def link(source: str, target: str) -> None:
        nonlocal calls
        if calls == at:
            write(root, 2)
            removes(root, 1)
        calls += 1
        shutil.copy2(source, target)

    chosen = link_checkpoint(root, LATEST, tmp_path / "copy", link)
    assert chosen.step == 2
    assert (tmp_path / "copy" / "adapter" / "weights").read_text() == "weights of step 2"
    assert json.loads((tmp_path / "copy" / "state.json").read_text())["step"] == 2


def replaced(folder: Path) -> None:
    """Puts another checkpoint in the place of one, as a save of the same step does."""
    old = folder.rename(folder.with_name(".replaced"))
    write(folder.parent, 1)
    shutil.rmtree(old)


def test_full_disk_ends_the_copy(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", 1)

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", target)

    with pytest.raises(OSError, match="No space left"):
        link_checkpoint(tmp_path / "checkpoints", LATEST, tmp_path / "copy", full)


def test_going_back_again_to_where_the_run_is_makes_nothing_new(tmp_path: Path) -> None:
    for step in (4, 5, 6):
        write(tmp_path, step)
    first = back(tmp_path, 4, "a")
    assert back(tmp_path, 4, "b") == first
    second = back(tmp_path, 5, "c")
    assert second.version == first.version + 1
    assert back(tmp_path, 4, "a") == first
    assert len(stored(tmp_path)) == 5
