"""A policy of which every weight is trained.

The reference for KL is a frozen copy beside it, held only where an algorithm asks for one. It is opened from the same
files as the policy, so that KL at step 0 is exactly 0; a checkpoint keeps its hash and not its weights.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from learner.training.policy import Policy, whole
from modelstore.resolve import ModelUnusableError

MODEL_WEIGHTS = "model.safetensors"
ONE_FILE = "1TB"
"""Larger than any model here: the weights are one file."""


class FullPolicy(Policy):
    """A model of which all weights are trained."""

    def __init__(
        self, model: Any, *, reference: Any | None, value_head: torch.nn.Linear | None = None
    ) -> None:
        """Takes the model, and its frozen copy or None."""
        model.requires_grad_(True)
        super().__init__(model, value_head)
        self._reference = reference
        self._hash = "" if reference is None else weights_hash(reference)

    @property
    def model(self) -> Any:
        """The language model."""
        return self._module

    @property
    def models(self) -> tuple[Any, ...]:
        """The language model and the frozen copy."""
        return (self.model,) if self._reference is None else (self.model, self._reference)

    @property
    def can_refer(self) -> bool:
        """Whether the frozen copy is held."""
        return self._reference is not None

    @property
    def reference_hash(self) -> str:
        """SHA-256 of the frozen copy; empty without one."""
        return self._hash

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """Gives the frozen copy."""
        assert self._reference is not None, "the policy was loaded without a reference"
        with torch.no_grad():
            yield self._reference

    def export(self, folder: Path) -> None:
        """Writes the model as transformers, vLLM and the rollout service open it."""
        # A weight that is used twice is named once.
        once = {name for name, _ in (*self.model.named_parameters(), *self.model.named_buffers())}
        found = self.model.state_dict()
        weights = {}
        for name in sorted(once & found.keys()):
            gathered = whole(found[name])
            if self.writes:
                weights[name] = gathered
        if not self.writes:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(str(folder), state_dict=weights, max_shard_size=ONE_FILE)
        # safetensors writes for its own user alone.
        (folder / MODEL_WEIGHTS).chmod(0o644)


def weights_hash(model: torch.nn.Module) -> str:
    """Returns the SHA-256 of a model's parameters: their names, shapes, number types and bytes."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_trainable(model: torch.nn.Module) -> None:
    """Refuses number types in which small updates are lost.

    Raises:
        ModelUnusableError: the weights are not float32.
    """
    found = {parameter.dtype for parameter in model.parameters()} - {torch.float32}
    if found:
        raise ModelUnusableError(
            f"model.dtype: found {str(found.pop()).removeprefix('torch.')} with train.weights full, where "
            "updates smaller than 1/256 of a weight would be rounded away; float32 is right"
        )
