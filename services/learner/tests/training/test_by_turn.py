"""Advantages by turn (DeepSeekMath, arXiv:2402.03300, section 4.1.3), against exact arithmetic written out here."""

from collections.abc import Sequence
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest

from learner.ports import ScoredRollout
from learner.training.algorithms.base import FirstPass
from learner.training.algorithms.by_turn import earned, members_differ
from learner.training.algorithms.policy_gradient import PolicyGradient, PolicyGradientSettings
from learner.training.algorithms.table import KINDS
from trajectory.types import TokenRow, TokenSpan

getcontext().prec = 40


def _row(turns: Sequence[int]) -> TokenRow:
    """A prompt token, then for each turn two tokens of the policy and one of a tool."""
    mask = [False]
    spans = []
    for turn in turns:
        spans.append(TokenSpan(start=len(mask), end=len(mask) + 2, turn=turn, policy_version=0))
        mask += [True, True, False]
    return TokenRow(
        token_ids=tuple(range(len(mask))),
        loss_mask=tuple(mask),
        logprobs=tuple(-1.0 if chosen else 0.0 for chosen in mask),
        spans=tuple(spans),
    )


def _rollout(
    score: float, turn_rewards: tuple[float, ...], *rows: Sequence[int], name: str = "r"
) -> ScoredRollout:
    return ScoredRollout(
        rollout_id=name,
        rows=tuple(_row(turns) for turns in rows),
        score=score,
        turn_rewards=turn_rewards,
    )


def _exact(groups: list[list[list[str]]], *, over_std: bool) -> list[list[float]]:
    """The equation, for members given as the rewards of their turns."""
    found = []
    for group in groups:
        pooled = [Fraction(reward) for member in group for reward in member]
        mean = sum(pooled) / len(pooled)
        variance = sum((reward - mean) ** 2 for reward in pooled) / (len(pooled) - 1)
        scale = Decimal(1)
        if over_std:
            scale = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
        for member in group:
            later = [
                sum((Fraction(r) - mean for r in member[j:]), Fraction(0))
                for j in range(len(member))
            ]
            found.append(
                [float(Decimal(v.numerator) / Decimal(v.denominator) / scale) for v in later]
            )
    return found


GROUP = [["0", "1"], ["0", "0.25", "0.5"], ["0"], ["-0.5"]]
"""Rewards by turn; the third and the fourth member have one for both of their turns."""


def _members() -> list[ScoredRollout]:
    return [
        _rollout(1.0, (0.0, 1.0), [0, 1]),
        _rollout(0.75, (0.0, 0.25, 0.5), [0, 1, 2]),
        _rollout(0.0, (), [0, 1]),
        _rollout(-0.5, (-0.5,), [0, 1]),
    ]


@pytest.mark.parametrize(("name", "over_std"), [("grpo", True), ("dr_grpo", False)])
def test_every_token_gets_what_came_from_its_turn_on(name: str, over_std: bool) -> None:
    settings = PolicyGradientSettings(advantages=KINDS[name].advantages, turn_rewards=True)
    batch = PolicyGradient(settings).batch([_members()])
    first, second, third, fourth = _exact([GROUP], over_std=over_std)
    wanted = [
        *[first[0]] * 2,
        *[first[1]] * 2,
        *[second[0]] * 2,
        *[second[1]] * 2,
        *[second[2]] * 2,
        *[third[0]] * 4,
        *[fourth[0]] * 4,
    ]
    assert batch.advantages_T.tolist() == pytest.approx(wanted, abs=1e-12)
    assert batch.turn_T is not None
    assert batch.turn_T.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 0, 0, 1, 1]


def test_what_the_score_has_beyond_the_turns_belongs_to_the_last() -> None:
    assert earned(1.0, (0.25, 0.5)).tolist() == [0.25, 0.75]
    assert earned(-2.0, ()).tolist() == [-2.0]
    members = [_rollout(1.5, (0.0, 1.0), [0, 1]), _rollout(0.0, (0.0, 0.0), [0, 1])]
    batch = PolicyGradient(
        PolicyGradientSettings(advantages=KINDS["dr_grpo"].advantages, turn_rewards=True)
    ).batch([members])
    first, second = _exact([[["0", "1.5"], ["0", "0"]]], over_std=False)
    wanted = [value for member in (first, second) for value in member for _ in range(2)]
    assert batch.advantages_T.tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo"])
def test_with_nothing_but_scores_it_is_the_advantage_of_the_rollout(name: str) -> None:
    groups = [
        [_rollout(score, (), [0, 1], [0, 2]) for score in (0.0, 1.0, 0.5)],
        [_rollout(1.0, (), [0])] * 2,
        [_rollout(1.0, (), [0])],
        [],
    ]
    plain = PolicyGradient(KINDS[name]).batch(groups)
    by_turn = PolicyGradient(
        PolicyGradientSettings(
            advantages=KINDS[name].advantages,
            only_groups_that_teach=KINDS[name].only_groups_that_teach,
            turn_rewards=True,
        )
    ).batch(groups)
    assert by_turn.advantages_T.tolist() == plain.advantages_T.tolist()
    assert by_turn.weights_T.tolist() == plain.weights_T.tolist()
    assert dict(by_turn.figures) == dict(plain.figures)


def test_a_fork_answers_for_the_turns_that_it_holds() -> None:
    forked = _rollout(1.0, (0.0, 0.25, 0.75), [0, 1], [2])
    other = _rollout(0.0, (0.0, 0.0, 0.0), [0, 1, 2])
    batch = PolicyGradient(
        PolicyGradientSettings(advantages=KINDS["dr_grpo"].advantages, turn_rewards=True)
    ).batch([[forked, other]])
    ((*made, last), _) = _exact([[["0", "0.25", "0.75"], ["0"] * 3]], over_std=False)
    assert batch.tokens.counts == (4, 2, 6)
    wanted = [*[made[0]] * 2, *[made[1]] * 2, *[last] * 2]
    assert batch.advantages_T[:6].tolist() == pytest.approx(wanted, abs=1e-12)


def test_order_of_rewards_teaches_where_their_sum_is_equal() -> None:
    members = [_rollout(1.0, (1.0, 0.0), [0, 1]), _rollout(1.0, (0.0, 1.0), [0, 1])]
    outcome = PolicyGradient(PolicyGradientSettings()).batch([members])
    assert outcome.tokens.num_tokens == 0
    assert outcome.figures["groups/without_spread"] == 1
    for only_groups_that_teach in (False, True):
        settings = PolicyGradientSettings(
            turn_rewards=True, only_groups_that_teach=only_groups_that_teach
        )
        batch = PolicyGradient(settings).batch([members])
        first, second = _exact([[["1", "0"], ["0", "1"]]], over_std=True)
        wanted = [value for member in (first, second) for value in member for _ in range(2)]
        assert batch.advantages_T.tolist() == pytest.approx(wanted, abs=1e-12)
        assert batch.figures["groups/trained"] == 1


def test_groups_whose_members_earned_the_same_turn_by_turn_teach_nothing() -> None:
    alike = [_rollout(1.0, (0.0, 1.0), [0, 1])] * 3
    alone = [_rollout(1.0, (0.0, 1.0), [0, 1])]
    batch = PolicyGradient(PolicyGradientSettings(turn_rewards=True)).batch([alike, alone])
    assert batch.tokens.num_tokens == 0
    assert batch.figures["groups/without_spread"] == 1
    assert batch.figures["groups/too_small"] == 1


def test_members_with_fewer_turns_differ_only_by_what_they_earned() -> None:
    assert not members_differ([np.array([1.0]), np.array([1.0, 0.0])])
    assert members_differ([np.array([1.0]), np.array([0.0, 1.0])])
    assert not members_differ([np.array([0.1 + 0.2]), np.array([0.3])])


def test_kl_in_the_reward_is_taken_from_the_last_turn() -> None:
    settings = PolicyGradientSettings(
        advantages=KINDS["dr_grpo"].advantages,
        turn_rewards=True,
        kl_coef=0.5,
        kl_estimator="k1",
        kl_in_reward=True,
    )
    algorithm = PolicyGradient(settings)
    members = [_rollout(1.0, (0.25, 0.75), [0, 1]), _rollout(0.0, (0.0, 0.0), [0, 1])]
    batch = algorithm.batch([members])
    size = batch.tokens.num_tokens
    old = np.full(size, -1.0)
    # k1 is 0.125 of each of the first member's four tokens: 4 * 0.5 * 0.125 = 0.25 in all.
    reference = np.where(np.arange(size) < 4, -1.125, -1.0)
    made = algorithm.targets(
        batch,
        FirstPass(old_logprobs_T=old, reference_logprobs_T=reference, values_T=np.zeros(size)),
    )
    first, second = _exact([[["0.25", "0.5"], ["0", "0"]]], over_std=False)
    wanted = [value for member in (first, second) for value in member for _ in range(2)]
    assert made.advantages_T.tolist() == pytest.approx(wanted, abs=1e-12)
