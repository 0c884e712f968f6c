"""A policy whose adapter is trained over a frozen base model (LoRA, arXiv:2106.09685), through peft.

The reference for KL shares the base model's weights: it is the base alone, or a second, frozen adapter. So KL at step 0
is exactly 0, and no second model is held.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import load_file, save_file

from learner.training.policy import Policy, whole
from modelstore.resolve import ModelUnusableError

POLICY = "default"
"""peft saves the adapter of this name without a folder of its own."""

REFERENCE = "reference"

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

SHAPE = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
"""What an adapter's configuration says of what its weights amount to, besides their names."""


class LoraPolicy(Policy):
    """A causal language model with an adapter; see the module."""

    def __init__(
        self,
        model: Any,
        *,
        has_reference: bool,
        base_hash: str = "",
        value_head: torch.nn.Linear | None = None,
    ) -> None:
        """Takes the model, and the hash of its frozen weights; use `load_policy`."""
        self._peft = model
        self._has_reference = has_reference
        self._base_hash = base_hash
        super().__init__(model, value_head)

    @property
    def model(self) -> Any:
        """The language model, adapter applied."""
        return self._peft.get_base_model()

    @property
    def kept(self) -> Mapping[str, torch.Tensor]:
        """The reference adapter, where there is one."""
        if not self._has_reference:
            return {}
        found = self._module.named_parameters()
        return {name: parameter for name, parameter in found if f".{REFERENCE}." in name}

    @property
    def has_reference_adapter(self) -> bool:
        """Whether the reference is an adapter of its own; else it is the base."""
        return self._has_reference

    @property
    def reference_hash(self) -> str:
        """SHA-256 of the frozen model, over which every adapter stands."""
        return self._base_hash

    def shape(self, *, of_reference: bool) -> Mapping[str, Any]:
        """Returns the `SHAPE` of the adapter, or of the reference adapter."""
        config = self._peft.peft_config[REFERENCE if of_reference else POLICY]
        return {field: getattr(config, field) for field in SHAPE}

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """Gives the language model as the reference policy has it, without gradients."""
        with torch.no_grad():
            if not self._has_reference:
                with self._peft.disable_adapter():
                    yield self.model
                return
            self._peft.base_model.set_adapter(REFERENCE, inference_mode=True)
            try:
                yield self.model
            finally:
                self._peft.base_model.set_adapter(POLICY)

    def export(self, folder: Path) -> None:
        """Writes the adapter."""
        self.export_adapter(folder)

    def export_adapter(self, folder: Path) -> None:
        """Writes the adapter as peft, vLLM and the rollout service open it."""
        self._export(POLICY, folder)

    def export_reference(self, folder: Path) -> None:
        """Writes the reference adapter; there must be one."""
        assert self._has_reference
        self._export(REFERENCE, folder)

    def load_adapter(self, folder: Path) -> None:
        """Replaces the adapter's weights by those of an exported one of the same shape."""
        _load_weights(self._peft, POLICY, folder)

    def load_reference(self, folder: Path) -> None:
        """Replaces the weights of the reference adapter; there must be one."""
        assert self._has_reference
        _load_weights(self._peft, REFERENCE, folder)

    def _export(self, name: str, folder: Path) -> None:
        weights = peft.get_peft_model_state_dict(
            self._peft, adapter_name=name, save_embedding_layers=False
        )
        gathered = {key: whole(tensor) for key, tensor in weights.items()}
        if not self.writes:
            return
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            gathered,
            folder / ADAPTER_WEIGHTS,
            metadata={"format": "pt"},
        )
        # safetensors writes for its own user alone.
        (folder / ADAPTER_WEIGHTS).chmod(0o644)
        config = self._peft.peft_config[name]
        was = config.inference_mode
        config.inference_mode = True
        try:
            config.save_pretrained(str(folder))
        finally:
            config.inference_mode = was
        # peft keeps the layers' names in a set: sorted, equal adapters are equal files.
        file = folder / ADAPTER_CONFIG
        written = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(written["target_modules"], list):
            written["target_modules"].sort()
        file.write_text(json.dumps(written, indent=2, sort_keys=True), encoding="utf-8")


def _load_weights(model: Any, name: str, folder: Path) -> None:
    weights = load_file(folder / ADAPTER_WEIGHTS)
    outcome: Any = peft.set_peft_model_state_dict(model, weights, adapter_name=name)
    missing = [key for key in outcome.missing_keys if f".{name}." in key]
    if missing or outcome.unexpected_keys:
        raise ModelUnusableError(
            f"{str(folder)!r} does not fit the run's adapter: {len(missing)} weights missing, "
            f"{len(outcome.unexpected_keys)} unknown"
        )
