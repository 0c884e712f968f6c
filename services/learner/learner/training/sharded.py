"""Several processes that hold a part of every weight each: FSDP2 (torch.distributed.fsdp.fully_shard).

Weights are whole only inside the forward of a root module, so that scoring and loss run in there: elsewhere whole and
parted tensors would meet. Gradients add up over the ranks, since a batch's loss is a sum over its micro-batches.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from learner.training.policy import Policy

T = TypeVar("T")


class Sharded:
    """The processes of the default process group."""

    def __init__(self, device: torch.device) -> None:
        """Takes where this rank computes; `torch.distributed` must be initialised."""
        self.index = distributed.get_rank()
        self.count = distributed.get_world_size()
        self._mesh = init_device_mesh(device.type, (self.count,))

    def place(self, policy: Policy) -> None:
        """Parts the policy's weights, and those of a reference model of its own."""
        for model in policy.models:
            head = policy.value_head if model is policy.model else None
            policy.roots[id(model)] = _sharded(_Root(model, head), model, self._mesh)
        policy.writes = self.index == 0
        policy.collect()

    def any(self, flag: bool) -> bool:
        """Says whether the flag is set on any rank."""
        return self.sum(float(flag)) > 0

    def sum(self, value: float) -> float:
        """Adds up a number over the ranks."""
        total = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(total)
        return float(total)

    def tell(self, text: str) -> str:
        """Returns what the first rank says; waits for all."""
        said = [text]
        distributed.broadcast_object_list(said)
        distributed.barrier()
        return said[0]

    def join(self, values_T: torch.Tensor, mine_T: torch.Tensor) -> torch.Tensor:
        """Adds up what each rank has of the values."""
        joined_T = torch.where(mine_T, values_T, torch.zeros_like(values_T))
        distributed.all_reduce(joined_T)
        return joined_T


class _Root(torch.nn.Module):
    """Holds what is parted together; its forward is where weights are whole."""

    def __init__(self, model: torch.nn.Module, head: torch.nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.head = head

    def forward(self, work: Callable[[], T]) -> T:
        """Does the work."""
        return work()


def _sharded(root: _Root, model: Any, mesh: DeviceMesh) -> _Root:
    blocks = set(getattr(model, "_no_split_modules", None) or ())
    parts = [module for module in model.modules() if type(module).__name__ in blocks]
    for module in (*parts, root):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        assert isinstance(module, FSDPModule)
        # A sum, not a mean.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return root
