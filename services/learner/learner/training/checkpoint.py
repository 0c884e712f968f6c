"""Checkpoints: a folder per step that is there as a whole or not at all.

    step-00000004/
      state.json                 step, policy version, hash of a reference that is not held here, what multiplies
                                 float32, and what the run controller put beside
      shards/                    what is trained, its optimiser, and the reference adapter where the run has one of its
                                 own, as torch.distributed.checkpoint writes them: any number of ranks reads them
      random.pt                  random state
      adapter/                   as peft writes it, where an adapter is trained
      reference/                 the same of the reference adapter

A checkpoint is written into a hidden folder, synced, and renamed. Whatever a crash leaves behind is hidden and ignored,
and swept up by the next save.
"""

import json
import pickle
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from learner.runs.checkpoints import prune
from learner.training.lora import ADAPTER_CONFIG, LoraPolicy
from learner.training.trainer import Trainer
from modelstore.compute import float32_backend_in_use
from modelstore.resolve import staged_folder

FORMAT = 2
STATE = "state.json"
SHARDS = "shards"
RANDOM = "random.pt"
ADAPTER = "adapter"
REFERENCE = "reference"
SINGLE_FIELDS = ("step",)
"""Optimiser state that is one number for a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint on disk."""

    folder: Path
    step: int
    policy_version: int
    state: Mapping[str, Any]
    """What the run controller had put beside the weights."""
    reference_hash: str = ""
    """Of a reference that the checkpoint does not hold."""
    float32_backend: str = ""
    """What multiplied float32 so far; empty where that was not kept."""


class CheckpointError(ValueError):
    """A checkpoint is there but cannot be used; the message names the folder and the reason."""


DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    CheckpointException,
)
"""What reading a damaged or foreign checkpoint raises."""


def save_checkpoint(
    root: Path, trainer: Trainer, state: Mapping[str, Any], *, keep: int = 2
) -> Checkpoint:
    """Writes where the trainer stands, then removes all but the newest `keep` checkpoints and the best.

    A checkpoint of the same step is replaced. With several ranks all call it; the first one moves the folder in place.
    """
    target = root / f"step-{trainer.step:08d}"
    ranks = trainer.ranks
    if ranks.index > 0:
        _write_weights(Path(ranks.tell("")), trainer)
        ranks.tell("")
        return _read(target)
    found = {
        "format": FORMAT,
        "step": trainer.step,
        "policy_version": trainer.policy_version,
        "reference_hash": trainer.policy.reference_hash,
        "float32_backend": float32_backend_in_use(),
        "state": dict(state),
    }
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    if target.exists():
        target.rename(root / f".replaced-{target.name}")
    with staged_folder(target) as staging:
        ranks.tell(str(staging))
        _write_weights(staging, trainer)
        torch.save(torch.get_rng_state(), staging / RANDOM)
        (staging / STATE).write_text(json.dumps(found, indent=1), encoding="utf-8")
    _sweep(root)
    prune(root, keep)
    ranks.tell("")
    return _read(target)


@contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    """Raises what torch found as an error like others: its own is a BaseException, which no boundary of a run takes.

    Raises:
        CheckpointError: names the folder and what was found, for example a full disk.
    """
    try:
        yield
    except CheckpointException as error:
        found = "; ".join(str(failure[0]) for failure in error.failures.values())
        raise CheckpointError(f"{folder}: {found}") from error


def _write_weights(staging: Path, trainer: Trainer) -> None:
    """Writes this rank's shards; whole adapters are gathered and written by the first."""
    with _quiet():
        alone = trainer.ranks.count == 1
        with plain_errors(staging):
            save(_shards(trainer), checkpoint_id=staging / SHARDS, no_dist=alone)
    policy = trainer.policy
    if isinstance(policy, LoraPolicy):
        policy.export_adapter(staging / ADAPTER)
        if policy.has_reference_adapter:
            policy.export_reference(staging / REFERENCE)


def _shards(trainer: Trainer) -> dict[str, Any]:
    """Returns the tensors of a trainer by their names in a checkpoint."""
    found: dict[str, Any] = {f"kept.{name}": kept for name, kept in trainer.policy.kept.items()}
    for name, parameter in trainer.policy.parameters.items():
        found[f"trained.{name}"] = parameter.detach()
        for field, value in trainer.optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{field}.{name}"] = value
    return found


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """Returns the newest checkpoint, or None if there is none.

    Raises:
        CheckpointError: the newest one is damaged.
    """
    folders = _folders(root) if root.is_dir() else []
    return _read(folders[0]) if folders else None


def load_checkpoint(checkpoint: Checkpoint, trainer: Trainer) -> None:
    """Puts the trainer where the checkpoint stands; it may have been written by another number of ranks.

    Raises:
        CheckpointError: the checkpoint is damaged, or belongs to other weights, another adapter or reference.
    """
    folder = checkpoint.folder
    has_reference = (folder / REFERENCE).is_dir()
    if has_reference != trainer.policy.has_reference_adapter:
        raise CheckpointError(
            f"{folder}: the checkpoint {'has' if has_reference else 'has no'} reference adapter, "
            "the run's settings say otherwise"
        )
    if isinstance(trainer.policy, LoraPolicy):
        _expect_shapes(folder, trainer.policy)
    try:
        known = set(FileSystemReader(folder / SHARDS).read_metadata().state_dict_metadata)
        _expect_optimizer(trainer, known)
        wanted = _shards(trainer)
        if set(wanted) != known:
            missing, further = sorted(set(wanted) - known), sorted(known - set(wanted))
            raise CheckpointError(
                f"{folder}: the checkpoint is of other weights: {len(missing)} are missing, {len(further)} unknown, "
                f"first {(missing + further)[0]}"
            )
        if checkpoint.reference_hash != trainer.policy.reference_hash:
            raise CheckpointError(
                f"{folder}: the run's base or reference had hash {checkpoint.reference_hash or 'none'}, the one that "
                f"its settings name has {trainer.policy.reference_hash or 'none'}; the files of model.path, "
                "model.adapter or model.reference have changed"
            )
        with torch.no_grad(), _quiet(), plain_errors(folder):
            load(wanted, checkpoint_id=folder / SHARDS, no_dist=trainer.ranks.count == 1)
        torch.set_rng_state(torch.load(folder / RANDOM, weights_only=True))
    except CheckpointError:
        raise
    except DAMAGE as error:
        raise CheckpointError(f"{folder}: {error}") from error
    trainer.step = checkpoint.step
    trainer.policy_version = checkpoint.policy_version


def _expect_shapes(folder: Path, policy: LoraPolicy) -> None:
    """Refuses adapters whose weights amount to something else than they did: their files have changed meanwhile."""
    for part in (ADAPTER, REFERENCE):
        file = folder / part / ADAPTER_CONFIG
        if not file.is_file():
            continue
        try:
            was = json.loads(file.read_text(encoding="utf-8"))
            now = policy.shape(of_reference=part == REFERENCE)
            changed = [
                f"{key} {was[key]} is {now[key]}"
                for key in now
                if was.get(key, now[key]) != now[key]
            ]
        except DAMAGE as error:
            raise CheckpointError(f"{file}: {error}") from error
        if changed:
            source = "model.adapter" if part == ADAPTER else "model.adapter or model.reference"
            raise CheckpointError(
                f"{file}: {', '.join(changed)} now; put {ADAPTER_CONFIG} of {source} back as it was"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from warning that a single process is one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _expect_optimizer(trainer: Trainer, known: set[str]) -> None:
    """Makes room for the optimiser state that a checkpoint holds, and for no other."""
    for name, parameter in trainer.policy.parameters.items():
        fields = [key.split(".")[1] for key in known if key.startswith("optimizer.")]
        fields = sorted({field for field in fields if f"optimizer.{field}.{name}" in known})
        trainer.optimizer.state[parameter] = {
            field: torch.zeros((), device=parameter.device)
            if field in SINGLE_FIELDS
            else torch.zeros_like(parameter)
            for field in fields
        }


def _folders(root: Path) -> list[Path]:
    """Returns whole checkpoints, newest first."""
    found = [folder for folder in root.glob("step-*") if (folder / STATE).is_file()]
    return sorted(found, key=lambda folder: folder.name, reverse=True)


def _read(folder: Path) -> Checkpoint:
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise CheckpointError(
                f"{folder / STATE}: format {found['format']}, this version reads {FORMAT}"
            )
        return Checkpoint(
            folder=folder,
            step=found["step"],
            policy_version=found["policy_version"],
            state=found["state"],
            reference_hash=found["reference_hash"],
            float32_backend=found.get("float32_backend", ""),
        )
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / STATE}: not a checkpoint's state: {error!r}") from error


def _sweep(root: Path) -> None:
    """Removes what interrupted saves left behind; one learner writes a run's checkpoints."""
    for folder in (*root.glob(".step-*"), *root.glob(".replaced-*")):
        shutil.rmtree(folder)
