"""Rewards and advantages of turns: GRPO with process supervision (DeepSeekMath, arXiv:2402.03300, section 4.1.3).

    R      = {r_ij}, the rewards of all turns j of all rollouts i of a group
    r~_ij  = (r_ij - mean(R)) / std(R)
    A_it   = sum of r~_ij over the turns j from the one of token t on

How R is normalised is the algorithm's own choice: Dr. GRPO leaves the standard deviation out. A rollout whose turns are
not rewarded has one reward, its score, for all of its tokens, so that with nothing but scores A_i is r~_i.

A group whose members earned the same turn by turn teaches nothing, though its turns differ from one another: what turns
have in common is no reason to prefer one rollout to another.

Shapes: T policy tokens of a batch, R rows, K_i rewards of rollout i.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from learner.training.algorithms.grpo import NO_SPREAD
from learner.training.rows import FloatArray, IntArray

Advantages = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""From the rewards of each group to their advantages, both in float64."""

Earned = Sequence[Sequence[FloatArray]]
"""By group and member, the rewards by turn; at least one each."""


def earned(score: float, turn_rewards: Sequence[float]) -> FloatArray:
    """Returns the rewards of a rollout by turn; what the score has beyond them belongs to the last."""
    rewards = np.array(turn_rewards or [0.0], dtype=np.float64)
    rewards[-1] += score - sum(turn_rewards)
    return rewards


def earned_by_turn(
    scores: Sequence[torch.Tensor], turn_rewards: Sequence[Sequence[float]]
) -> Earned:
    """Returns the rewards of all members by turn.

    Args:
        scores: of each group's members.
        turn_rewards: of every member, in the order of the scores; empty where the score is all there is.
    """
    following = iter(turn_rewards)
    return [[earned(score, next(following)) for score in scores_G.tolist()] for scores_G in scores]


def members_differ(group: Sequence[FloatArray]) -> bool:
    """Says whether at least two members earned something else, in any turn."""
    if len(group) < 2:
        return False
    rewards = np.zeros((len(group), max(len(member) for member in group)))
    for index, member in enumerate(group):
        rewards[index, : len(member)] = member
    return float(np.ptp(rewards, axis=0).max()) > NO_SPREAD


def advantages_by_turn(groups: Earned, normalise: Advantages) -> list[FloatArray]:
    """Returns the advantages of each member by turn, over all groups."""
    pooled = [torch.from_numpy(np.concatenate([np.empty(0), *group])) for group in groups]
    found: list[FloatArray] = []
    for group, normalised in zip(groups, normalise(pooled), strict=True):
        lengths = [len(member) for member in group]
        values = normalised.numpy() if members_differ(group) else np.zeros(sum(lengths))
        pieces = np.split(values, np.cumsum(lengths)[:-1]) if group else []
        found += [piece[::-1].cumsum()[::-1] for piece in pieces]
    return found


def token_advantages(
    by_turn: Sequence[FloatArray], rollout_R: Sequence[int], counts: Sequence[int], turn_T: IntArray
) -> FloatArray:
    """Returns the advantage of each token: its turn's, or the last there is.

    Args:
        by_turn: advantages of each rollout.
        rollout_R: place of each row's rollout among them.
        counts: policy tokens of each row.
        turn_T: turn of each token.
    """
    rows = np.split(turn_T, np.cumsum(counts)[:-1]) if counts else []
    pieces = [
        by_turn[rollout][np.clip(turns, 0, len(by_turn[rollout]) - 1)]
        for rollout, turns in zip(rollout_R, rows, strict=True)
    ]
    return np.concatenate(pieces) if pieces else np.empty(0)
