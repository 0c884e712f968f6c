"""Soft labels of pairs: losses, gradients and figures by hand, and hard labels to the bit."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

from learner.training.algorithms.base import Algorithm, PairTokens, ScoredTokens
from learner.training.algorithms.dpo import Dpo, DpoSettings
from learner.training.algorithms.pairs import Pair, pair_figures
from learner.training.algorithms.reward_model import RewardModel, RewardModelSettings
from learner.training.model import Policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from trajectory.rendering import RenderedRow

pytestmark = pytest.mark.slow

LOG_3 = math.log(3.0)
"""sigmoid(log 3) is 3/4, so that -log sigmoid is log 4 - log 3 on one side and log 4 on the other."""
MakePolicy = Callable[..., Policy]


def _tokens(
    deltas: Sequence[float],
    labels: Sequence[float],
    margins: Sequence[float],
    dtype: torch.dtype = torch.float64,
) -> ScoredTokens:
    """One token for each side of each pair: what the chosen one has is delta, the rejected one 0."""
    count = len(deltas)
    values_P = torch.tensor([d for delta in deltas for d in (delta, 0.0)], dtype=dtype)
    zeros_P = torch.zeros(2 * count, dtype=dtype)
    leaf_P = values_P.requires_grad_()
    return ScoredTokens(
        logprobs_P=leaf_P,
        old_logprobs_P=zeros_P,
        reference_logprobs_P=zeros_P,
        advantages_P=zeros_P,
        engine_logprobs_P=zeros_P,
        values_P=leaf_P,
        old_values_P=zeros_P,
        returns_P=zeros_P,
        row_P=torch.arange(2 * count),
        pairs=PairTokens(
            pair_T=torch.arange(count).repeat_interleave(2),
            chosen_T=torch.tensor([True, False] * count),
            margin_T=torch.tensor(margins, dtype=dtype).repeat_interleave(2),
            label_T=torch.tensor(labels, dtype=dtype).repeat_interleave(2),
        ),
    )


def _loss(
    algorithm: Algorithm, delta: float, label: float, margin: float = 0.0
) -> tuple[float, float]:
    """Returns the loss of one pair and its derivative by delta."""
    tokens = _tokens([delta], [label], [margin])
    loss_P = algorithm.token_loss(tokens).loss_P
    assert loss_P[0] == loss_P[1]
    (gradient_P,) = torch.autograd.grad(loss_P[0], tokens.logprobs_P)
    assert gradient_P[0] == -gradient_P[1]
    return float(loss_P[0].detach()), float(gradient_P[0])


PLAIN = [RewardModel(), Dpo(DpoSettings(beta=1.0))]


@pytest.mark.parametrize("algorithm", PLAIN)
@pytest.mark.parametrize("label", [1.0, 0.75, 0.7, 0.5, 0.25, 0.0])
def test_loss_is_cross_entropy_and_its_slope_the_gap_to_the_label(
    algorithm: Algorithm, label: float
) -> None:
    for delta, margin in ((LOG_3, 0.0), (LOG_3 + 2.0, 2.0)):
        loss, slope = _loss(algorithm, delta, label, margin)
        # -(p log 3/4 + (1 - p) log 1/4)
        assert loss == pytest.approx(2 * math.log(2) - label * LOG_3, abs=1e-14)
        assert slope == pytest.approx(0.75 - label, abs=1e-14)


@pytest.mark.parametrize("label", [1.0, 0.75, 0.5, 0.25])
def test_label_smoothing_may_turn_what_the_judge_said(label: float) -> None:
    target = 0.875 * label + 0.125 * (1 - label)
    dpo = Dpo(DpoSettings(beta=1.0, label_smoothing=0.125))
    loss, slope = _loss(dpo, LOG_3 + 0.5, label, margin=0.5)
    assert loss == pytest.approx(2 * math.log(2) - target * LOG_3, abs=1e-14)
    assert slope == pytest.approx(0.75 - target, abs=1e-14)


@pytest.mark.parametrize(
    "algorithm", [*PLAIN, Dpo(DpoSettings(beta=0.1)), Dpo(DpoSettings(label_smoothing=0.2))]
)
def test_equal_responses_that_the_judge_cannot_tell_apart_teach_nothing(
    algorithm: Algorithm,
) -> None:
    assert _loss(algorithm, 0.0, 0.5) == (math.log(2), 0.0)


@pytest.mark.parametrize("algorithm", [*PLAIN, Dpo(DpoSettings(label_smoothing=0.3))])
def test_label_of_one_is_the_hard_loss_to_the_bit_also_beside_soft_ones(algorithm: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    deltas = (torch.randn(500, generator=generator) * 30).tolist()
    margins = torch.rand(500, generator=generator).tolist()
    labels = [1.0 if index % 2 else 0.3 for index in range(500)]
    tokens = _tokens(deltas, labels, margins, torch.float32)
    assert tokens.pairs is not None
    found_P = algorithm.token_loss(tokens).loss_P
    (gradient_P,) = torch.autograd.grad(found_P.sum(), tokens.logprobs_P)

    leaf_P = tokens.logprobs_P.detach().clone().requires_grad_()
    dpo = isinstance(algorithm, Dpo)
    beta = algorithm._settings.beta if dpo else 1.0
    smoothing = algorithm._settings.label_smoothing if dpo else 0.0
    ahead_N = beta * leaf_P[::2] - beta * leaf_P[1::2] - tokens.pairs.margin_T[::2]
    hard_N = -logsigmoid(ahead_N)
    if smoothing > 0:
        hard_N = (1 - smoothing) * hard_N + smoothing * -logsigmoid(-ahead_N)
    (wanted_P,) = torch.autograd.grad(hard_N.repeat_interleave(2).sum(), leaf_P)
    hard_P = tokens.pairs.label_T == 1.0
    assert torch.equal(found_P[hard_P], hard_N.repeat_interleave(2)[hard_P])
    assert torch.equal(gradient_P[hard_P], wanted_P[hard_P])
    assert not torch.equal(found_P[~hard_P], hard_N.repeat_interleave(2)[~hard_P])


def _figures(rewards: Sequence[tuple[float, float]], labels: Sequence[float]) -> dict[str, float]:
    pairs = _tokens([0.0] * len(labels), labels, [0.0] * len(labels)).pairs
    assert pairs is not None
    return pair_figures(torch.tensor([side for pair in rewards for side in pair]), pairs)


def test_figures_take_for_chosen_what_the_label_holds_for_the_better_one() -> None:
    # Both say chosen; both say rejected; the model says rejected and the label chosen; no better one.
    figures = _figures([(3, 1), (1, 2), (0, 4), (9, 5)], [1.0, 0.25, 0.75, 0.5])
    assert figures["rewards/accuracies"] == pytest.approx(2 / 3)
    assert figures["rewards/chosen"] == (3 + 2 + 0 + 9) / 4
    assert figures["rewards/rejected"] == (1 + 1 + 4 + 5) / 4
    assert figures["rewards/margins"] == (2 + 1 - 4 + 4) / 4
    chances = [1 / (1 + math.exp(-delta)) for delta in (2, 1, -4, 4)]
    assert figures["rewards/probability"] == pytest.approx(sum(chances) / 4)
    assert figures["labels/probability"] == (1 + 0.75 + 0.75 + 0.5) / 4
    # A quarter has the entropy log 4 - 3/4 log 3 as three quarters have; a half has log 2, and a hard label 0.
    entropy = 2 * (2 * math.log(2) - 0.75 * LOG_3) + math.log(2)
    assert figures["labels/entropy"] == pytest.approx(entropy / 4)


def test_no_accuracy_where_no_label_has_a_better_one_and_no_label_figures_where_all_are_hard() -> (
    None
):
    undecided = _figures([(3, 1), (1, 3)], [0.5, 0.5])
    assert "rewards/accuracies" not in undecided
    assert undecided["labels/entropy"] == pytest.approx(math.log(2))
    hard = _figures([(3, 1), (1, 3)], [1.0, 1.0])
    assert hard["rewards/accuracies"] == 0.5
    assert not [name for name in hard if name.startswith("labels/")]
    # A judge who is certain of the rejected one is as hard a label.
    assert _figures([(1, 3)], [0.0])["rewards/accuracies"] == 1.0


def _row(*ids: int) -> RenderedRow:
    return RenderedRow(token_ids=(7, 8, 9, *ids), loss_mask=(False,) * 3 + (True,) * len(ids))


@pytest.mark.parametrize("scored", [False, True])
def test_label_is_the_mixture_of_both_hard_labels_through_the_whole_step(
    make_policy: MakePolicy, scored: bool
) -> None:
    one, other = _row(11, 12, 13), _row(310, 311)

    def measured(pair: Pair) -> dict[str, float]:
        policy = make_policy(score_head=scored)
        if policy.value_head is not None:
            generator = torch.Generator().manual_seed(3)
            with torch.no_grad():
                policy.value_head.weight.normal_(0.0, 0.3, generator=generator)
        kind = RewardModelSettings() if scored else DpoSettings()
        schedule = ScheduleSettings(learning_rate=1e-2, max_steps=1)
        return Trainer(
            policy, TrainerSettings(schedule=schedule, preferences=kind)
        ).preference_step([pair])

    won = measured(Pair(chosen=(one,), rejected=(other,)))
    lost = measured(Pair(chosen=(other,), rejected=(one,)))
    soft = measured(Pair(chosen=(one,), rejected=(other,), soft_label=0.3))
    assert won["loss"] != pytest.approx(lost["loss"], abs=1e-3)
    assert soft["loss"] == pytest.approx(0.3 * won["loss"] + 0.7 * lost["loss"], rel=1e-5)
    # The judge holds the other one for the better: figures are those of the row the other way round.
    for name in ("chosen", "rejected", "margins", "accuracies", "probability"):
        assert soft[f"rewards/{name}"] == lost[f"rewards/{name}"]
    certain = measured(Pair(chosen=(one,), rejected=(other,), soft_label=0.0))
    assert certain["loss"] == pytest.approx(lost["loss"], rel=1e-6)
    assert certain["grad_norm"] == pytest.approx(lost["grad_norm"], rel=1e-4)
