"""GRPO: rewards of a group against their own mean, a clipped ratio, KL to a reference (arXiv:2402.03300).

    A_i = r_i - mean(r)                     or that divided by the group's standard deviation
    rho = exp(log pi - log pi_old)
    l   = -min(rho A, clip(rho, 1 - low, 1 + high) A) + kl_coef * k3
    k3  = exp(log pi_ref - log pi) - (log pi_ref - log pi) - 1

Only scored rollouts take part. A group with fewer than two of them, or without spread, has zero
advantage. Its tokens count in the averages as in the formula, but where no KL asks for them they are not
computed: they would add exactly nothing. The standard deviation is that of a sample (n - 1).

Shapes: G members of a group, P policy tokens of a micro-batch, T of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from learner.ports import ScoredRollout
from learner.training.algorithms.aggregation import AGGREGATIONS
from learner.training.algorithms.base import Batch, ScoredTokens, TokenLoss
from learner.training.rows import BoolArray, FloatArray, policy_tokens

NO_SPREAD = 1e-6
"""Rewards that differ by no more than this are equal: what is left is rounding."""

STD_FLOOR = 1e-4
"""A smaller standard deviation is not divided by: it would blow tiny differences up."""

MAX_LOG_RATIO = 60.0
"""Beyond it exp would leave float32; the clamp keeps loss and report finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    """What may be chosen."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    norm_adv_by_std: bool = True
    aggregation: str = "token_mean"
    max_tokens: int = 1
    """Policy tokens that a rollout may have; the divisor of aggregation constant."""


class Grpo:
    """The clipped policy loss with its KL term."""

    def __init__(self, settings: GrpoSettings) -> None:
        """Takes the clip range and the weight of the KL."""
        self._settings = settings

    @property
    def needs_reference(self) -> bool:
        """Where the KL has a weight."""
        return self._settings.kl_coef > 0

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns the loss of each token, KL included."""
        loss, clipped = clipped_loss(
            tokens.logprobs_P,
            tokens.old_logprobs_P,
            tokens.advantages_P,
            self._settings.clip_low,
            self._settings.clip_high,
        )
        if self._settings.kl_coef > 0:
            kl = kl_k3(tokens.logprobs_P, tokens.reference_logprobs_P)
            loss = loss + self._settings.kl_coef * kl
        return TokenLoss(loss_P=loss, clipped_P=clipped)


def has_spread(rewards_G: torch.Tensor) -> bool:
    """Says whether a group carries a signal: at least two members that differ."""
    return len(rewards_G) >= 2 and float(rewards_G.max() - rewards_G.min()) > NO_SPREAD


def group_advantages(rewards_G: torch.Tensor, *, norm_by_std: bool) -> torch.Tensor:
    """Returns each member's advantage over the group's mean, in float64."""
    rewards_G = rewards_G.double()
    if not has_spread(rewards_G):
        return torch.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    if not norm_by_std:
        return centred_G
    return centred_G / rewards_G.std(correction=1).clamp_min(STD_FLOOR)


def clipped_loss(
    logprobs_P: torch.Tensor,
    old_logprobs_P: torch.Tensor,
    advantages_P: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the policy loss of each token, and whether clipping took its gradient away."""
    ratio_P = (logprobs_P - old_logprobs_P).clamp(max=MAX_LOG_RATIO).exp()
    free_P = ratio_P * advantages_P
    bound_P = ratio_P.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_P
    return -torch.minimum(free_P, bound_P), (bound_P < free_P).detach()


def kl_k3(logprobs_P: torch.Tensor, reference_logprobs_P: torch.Tensor) -> torch.Tensor:
    """Estimates KL(policy || reference) from each token: unbiased, never negative."""
    delta_P = (reference_logprobs_P - logprobs_P).clamp(max=MAX_LOG_RATIO)
    return delta_P.exp() - delta_P - 1.0


def grpo_batch(groups: Sequence[Sequence[ScoredRollout]], settings: GrpoSettings) -> Batch:
    """Puts the scored rollouts of some groups together.

    A token whose engine log-probability is not a number is left out and counted. Where nothing is scored
    the batch is empty, and its figures say so.

    Raises:
        ValueError: a score is not finite, or a row cannot be trained on.
    """
    members = [_Member.of(rollout) for group in groups for rollout in group]
    advantages = _advantages(groups, settings)
    counts = [member.counts for member in members if member.counts]
    aggregate = AGGREGATIONS[settings.aggregation]
    weights = iter(aggregate(counts, settings.max_tokens) if counts else [])
    rows: list[_Row] = []
    row_weights: list[float] = []
    row_advantages: list[float] = []
    for member, advantage in zip(members, advantages, strict=True):
        weight = next(weights) if member.counts else []
        if advantage == 0.0 and settings.kl_coef == 0:
            continue
        rows += member.rows
        row_weights += weight
        row_advantages += [advantage] * len(member.rows)
    tokens = policy_tokens(rows)
    engine = [row.logprobs[row.loss_mask] for row in rows]
    return Batch(
        tokens=tokens,
        weights_T=np.repeat(np.asarray(row_weights), tokens.counts),
        advantages_T=np.repeat(np.asarray(row_advantages), tokens.counts),
        engine_logprobs_T=np.concatenate(engine) if engine else np.empty(0),
        figures=_figures(groups)
        | {
            "tokens/trained": float(tokens.num_tokens),
            "tokens/not_finite": float(sum(member.not_finite for member in members)),
        },
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    token_ids: Sequence[int]
    loss_mask: BoolArray
    logprobs: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Member:
    rows: list[_Row]
    counts: list[int]
    not_finite: int

    @classmethod
    def of(cls, rollout: ScoredRollout) -> "_Member":
        """Reads the rows that have a policy token."""
        rows = []
        not_finite = 0
        for source in rollout.rows:
            mask = np.asarray(source.loss_mask, dtype=bool)
            logprobs = np.asarray(source.logprobs, dtype=np.float64)
            usable = mask & np.isfinite(logprobs)
            not_finite += int(mask.sum() - usable.sum())
            if usable.any():
                rows.append(_Row(token_ids=source.token_ids, loss_mask=usable, logprobs=logprobs))
        return cls(rows=rows, counts=[int(r.loss_mask.sum()) for r in rows], not_finite=not_finite)


def _advantages(groups: Sequence[Sequence[ScoredRollout]], settings: GrpoSettings) -> list[float]:
    found: list[float] = []
    for group in groups:
        for rollout in group:
            if not np.isfinite(rollout.score):
                raise ValueError(
                    f"rollout {rollout.rollout_id}: its score is {rollout.score}; "
                    "a finite number is right"
                )
        rewards_G = torch.tensor([rollout.score for rollout in group], dtype=torch.float64)
        found += group_advantages(rewards_G, norm_by_std=settings.norm_adv_by_std).tolist()
    return found


def _figures(groups: Sequence[Sequence[ScoredRollout]]) -> dict[str, float]:
    rewards = [torch.tensor([r.score for r in group], dtype=torch.float64) for group in groups]
    spread = sum(has_spread(rewards_G) for rewards_G in rewards)
    small = sum(len(rewards_G) < 2 for rewards_G in rewards)
    return {
        "groups/trained": float(spread),
        "groups/too_small": float(small),
        "groups/without_spread": float(len(groups) - spread - small),
    }
