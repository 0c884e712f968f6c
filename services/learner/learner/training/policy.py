"""What is trained: a causal language model, and where an algorithm asks for it a head for values or scores.

`lora.py` and `full.py` are the two kinds. Both give the reference policy for KL, and write what others open.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Policy(ABC):
    """A causal language model of which some weights are trained; see the module."""

    def __init__(self, model: torch.nn.Module, value_head: torch.nn.Linear | None) -> None:
        """Takes the module whose parameters with a gradient are trained."""
        self._module = model
        self.value_head = value_head
        """From hidden states to values or scores, in float32; the reference has none."""
        self._names: dict[str, torch.nn.Parameter] = {}
        self.collect()

    def collect(self) -> None:
        """Finds what is trained; again after something has replaced parameters."""
        found = self._module.named_parameters()
        self._names = {name: parameter for name, parameter in found if parameter.requires_grad}
        if self.value_head is not None:
            self._names |= {f"value_head.{k}": v for k, v in self.value_head.named_parameters()}

    @property
    @abstractmethod
    def model(self) -> Any:
        """The language model as it is trained."""

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """What is trained, by name."""
        return self._names

    @property
    def kept(self) -> Mapping[str, torch.Tensor]:
        """What a checkpoint holds beside what is trained."""
        return {}

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        found: torch.device = next(iter(self._names.values())).device
        return found

    @property
    def has_reference_adapter(self) -> bool:
        """Whether the reference is an adapter of its own."""
        return False

    @property
    def can_refer(self) -> bool:
        """Whether there is a reference policy."""
        return True

    @property
    def reference_hash(self) -> str:
        """SHA-256 of a reference that a checkpoint does not hold; else empty."""
        return ""

    @abstractmethod
    def reference(self) -> AbstractContextManager[Any]:
        """Gives the language model as the reference policy has it, without gradients."""

    def run(self, model: Any, work: Callable[[], T]) -> T:
        """Does work on `model`, which is the policy's or the reference's."""
        return work()

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Writes the weights as others open them."""
