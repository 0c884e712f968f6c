"""One step of the trainer: its batch, what its first update leaves for the next ones, and the report of it.

Shapes: T policy tokens of a batch.
"""

from dataclasses import dataclass, field

import torch

from learner.training.algorithms.base import Algorithm, Batch, PairTokens
from learner.training.algorithms.importance import effective_sample_size
from learner.training.algorithms.kl import kl_k3
from learner.training.algorithms.pairs import logprob_figures, pair_figures
from learner.training.logprobs import Microbatch


@dataclass(slots=True, kw_only=True, eq=False)
class StepMemory:
    """What the first update on a batch leaves for the next ones, and for the report."""

    old_logprobs_T: torch.Tensor
    entropy_T: torch.Tensor
    reference_logprobs_T: torch.Tensor
    """Not a number where the reference was not asked."""
    referred: frozenset[int]
    """Micro-batches on which the reference is asked."""
    advantages_T: torch.Tensor
    engine_logprobs_T: torch.Tensor
    """Not a number where no engine sampled."""
    importance_T: torch.Tensor
    """Ones where nothing is corrected."""
    rewards_T: torch.Tensor
    """What the policy made of each response before the first update; zeros where nothing is compared."""
    values_T: torch.Tensor
    returns_T: torch.Tensor
    figures: dict[str, float] = field(default_factory=dict)
    value_losses: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWork:
    """One step's batch with everything that stays the same through its updates."""

    batch: Batch
    algorithm: Algorithm
    parts: list[Microbatch]
    weights_T: torch.Tensor
    row_T: torch.Tensor
    real_T: torch.Tensor
    """False for tokens that only hold the value of a cut-off or a score."""
    pairs: PairTokens | None
    temperature: float
    num_updates: int
    rollout_ids: tuple[str, ...]


def report(work: StepWork, memory: StepMemory) -> dict[str, float]:
    """Returns the figures of a step that was taken."""
    real_T = work.real_T
    figures = memory.figures | {
        "loss": memory.losses[0],
        "grad_norm": memory.grad_norms[-1],
        "updates": float(len(memory.losses)),
    }
    if bool(real_T.any()):
        figures["entropy"] = float(memory.entropy_T[real_T].mean())
    if work.pairs is not None:
        return figures | compared(work, memory)
    if memory.value_losses:
        figures["loss/value"] = sum(memory.value_losses) / len(memory.losses)
    old_T = memory.old_logprobs_T[real_T].double()
    if memory.referred:
        kl_T = kl_k3(old_T, memory.reference_logprobs_T[real_T].double())
        figures["kl"] = float(kl_T[~kl_T.isnan()].mean())
    if work.batch.engine_logprobs_T is not None:
        figures["clip_frac"] = sum(memory.clipped) / len(memory.clipped)
        engine_T = torch.from_numpy(work.batch.engine_logprobs_T).to(old_T.device)[real_T]
        difference_T = (old_T - engine_T).abs()
        figures["mismatch/mean"] = float(difference_T.mean())
        figures["mismatch/max"] = float(difference_T.max())
        # As the engine drew the tokens: an estimate of KL(engine || learner).
        figures["mismatch_kl/mean"] = float(kl_k3(engine_T, old_T).mean())
        figures["importance/ess_fraction"] = effective_sample_size(
            memory.importance_T[real_T]
        ) / len(old_T)
    return figures


def compared(work: StepWork, memory: StepMemory) -> dict[str, float]:
    """Returns how the pairs compared before the first update."""
    assert work.pairs is not None
    figures = pair_figures(memory.rewards_T, work.pairs)
    if work.algorithm.needs_reference:
        figures |= logprob_figures(memory.old_logprobs_T, work.pairs)
    return figures
