"""What is trained: a causal language model, and where an algorithm asks for it a head for values or scores.

`lora.py` and `full.py` are the two kinds. Both give the reference policy for KL, and write what others open.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

T = TypeVar("T")


class Policy(ABC):
    """A causal language model of which some weights are trained; see the module."""

    def __init__(self, model: torch.nn.Module, value_head: torch.nn.Linear | None) -> None:
        """Takes the module whose parameters with a gradient are trained."""
        self._module = model
        self.value_head = value_head
        """From hidden states to values or scores, in float32; the reference has none."""
        self.writes = True
        """Whether this process writes exports; with several only one does, and all gather for it."""
        self.roots: dict[int, torch.nn.Module] = {}
        """By the id of a model whose weights are parted, the module in whose forward they are whole."""
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

    @property
    def models(self) -> tuple[Any, ...]:
        """The language model, and the reference where that is another."""
        return (self.model,)

    def run(self, model: Any, work: Callable[[], T]) -> T:
        """Does work on `model`, one of `models`, where its weights are whole.

        Of what it returns, the tensor to go backward from is all of it or in a tuple.
        """
        root = self.roots.get(id(model))
        if root is None:
            return work()
        done: T = root(work)
        return done

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Writes the weights as others open them."""


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that may be parted over ranks as a whole on the CPU; then all ranks must ask."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.cpu().contiguous()
