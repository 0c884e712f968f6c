"""Pairs of responses of which one was preferred: what DPO and the reward model share.

    P(chosen beats rejected) = sigmoid(delta)             Bradley and Terry 1952
    l = -log sigmoid(delta - margin)                      arXiv:2203.02155; with a margin arXiv:2307.09288, eq. 2
    L = p l(delta - margin) + (1 - p) l(margin - delta)   with a soft label p: cross-entropy, arXiv:2309.00267, sec. 2.2

delta is what the chosen response's reward has over the rejected one's. p is the probability that chosen is better, 1
where a row has no soft label. A margin is one of chosen over rejected whatever p is, and moves the whole curve: L is
least where delta = margin + log(p / (1 - p)). The loss of a pair lies on all of its tokens, and weights share it among
them, so that the loss of a batch is the mean over its pairs.

Shapes: N pairs, T policy tokens of a batch, P policy tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from learner.training.algorithms.base import Batch, PairTokens
from learner.training.rows import MaskedRow, policy_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two responses as rows; forks are further rows."""

    chosen: tuple[MaskedRow, ...]
    rejected: tuple[MaskedRow, ...]
    margin: float = 0.0
    """By how much the chosen one should be ahead, in units of the reward."""
    soft_label: float = 1.0
    """Probability that the chosen one is better."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideSums:
    """Sums over the tokens of each side, told to every token of the pair."""

    chosen_P: torch.Tensor
    rejected_P: torch.Tensor


def bradley_terry_loss(ahead: torch.Tensor) -> torch.Tensor:
    """Returns the loss of each comparison, -log sigmoid; -1000 gives 1000 and not infinity."""
    return -logsigmoid(ahead)


def expected_loss(
    label: torch.Tensor, if_chosen: torch.Tensor, if_rejected: torch.Tensor
) -> torch.Tensor:
    """Returns the mean of the losses of both outcomes under the label; a label of 1 gives the first to the bit."""
    return label * if_chosen + (1.0 - label) * if_rejected


def bradley_terry_probability(delta: torch.Tensor) -> torch.Tensor:
    """Returns how likely the chosen response wins."""
    return torch.sigmoid(delta)


def pair_batch(pairs: Sequence[Pair]) -> Batch:
    """Puts pairs together.

    Raises:
        ValueError: there is no pair, or a row cannot be trained on.
    """
    if not pairs:
        raise ValueError("the batch holds no pair")
    rows: list[MaskedRow] = []
    sides: list[tuple[int, bool]] = []
    for index, pair in enumerate(pairs):
        rows += [*pair.chosen, *pair.rejected]
        sides += [(index, True)] * len(pair.chosen) + [(index, False)] * len(pair.rejected)
    unit_R = np.array([index for index, _ in sides], dtype=np.int64)
    tokens = replace(policy_tokens(rows), unit_R=unit_R)
    pair_T = np.repeat(unit_R, tokens.counts)
    chosen_T = np.repeat(np.array([chosen for _, chosen in sides]), tokens.counts)
    margins = np.array([pair.margin for pair in pairs], dtype=np.float64)
    labels = np.array([pair.soft_label for pair in pairs], dtype=np.float64)
    return Batch(
        tokens=tokens,
        weights_T=1.0 / (len(pairs) * np.bincount(pair_T)[pair_T]),
        advantages_T=np.zeros(tokens.num_tokens),
        pairs=PairTokens(
            pair_T=torch.from_numpy(pair_T),
            chosen_T=torch.from_numpy(chosen_T),
            margin_T=torch.from_numpy(margins[pair_T]).float(),
            label_T=torch.from_numpy(labels[pair_T]).float(),
        ),
        figures={"pairs/trained": float(len(pairs))},
    )


def side_sums(values_P: torch.Tensor, pairs: PairTokens) -> SideSums:
    """Adds the values of each side up."""
    _, local_P = torch.unique(pairs.pair_T, return_inverse=True)
    count = int(local_P.max()) + 1

    def total(of_P: torch.Tensor) -> torch.Tensor:
        zeros_N = torch.zeros(count, dtype=values_P.dtype, device=values_P.device)
        return zeros_N.index_add(0, local_P, torch.where(of_P, values_P, 0.0))[local_P]

    return SideSums(chosen_P=total(pairs.chosen_T), rejected_P=total(~pairs.chosen_T))


def pair_figures(rewards_T: torch.Tensor, pairs: PairTokens) -> dict[str, float]:
    """Returns how the pairs of a batch compare; every token tells the reward of its side.

    Chosen is here what the label holds for the better response, so that all figures rise as the labels are learned.
    Pairs at 0.5 have no better one: they do not count for the accuracy, which a batch of such pairs alone has not.
    """
    chosen_N, rejected_N = _by_pair(rewards_T, pairs)
    delta_N = chosen_N - rejected_N
    figures = {
        "rewards/chosen": float(chosen_N.mean()),
        "rewards/rejected": float(rejected_N.mean()),
        "rewards/margins": float(delta_N.mean()),
        "rewards/probability": float(bradley_terry_probability(delta_N).mean()),
    }
    label_N = _label_of_each(pairs)
    decided_N = label_N != 0.5
    if bool(decided_N.any()):
        figures["rewards/accuracies"] = float((delta_N > 0)[decided_N].double().mean())
    if bool((label_N < 1.0).any()):
        figures |= _label_figures(label_N)
    return figures


def _label_figures(label_N: torch.Tensor) -> dict[str, float]:
    """Returns what `rewards/probability` and the loss would be if every label were met, margins and smoothing aside."""
    entropy_N = torch.special.entr(label_N) + torch.special.entr(1.0 - label_N)
    return {
        "labels/probability": float(torch.maximum(label_N, 1.0 - label_N).mean()),
        "labels/entropy": float(entropy_N.mean()),
    }


def logprob_figures(logprobs_T: torch.Tensor, pairs: PairTokens) -> dict[str, float]:
    """Returns the mean log-probability of whole responses."""
    sums = side_sums(logprobs_T, pairs)
    told_T = torch.where(pairs.chosen_T, sums.chosen_P, sums.rejected_P)
    chosen_N, rejected_N = _by_pair(told_T, pairs)
    return {"logps/chosen": float(chosen_N.mean()), "logps/rejected": float(rejected_N.mean())}


def _by_pair(told_T: torch.Tensor, pairs: PairTokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what the tokens of each side tell, for the likelier one and for the other."""
    count = int(pairs.pair_T.max()) + 1
    sides = []
    for of_T in (pairs.likelier_T, ~pairs.likelier_T):
        found_N = torch.zeros(count, dtype=torch.float64, device=told_T.device)
        found_N[pairs.pair_T[of_T]] = told_T[of_T].double()
        sides.append(found_N)
    return sides[0], sides[1]


def _label_of_each(pairs: PairTokens) -> torch.Tensor:
    count = int(pairs.pair_T.max()) + 1
    label_N = torch.ones(count, dtype=torch.float64, device=pairs.label_T.device)
    label_N[pairs.pair_T] = pairs.label_T.double()
    return label_N
