"""The equations of the papers in exact arithmetic, at their edges, through the functions that training calls."""

import itertools
import math
import random
from collections.abc import Sequence
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
import torch

from learner.ports import ScoredRollout
from learner.training.algorithms.base import FirstPass, PairTokens, ScoredTokens
from learner.training.algorithms.dpo import Dpo, DpoSettings
from learner.training.algorithms.gae import discounts, gae, whiten
from learner.training.algorithms.importance import sequence_weights, token_weights
from learner.training.algorithms.kl import KL_ESTIMATES
from learner.training.algorithms.overlong import overlong_penalty
from learner.training.algorithms.policy_gradient import PolicyGradient, PolicyGradientSettings
from learner.training.algorithms.ppo import Ppo, PpoSettings
from learner.training.algorithms.ratios import clipped_loss, row_log_ratio
from learner.training.algorithms.reinforce_pp import normalised, returns_to_go
from learner.training.algorithms.table import KINDS
from trajectory.types import TokenRow, TokenSpan

getcontext().prec = 50


def _double(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _std(values: Sequence[Fraction]) -> Decimal:
    """The standard deviation of a sample."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()


def _over(value: Fraction, scale: Decimal) -> float:
    return float(Decimal(value.numerator) / Decimal(value.denominator) / scale)


def _rewards(rng: random.Random, count: int) -> list[Fraction]:
    return [Fraction(rng.randint(-8, 8), 4) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_groups_of_unequal_size(seed: int) -> None:
    rng = random.Random(seed)
    groups = [_rewards(rng, size) for size in (2, 3, 5, 8)]
    over_mean = [[r - sum(g) / len(g) for r in g] for g in groups]
    over_others = [[r - (sum(g) - r) / (len(g) - 1) for r in g] for g in groups]
    batch_std = _std([value for group in over_mean for value in group])
    wanted = {
        "dr_grpo": [[float(value) for value in group] for group in over_mean],
        "rloo": [[float(value) for value in group] for group in over_others],
        "grpo": [
            [_over(value, _std(rewards)) if any(group) else 0.0 for value in group]
            for group, rewards in zip(over_mean, groups, strict=True)
        ],
        "reinforce_pp_baseline": [
            [_over(value, batch_std) for value in group] for group in over_mean
        ],
    }
    for name, exact in wanted.items():
        made = KINDS[name].advantages([_double([float(r) for r in g]) for g in groups])
        for found, group in zip(made, exact, strict=True):
            assert found.tolist() == pytest.approx(group, abs=1e-12), name


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"])
def test_groups_of_one_and_ties_have_no_advantage(name: str) -> None:
    made = KINDS[name].advantages([_double([0.7]), _double([0.1] * 7), _double([1.0, 0.0])])
    assert not made[0].any()
    assert not made[1].any()
    assert made[2][0] == -made[2][1] > 0


def _exact_gae(
    rewards: list[Fraction],
    values: list[Fraction],
    steps: list[Fraction],
    lam: Fraction,
    bootstrap: Fraction,
) -> list[Fraction]:
    """A_t as the sum over later steps of delta, each discounted by the product of what lies between."""
    following = [*values[1:], bootstrap]
    deltas = [r + g * f - v for r, g, f, v in zip(rewards, steps, following, values, strict=True)]
    found = []
    for start in range(len(deltas)):
        weights = itertools.accumulate(
            (step * lam for step in steps[start:]), lambda a, b: a * b, initial=Fraction(1)
        )
        found.append(
            sum((w * d for w, d in zip(weights, deltas[start:], strict=False)), Fraction(0))
        )
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [1, 2, 7])
def test_gae_with_a_discount_per_turn(length: int, seed: int) -> None:
    rng = random.Random(seed)
    rewards, values = _rewards(rng, length), _rewards(rng, length)
    gamma, lam, bootstrap = Fraction(9, 10), Fraction(rng.randint(0, 4), 4), Fraction(3, 4)
    turns = sorted(rng.choices(range(3), k=length))
    steps = [
        gamma if here + 1 == length or turns[here + 1] != turns[here] else Fraction(1)
        for here in range(length)
    ]
    exact = _exact_gae(rewards, values, steps, lam, bootstrap)
    made = gae(
        np.array([float(r) for r in rewards]),
        np.array([float(v) for v in values]),
        discounts(np.array(turns), float(gamma)),
        float(lam),
        bootstrap=float(bootstrap),
    )
    assert made.advantages_T.tolist() == pytest.approx([float(a) for a in exact], abs=1e-12)
    returns = [float(a + v) for a, v in zip(exact, values, strict=True)]
    assert made.returns_T.tolist() == pytest.approx(returns, abs=1e-12)


def _cut_off(name: str, score: float) -> ScoredRollout:
    """Two turns of a token each with a tool's two tokens between them, cut off after the second."""
    return ScoredRollout(
        rollout_id=name,
        rows=(
            TokenRow(
                token_ids=(5, 6, 7, 8, 9),
                loss_mask=(False, True, False, False, True),
                logprobs=(0.0, -1.0, 0.0, 0.0, -1.0),
                spans=(
                    TokenSpan(start=1, end=2, turn=0, policy_version=0),
                    TokenSpan(start=4, end=5, turn=1, policy_version=0),
                ),
            ),
        ),
        score=score,
        truncated=True,
    )


def test_ppo_where_every_rollout_was_cut_off() -> None:
    gamma, lam = Fraction(1, 2), Fraction(3, 4)
    algorithm = Ppo(PpoSettings(gamma=float(gamma), gae_lambda=float(lam)))
    batch = algorithm.batch([[_cut_off("a", 1.0), _cut_off("b", -0.5)]])
    # Of each row two tokens and the state that follows.
    assert batch.tokens.counts == (3, 3)
    values = [
        [Fraction(1, 4), Fraction(1, 2), Fraction(1)],
        [Fraction(0), Fraction(-1), Fraction(2)],
    ]
    size = batch.tokens.num_tokens
    made = algorithm.targets(
        batch,
        FirstPass(
            old_logprobs_T=np.zeros(size),
            reference_logprobs_T=np.full(size, np.nan),
            values_T=np.array([float(value) for row in values for value in row]),
        ),
    )
    exact = [
        _exact_gae([Fraction(0), Fraction(score)], row[:2], [gamma, gamma], lam, row[2])
        for score, row in zip(("1", "-1/2"), values, strict=True)
    ]
    flat = [value for row in exact for value in row]
    mean, scale = sum(flat) / 4, _std(flat)
    white = [_over(value - mean, scale) for value in flat]
    # The state that follows has neither advantage, target nor weight.
    assert made.advantages_T.tolist() == pytest.approx([*white[:2], 0.0, *white[2:], 0.0], abs=1e-7)
    assert made.returns_T is not None
    returns = [
        [float(a + v) for a, v in zip(r, s, strict=False)]
        for r, s in zip(exact, values, strict=True)
    ]
    assert made.returns_T.tolist() == pytest.approx([*returns[0], 0.0, *returns[1], 0.0])
    assert batch.weights_T.tolist() == [0.25, 0.25, 0.0, 0.25, 0.25, 0.0]


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0, 2.0]])
def test_what_does_not_differ_is_whitened_to_zero(values: list[float]) -> None:
    assert not whiten(np.array(values)).any()
    assert not normalised(np.array(values)).any()


def test_clip_at_its_very_edges() -> None:
    # 1.5 and 0.5 are exact in binary; the log is not, so ratios are given as exact powers of two.
    log_ratio = _double([0.0, math.log(2.0), math.log(0.5)]).requires_grad_()
    loss, clipped = clipped_loss(log_ratio, _double([1.0, 1.0, -1.0]), 0.5, 1.0)
    assert loss.tolist() == [-1.0, -2.0, 0.5]
    assert clipped.tolist() == [False, False, False]
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    # At the edge the gradient is still there.
    assert gradient.tolist() == [-1.0, -2.0, 0.5]
    beyond = (log_ratio.detach() + _double([0.0, 1e-9, -1e-9])).requires_grad_()
    loss, clipped = clipped_loss(beyond, _double([1.0, 1.0, -1.0]), 0.5, 1.0)
    assert clipped.tolist() == [False, True, True]
    (gradient,) = torch.autograd.grad(loss.sum(), beyond)
    assert gradient.tolist() == [-1.0, 0.0, 0.0]


def test_no_advantage_no_loss_and_nothing_clipped() -> None:
    loss, clipped = clipped_loss(_double([-3.0, 0.0, 3.0]), _double([0.0] * 3), 0.2, 0.2, 3.0)
    assert not loss.any()
    assert not clipped.any()


def test_ratio_of_a_row_of_one_token_is_the_tokens() -> None:
    new, old = _double([-1.0, -2.0, -0.5]), _double([-1.5, -1.0, -0.5])
    row = torch.tensor([4, 2, 9])
    assert row_log_ratio(new, old, row).tolist() == (new - old).tolist()


def test_importance_weights_at_the_cap() -> None:
    old, engine = _double([math.log(2.0), 0.0, 80.0]), _double([0.0, math.log(2.0), 0.0])
    assert token_weights(old, engine, 2.0).tolist() == [2.0, 0.5, 2.0]
    rows = torch.tensor([0, 0, 1])
    assert sequence_weights(old, engine, rows, 2.0).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("name", KL_ESTIMATES)
def test_kl_of_equal_policies_is_exactly_zero(name: str) -> None:
    logp = _double([-0.1, -7.0, -40.0])
    assert not KL_ESTIMATES[name](logp, logp).any()


@pytest.mark.parametrize(("longest", "buffer"), [(7, 7), (10, 3), (4, 1), (5, 0)])
def test_overlong_penalty_is_the_equation(longest: int, buffer: int) -> None:
    for length in range(longest + 3):
        if buffer == 0 or length <= longest - buffer:
            wanted = Fraction(0)
        elif length <= longest:
            wanted = Fraction((longest - buffer) - length, buffer)
        else:
            wanted = Fraction(-1)
        assert overlong_penalty(length, longest=longest, buffer=buffer) == pytest.approx(
            float(wanted), abs=1e-15
        )


def test_returns_to_go_are_what_is_left_of_the_reward() -> None:
    costs = [[Fraction(1, 8), Fraction(-1, 4), Fraction(1, 2)], [Fraction(3, 8)]]
    rewards = [Fraction(1), Fraction(-2)]
    wanted = [
        float(reward - sum(row[start:]))
        for reward, row in zip(rewards, costs, strict=True)
        for start in range(len(row))
    ]
    flat = np.array([float(cost) for row in costs for cost in row])
    assert returns_to_go([1.0, -2.0], flat, [3, 1]).tolist() == wanted


def test_dpo_of_equal_responses_is_log_two_and_the_gradient_is_beta_over_two() -> None:
    logp = _double([-1.0, -1.0]).requires_grad_()
    zeros = torch.zeros(2, dtype=torch.float64)
    tokens = ScoredTokens(
        logprobs_P=logp,
        old_logprobs_P=zeros,
        reference_logprobs_P=_double([-1.0, -1.0]),
        advantages_P=zeros,
        engine_logprobs_P=zeros,
        values_P=None,
        old_values_P=zeros,
        returns_P=zeros,
        row_P=torch.tensor([0, 1]),
        pairs=PairTokens(
            pair_T=torch.tensor([0, 0]),
            chosen_T=torch.tensor([True, False]),
            margin_T=zeros,
            label_T=torch.ones(2, dtype=torch.float64),
        ),
    )
    loss = Dpo(DpoSettings(beta=0.25)).token_loss(tokens).loss_P
    assert loss.tolist() == pytest.approx([math.log(2.0)] * 2, abs=1e-15)
    (gradient,) = torch.autograd.grad(loss[0], logp)
    assert gradient.tolist() == pytest.approx([-0.125, 0.125], abs=1e-15)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_no_spread_anywhere_gives_an_empty_batch_and_not_a_division_by_zero(
    aggregation: str,
) -> None:
    groups = [[_cut_off("a", 1.0), _cut_off("b", 1.0)], [_cut_off("c", 0.0)], []]
    for name in ("grpo", "dapo", "rloo", "gspo"):
        settings = PolicyGradientSettings(
            advantages=KINDS[name].advantages,
            only_groups_that_teach=KINDS[name].only_groups_that_teach,
            aggregation=aggregation,
            max_tokens=4,
        )
        batch = PolicyGradient(settings).batch(groups)
        assert batch.tokens.num_tokens == 0
        assert batch.figures["groups/without_spread"] == 1
