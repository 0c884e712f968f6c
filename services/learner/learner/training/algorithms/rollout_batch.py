"""Puts the scored rollouts of some groups together to one optimiser batch.

Only scored rollouts take part. A token whose engine log-probability is not a number is left out and counted. Tokens of
rollouts without advantage count in the averages as in the formulas, but where no KL asks for them they are not
computed: they would add exactly nothing.

Shapes: T policy tokens, R rows, N rollouts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from learner.ports import ScoredRollout
from learner.training.algorithms.aggregation import AGGREGATIONS
from learner.training.algorithms.base import Batch, RolloutRewards
from learner.training.algorithms.by_turn import (
    Advantages,
    Earned,
    advantages_by_turn,
    earned_by_turn,
    members_differ,
    token_advantages,
)
from learner.training.algorithms.dapo import teaches
from learner.training.algorithms.overlong import overlong_penalty
from learner.training.rows import BoolArray, FloatArray, IntArray, policy_tokens
from trajectory.types import TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatchSettings:
    """How a batch is put together."""

    aggregation: str = "token_mean"
    max_tokens: int = 1
    """Policy tokens that a rollout may have: the divisor of aggregation constant, the end of the overlong buffer."""
    overlong_buffer: int = 0
    """Policy tokens before max_tokens over which a penalty rises to 1; 0 means no penalty."""
    keep_all: bool = False
    """Keep the tokens of rollouts without advantage, for a KL or for advantages that are known later."""
    only_groups_that_teach: bool = False
    """Leave groups without spread out of the averages too, as dynamic sampling does."""
    turn_rewards: bool = False
    """Let each turn answer for what came from it on, and not for the whole rollout."""
    bootstrap: bool = False
    """Add to rollouts that were cut off a last token of no weight, whose state holds the value of what would follow."""


def rollout_batch(
    groups: Sequence[Sequence[ScoredRollout]],
    advantages: Advantages,
    settings: RolloutBatchSettings,
) -> Batch:
    """Puts the scored rollouts together; where nothing is scored the batch is empty, and its figures say so.

    Raises:
        ValueError: a score is not finite, or a row cannot be trained on.
    """
    members = [
        _Member.of(rollout, bootstrap=settings.bootstrap) for group in groups for rollout in group
    ]
    rewards = _rewards(groups, members, settings)
    turn_rewards = tuple(
        rollout.turn_rewards if settings.turn_rewards else ()
        for group in groups
        for rollout in group
    )
    rewarded = earned_by_turn(rewards, turn_rewards)
    if settings.only_groups_that_teach:
        members = _without_silent_groups(rewarded, members)
    by_turn = advantages_by_turn(rewarded, advantages)
    counts = [member.counts for member in members if member.counts]
    aggregate = AGGREGATIONS[settings.aggregation]
    weights = iter(aggregate(counts, settings.max_tokens) if counts else [])
    rows: list[_Row] = []
    row_weights: list[float] = []
    row_rollouts: list[int] = []
    for index, (member, found) in enumerate(zip(members, by_turn, strict=True)):
        weight = next(weights) if member.counts else []
        if not found.any() and not settings.keep_all:
            continue
        rows += member.rows
        row_weights += weight
        row_rollouts += [index] * len(member.rows)
    tokens = policy_tokens(rows)
    turn_T = _joined([row.turns[row.loss_mask] for row in rows], np.int64)
    real_T = _joined([row.real[row.loss_mask] for row in rows], np.bool_)
    return Batch(
        tokens=tokens,
        weights_T=np.repeat(np.asarray(row_weights), tokens.counts) * real_T,
        advantages_T=token_advantages(by_turn, row_rollouts, tokens.counts, turn_T) * real_T,
        engine_logprobs_T=_joined([row.logprobs[row.loss_mask] for row in rows], np.float64),
        real_T=real_T,
        turn_T=turn_T,
        rewards=RolloutRewards(
            groups=tuple(rewards),
            rollout_R=tuple(row_rollouts),
            turn_rewards=turn_rewards,
        ),
        figures=_figures(rewarded)
        | {
            "tokens/trained": float(real_T.sum()),
            "tokens/not_finite": float(sum(member.not_finite for member in members)),
        },
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    token_ids: Sequence[int]
    loss_mask: BoolArray
    logprobs: FloatArray
    turns: IntArray
    real: BoolArray

    @classmethod
    def of(cls, source: TokenRow) -> "_Row":
        """Reads a row; tokens without a finite log-probability are out of the loss."""
        logprobs = np.asarray(source.logprobs, dtype=np.float64)
        turns = np.full(len(logprobs), -1, dtype=np.int64)
        for span in source.spans:
            turns[span.start : span.end] = span.turn
        return cls(
            token_ids=source.token_ids,
            loss_mask=np.asarray(source.loss_mask, dtype=bool) & np.isfinite(logprobs),
            logprobs=logprobs,
            turns=turns,
            real=np.ones(len(logprobs), dtype=bool),
        )

    def with_bootstrap(self) -> "_Row":
        """Returns the row with one more token, which nobody sampled, in the state where it was cut off."""
        return _Row(
            token_ids=(*self.token_ids, self.token_ids[-1]),
            loss_mask=np.append(self.loss_mask, True),
            logprobs=np.append(self.logprobs, np.nan),
            turns=np.append(self.turns, self.turns.max() + 1),
            real=np.append(self.real, False),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Member:
    rows: list[_Row]
    counts: list[int]
    not_finite: int

    @property
    def length(self) -> int:
        """Policy tokens of its longest row, those that are not finite too."""
        return max(self.counts, default=0) + self.not_finite

    @classmethod
    def of(cls, rollout: ScoredRollout, *, bootstrap: bool) -> "_Member":
        """Reads the rows that have a policy token."""
        found = [_Row.of(source) for source in rollout.rows]
        said = sum(sum(source.loss_mask) for source in rollout.rows)
        rows = [row for row in found if row.loss_mask.any()]
        counts = [int(row.loss_mask.sum()) for row in rows]
        if bootstrap and rollout.truncated and rows and rows[-1] is found[-1]:
            rows[-1] = rows[-1].with_bootstrap()
        return cls(rows=rows, counts=counts, not_finite=said - sum(counts))


def _joined(pieces: Sequence[npt.NDArray[Any]], dtype: type[Any]) -> npt.NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=dtype)


def _without_silent_groups(rewarded: Earned, members: Sequence[_Member]) -> list[_Member]:
    """Takes the rows from members of groups whose rewards do not differ."""
    kept = [keep for group, keep in zip(rewarded, teaches(rewarded), strict=True) for _ in group]
    return [
        member if keep else _Member(rows=[], counts=[], not_finite=member.not_finite)
        for member, keep in zip(members, kept, strict=True)
    ]


def _rewards(
    groups: Sequence[Sequence[ScoredRollout]],
    members: Sequence[_Member],
    settings: RolloutBatchSettings,
) -> list[torch.Tensor]:
    """Returns the scores of each group, less what is taken for length."""
    rewards = []
    following = iter(members)
    for group in groups:
        scores = []
        for rollout in group:
            if not np.isfinite(rollout.score):
                raise ValueError(
                    f"rollout {rollout.rollout_id}: its score is {rollout.score}; "
                    "a finite number is right"
                )
            penalty = overlong_penalty(
                next(following).length,
                longest=settings.max_tokens,
                buffer=settings.overlong_buffer,
            )
            scores.append(rollout.score + penalty)
        rewards.append(torch.tensor(scores, dtype=torch.float64))
    return rewards


def _figures(rewarded: Earned) -> dict[str, float]:
    spread = sum(members_differ(group) for group in rewarded)
    small = sum(len(group) < 2 for group in rewarded)
    return {
        "groups/trained": float(spread),
        "groups/too_small": float(small),
        "groups/without_spread": float(len(rewarded) - spread - small),
    }
