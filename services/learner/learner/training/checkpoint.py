"""Checkpoints: a folder per step that is there as a whole or not at all.

    step-00000004/
      state.json                 step, policy version, and what the run controller put beside
      trainer.pt                 optimiser, random state, and the value head where there is one
      adapter/                   as peft writes it
      reference/                 the reference adapter, where the run has one of its own

A checkpoint is written into a hidden folder, synced, and renamed. Whatever a crash leaves behind is
hidden and ignored, and swept up by the next save.
"""

import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from learner.training.trainer import Trainer
from modelstore.resolve import staged_folder

FORMAT = 1
STATE = "state.json"
TRAINER = "trainer.pt"
ADAPTER = "adapter"
REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint on disk."""

    folder: Path
    step: int
    policy_version: int
    state: Mapping[str, Any]
    """What the run controller had put beside the weights."""


class CheckpointError(ValueError):
    """A checkpoint is there but cannot be used; the message names the folder and the reason."""


def save_checkpoint(
    root: Path, trainer: Trainer, state: Mapping[str, Any], *, keep: int = 2
) -> Checkpoint:
    """Writes where the trainer stands, then removes all but the newest `keep` checkpoints.

    A checkpoint of the same step is replaced.
    """
    target = root / f"step-{trainer.step:08d}"
    found = {
        "format": FORMAT,
        "step": trainer.step,
        "policy_version": trainer.policy_version,
        "state": dict(state),
    }
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    if target.exists():
        target.rename(root / f".replaced-{target.name}")
    with staged_folder(target) as staging:
        trainer.policy.export_adapter(staging / ADAPTER)
        if trainer.policy.has_reference_adapter:
            trainer.policy.export_reference(staging / REFERENCE)
        torch.save(
            {
                "optimizer": trainer.optimizer.state_dict(),
                "rng": torch.get_rng_state(),
                "value_head": None
                if trainer.policy.value_head is None
                else trainer.policy.value_head.state_dict(),
            },
            staging / TRAINER,
        )
        (staging / STATE).write_text(json.dumps(found, indent=1), encoding="utf-8")
    _sweep(root)
    for old in _folders(root)[keep:]:
        shutil.rmtree(old)
    return _read(target)


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """Returns the newest checkpoint, or None if there is none.

    Raises:
        CheckpointError: the newest one is damaged.
    """
    folders = _folders(root) if root.is_dir() else []
    return _read(folders[0]) if folders else None


def load_checkpoint(checkpoint: Checkpoint, trainer: Trainer) -> None:
    """Puts the trainer where the checkpoint stands.

    Raises:
        CheckpointError: the checkpoint is damaged, or belongs to another adapter or reference.
    """
    folder = checkpoint.folder
    has_reference = (folder / REFERENCE).is_dir()
    if has_reference != trainer.policy.has_reference_adapter:
        raise CheckpointError(
            f"{folder}: the checkpoint {'has' if has_reference else 'has no'} reference adapter, "
            "the run's settings say otherwise"
        )
    try:
        trainer.policy.load_adapter(folder / ADAPTER)
        if has_reference:
            trainer.policy.load_reference(folder / REFERENCE)
        saved = torch.load(folder / TRAINER, weights_only=True)
        if trainer.policy.value_head is not None:
            trainer.policy.value_head.load_state_dict(saved["value_head"])
        trainer.optimizer.load_state_dict(saved["optimizer"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        pickle.UnpicklingError,
    ) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    torch.set_rng_state(saved["rng"])
    trainer.step = checkpoint.step
    trainer.policy_version = checkpoint.policy_version


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
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / STATE}: not a checkpoint's state: {error!r}") from error


def _sweep(root: Path) -> None:
    """Removes what interrupted saves left behind; one learner writes a run's checkpoints."""
    for folder in (*root.glob(".step-*"), *root.glob(".replaced-*")):
        shutil.rmtree(folder)
