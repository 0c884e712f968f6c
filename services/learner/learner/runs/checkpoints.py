"""Which checkpoints of a run there are, which is the best, which are kept, and how a run goes back to one.

Works on folders and `state.json` alone and loads no weights; `training/checkpoint.py` writes and reads what is inside.

    checkpoints/
      step-00000004/             after four steps
      step-00000004-v00000006/   the same place in the run with the weights of an earlier checkpoint: version 6
      scores.json                how good each policy version was, as far as it was measured

A version's score is the held-out reward that its policy earned, and the training reward of the rollouts that it acted
in. Both become known after its checkpoint was written, so they are kept beside the checkpoints, by version.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from learner.health.alarms import TRAINING_REWARD
from learner.runs.store import reading, write_atomically
from modelstore.resolve import staged_folder
from servicekit.errors import FailedPrecondition, NotFound

STATE = "state.json"
SCORES = "scores.json"
BEST = "best"
LATEST = "latest"
Choice = int | str
"""Steps after which a checkpoint stands, or BEST, or LATEST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A whole checkpoint on disk."""

    folder: Path
    step: int
    policy_version: int
    written: Mapping[str, Any]
    """Its state.json."""

    @property
    def state(self) -> Mapping[str, Any]:
        """What the run controller had put beside the weights."""
        found: Mapping[str, Any] = self.written["state"]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """That a run went back; goes into its checkpoints, so that it is told even after a crash."""

    request_id: str
    step: int
    """Steps that the run has trained; it goes on with the next one."""
    version: int
    """The version that was made."""
    from_version: int
    """The newest before."""
    to_step: int
    to_version: int
    """Whose weights it has."""


def stored(root: Path) -> list[Stored]:
    """Returns the whole checkpoints below a folder, newest first.

    Raises:
        DataLoss: the state of one is spoilt.
    """
    found = []
    for folder in root.glob("step-*"):
        try:
            found.append(_stored(folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return sorted(found, key=lambda one: (one.step, one.policy_version), reverse=True)


def _stored(folder: Path) -> Stored:
    remedy = "remove the folder, and the run does without this checkpoint"
    with reading(folder / STATE, remedy):
        written = json.loads((folder / STATE).read_text(encoding="utf-8"))
        step, version = int(written["step"]), int(written["policy_version"])
        if not isinstance(written["state"], dict):
            raise TypeError("state is no object")
        return Stored(folder=folder, step=step, policy_version=version, written=written)


def choose(root: Path, choice: Choice) -> Stored:
    """Returns one checkpoint.

    Raises:
        FailedPrecondition: there is none at all. NotFound: that one is not kept; the message names those that are.
    """
    found = stored(root)
    if not found:
        raise FailedPrecondition(
            "the run has no checkpoint yet; it has one after its first step", reason="NO_CHECKPOINT"
        )
    if choice == LATEST:
        return found[0]
    if choice == BEST:
        version = Scores(root).best([one.policy_version for one in found])
        return next((one for one in found if one.policy_version == version), found[0])
    for one in found:
        if one.step == choice:
            return one
    kept = ", ".join(str(one.step) for one in reversed(found))
    raise NotFound(
        f"no checkpoint after step {choice} is kept; those after steps {kept} are "
        "(train.keep_checkpoints keeps more)"
    )


def prune(root: Path, keep: int) -> None:
    """Removes all checkpoints but the newest `keep` and the best."""
    found = stored(root)
    best = Scores(root).best([one.policy_version for one in found])
    for one in found[keep:]:
        if one.policy_version != best:
            # Without its state it is no checkpoint any more, should a crash come in the middle.
            (one.folder / STATE).unlink()
            shutil.rmtree(one.folder)


def plan_rollback(root: Path, choice: Choice, *, request_id: str, version_gap: int) -> RolledBack:
    """Says what going back to a checkpoint will make; changes nothing. What was made before is answered as before.

    Args:
        root: the folder of checkpoints.
        choice: which one.
        request_id: of the caller.
        version_gap: how much higher the new version is than the newest; more than the staleness that the run allows, so
            that no rollout of the weights that were given up is trained on.

    Raises:
        FailedPrecondition: there is no checkpoint, or the chosen one is the newest. NotFound: it is not kept.
    """
    found = stored(root)
    done = rollbacks_of(found[0].state) if found else []
    for one in done:
        if one.request_id == request_id:
            return one
    target = choose(root, choice)
    newest = found[0]
    if done and (done[-1].version, done[-1].to_version) == (
        newest.policy_version,
        target.policy_version,
    ):
        # Asked for again, under another id: those weights are the newest already.
        return done[-1]
    if target.folder == newest.folder:
        raise FailedPrecondition(
            f"the checkpoint after step {target.step} is the newest: there is nothing to go back from",
            reason="ALREADY_THERE",
        )
    return RolledBack(
        request_id=request_id,
        step=newest.step,
        version=newest.policy_version + version_gap,
        from_version=newest.policy_version,
        to_step=target.step,
        to_version=target.policy_version,
    )


def roll_back(root: Path, planned: RolledBack) -> None:
    """Puts the weights, optimiser and random state of an earlier checkpoint at the end of the run, as a new version.

    What the controller knows (step, cursor, quarantine) stays that of the newest checkpoint: slots and rows that were
    used are not used again. Becomes true in one rename; done again, it changes nothing.
    """
    found = {one.policy_version: one for one in stored(root)}
    if planned.version in found:
        return
    target, newest = found[planned.to_version], found[planned.from_version]
    entries = [*newest.state.get("rollbacks", []), asdict(planned)]
    state = {
        **target.written,
        "step": planned.step,
        "policy_version": planned.version,
        "state": {**newest.state, "rollbacks": entries},
    }
    Scores(root).copy(planned.to_version, planned.version)
    with staged_folder(root / f"step-{planned.step:08d}-v{planned.version:08d}") as staging:
        link_tree(target.folder, staging, _link)
        # A new file: the old one is shared with the checkpoint that it came from.
        (staging / STATE).unlink()
        (staging / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")


def rollbacks_of(state: Mapping[str, Any]) -> list[RolledBack]:
    """Returns what a checkpoint tells of rollbacks, oldest first."""
    return [RolledBack(**entry) for entry in state.get("rollbacks", [])]


class Scores:
    """How good policy versions were; see the module."""

    def __init__(self, root: Path) -> None:
        """Reads and writes beside the checkpoints of `root`."""
        self._path = root / SCORES

    def note(self, version: int, figures: Mapping[str, float], held_out: str) -> None:
        """Keeps what a step's figures say of the version that acted in it; a reward that was known before stays.

        Args:
            version: of the policy.
            figures: of the step.
            held_out: name of the figure that says how good the policy truly is.
        """
        known = self._read()
        found = {"held_out": figures.get(held_out), "training": figures.get(TRAINING_REWARD)}
        # What is not a number could be neither better nor worse than another.
        said = {k: value for k, value in found.items() if value is not None and isfinite(value)}
        if said:
            known[str(version)] = known.get(str(version), {}) | said
            self._write(known)

    def copy(self, version: int, to: int) -> None:
        """Gives a version the score of another one with the same weights."""
        known = self._read()
        if str(version) in known:
            known[str(to)] = known[str(version)]
            self._write(known)

    def best(self, versions: Collection[int]) -> int | None:
        """Returns the best of these; the earliest of equals, which is closest to the reference.

        Where any was held against the held-out reward, only those count that were. None if nothing is known.
        """
        known = self._read()
        for name in ("held_out", "training"):
            scored = {
                version: known[str(version)][name]
                for version in sorted(versions)
                if name in known.get(str(version), {})
            }
            if scored:
                return max(scored, key=lambda version: (scored[version], -version))
        return None

    def of(self, version: int) -> float | None:
        """Returns a version's score: held out, else in training."""
        entry = self._read().get(str(version), {})
        return entry.get("held_out", entry.get("training"))

    def _read(self) -> dict[str, dict[str, float]]:
        remedy = "remove the file: the scores begin anew, and the best checkpoint with them"
        try:
            with reading(self._path, remedy):
                found = json.loads(self._path.read_text(encoding="utf-8"))
                return {
                    str(int(version)): {
                        name: float(value) for name, value in entry.items() if isfinite(value)
                    }
                    for version, entry in found.items()
                }
        except FileNotFoundError:
            return {}

    def _write(self, known: Mapping[str, Mapping[str, float]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(known, indent=1).encode())


def standing_steps(steps: Sequence[Any], rollbacks: Sequence[RolledBack]) -> list[Any]:
    """Returns the steps whose updates are in the weights: those that a rollback gave up are left out.

    Args:
        steps: of the run, with `policy_version`, the version that each made.
        rollbacks: of the run.
    """
    gone = [(one.to_version, one.from_version) for one in rollbacks]
    return [
        step for step in steps if not any(low < step.policy_version <= high for low, high in gone)
    ]


def link_checkpoint(
    root: Path, choice: Choice, target: Path, link: Callable[[str, str], object] | None = None
) -> Stored:
    """Chooses a checkpoint and puts its files into a new folder as well, though the run goes on and removes some.

    Args:
        root: the folder of checkpoints.
        choice: which one.
        target: the new folder.
        link: puts one file to another path; by default the disk's link.

    Raises:
        FailedPrecondition, NotFound, DataLoss: as of `choose`. OSError: the disk takes no more.
    """
    while True:
        chosen = choose(root, choice)
        state = chosen.folder / STATE
        try:
            before = state.stat().st_ino
            link_tree(chosen.folder, target, link or _link)
            # Who removes a checkpoint begins with its state, so that the copy is whole where that still stands.
            if state.stat().st_ino == before:
                return chosen
        except OSError:
            if state.is_file():
                raise
        shutil.rmtree(target, ignore_errors=True)


def link_tree(source: Path, target: Path, link: Callable[[str, str], object]) -> None:
    """Puts the files of a checkpoint, which nobody changes, into another folder as well."""
    shutil.copytree(source, target, copy_function=link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """Shares a file that nobody changes; where the disk cannot, it is copied."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
