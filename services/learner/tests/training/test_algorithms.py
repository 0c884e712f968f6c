"""Algorithms on numbers worked out by hand, and on the shared cases where they are at hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from learner.ports import ScoredRollout
from learner.training.algorithms import dr_grpo, grpo, reinforce_pp, rloo
from learner.training.algorithms.aggregation import AGGREGATIONS
from learner.training.algorithms.base import ScoredTokens
from learner.training.algorithms.by_turn import earned_by_turn
from learner.training.algorithms.dapo import teaches
from learner.training.algorithms.gae import discounts, gae, whiten
from learner.training.algorithms.grpo import group_advantages, has_spread
from learner.training.algorithms.importance import (
    effective_sample_size,
    sequence_weights,
    token_weights,
)
from learner.training.algorithms.kl import KL_ESTIMATES, kl_k3
from learner.training.algorithms.overlong import overlong_penalty
from learner.training.algorithms.policy_gradient import PolicyGradient, PolicyGradientSettings
from learner.training.algorithms.ppo import token_rewards, value_loss
from learner.training.algorithms.ratios import clipped_loss, row_log_ratio
from learner.training.algorithms.sft import Sft, sft_batch
from trajectory.types import TokenRow, TokenSpan

MakeGroups = Callable[..., list[list[ScoredRollout]]]


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _tokens(
    logp: Any,
    old: Any,
    advantages: Any,
    reference: Any = None,
    *,
    engine: Any = None,
    rows: Any = None,
) -> ScoredTokens:
    return ScoredTokens(
        logprobs_P=_tensor(logp),
        old_logprobs_P=_tensor(old),
        advantages_P=_tensor(advantages),
        reference_logprobs_P=_tensor(reference or [math.nan] * len(logp)),
        engine_logprobs_P=_tensor(engine or [math.nan] * len(logp)),
        values_P=None,
        old_values_P=_tensor([0.0] * len(logp)),
        returns_P=_tensor([0.0] * len(logp)),
        row_P=torch.tensor(rows or [0] * len(logp)),
    )


def _rollout(score: float, *lengths: int, name: str = "r", logprob: float = -1.0) -> ScoredRollout:
    rows = tuple(
        TokenRow(
            token_ids=tuple(range(length + 1)),
            loss_mask=(False, *[True] * length),
            logprobs=(0.0, *[logprob] * length),
            spans=(TokenSpan(start=1, end=length + 1, turn=0, policy_version=0),) if length else (),
        )
        for length in lengths
    )
    return ScoredRollout(rollout_id=name, rows=rows, score=score)


class TestSharedCases:
    @pytest.mark.parametrize(
        "name", ["grpo_adv_binary", "grpo_adv_one_hit_of_8", "grpo_adv_graded"]
    )
    def test_group_advantages(self, case: Any, name: str) -> None:
        found = case(name)
        rewards = _tensor(found["inputs"]["rewards"])
        for estimate, key in ((grpo, "sample_std_eps0"), (dr_grpo, "no_std")):
            (advantages,) = estimate.advantages([rewards])
            wanted = _tensor(found["expected"][key])
            assert torch.allclose(advantages, wanted, rtol=0, atol=found["tol"])

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize(
        "name", ["grpo_adv_all_equal_ones", "grpo_adv_all_equal_zero", "grpo_adv_all_equal_0.35"]
    )
    def test_equal_rewards_give_exactly_zero(
        self, case: Any, name: str, dtype: torch.dtype
    ) -> None:
        rewards = torch.tensor(case(name)["inputs"]["rewards"], dtype=dtype)
        assert not group_advantages(rewards).any()

    def test_groups_are_normalised_apart(self, case: Any) -> None:
        found = case("grpo_adv_two_groups")
        rewards = [_tensor(group) for group in found["inputs"]["rewards_by_group"]]
        made = zip(grpo.advantages(rewards), found["expected"]["sample_std"], strict=True)
        for advantages, wanted in made:
            assert torch.allclose(advantages, _tensor(wanted), rtol=0, atol=found["tol"])

    def test_dr_grpo_advantages(self, case: Any) -> None:
        found = case("drgrpo_adv")
        (advantages,) = dr_grpo.advantages([_tensor(found["inputs"]["rewards"])])
        assert advantages.tolist() == found["expected"]["advantages"]

    def test_aggregation_three_ways(self, case: Any) -> None:
        found = case("aggregation_three_ways")
        inputs, expected = found["inputs"], found["expected"]
        names = {
            "sequence_mean": "seq_mean_token_mean",
            "token_mean": "token_mean",
            "constant": "dr_grpo_constant",
        }
        for name, key in names.items():
            weights = AGGREGATIONS[name]([[n] for n in inputs["lengths"]], inputs["max_len"])
            loss = sum(
                -advantage * length * row_weights[0]
                for advantage, length, row_weights in zip(
                    inputs["advantages"], inputs["lengths"], weights, strict=True
                )
            )
            assert loss == pytest.approx(expected[key], abs=found["tol"])

    def test_clip_table(self, case: Any) -> None:
        found = case("ppo_clip_table")
        eps = found["inputs"]["eps"]
        for row in found["expected"]["rows"]:
            ratio = _tensor([row["ratio"]]).requires_grad_()
            advantage = _tensor([row["advantage"]])
            loss, clipped = clipped_loss(ratio.log(), advantage, eps, eps)
            (gradient,) = torch.autograd.grad(-loss.sum(), ratio)
            assert loss.item() == pytest.approx(row["loss"], abs=1e-9)
            assert gradient.item() == pytest.approx(row["gradient_wrt_ratio"], abs=1e-9)
            assert clipped.item() == row["clipped"]
            dual, _ = clipped_loss(ratio.log(), advantage, eps, eps, found["inputs"]["c"])
            (gradient,) = torch.autograd.grad(-dual.sum(), ratio)
            assert -dual.item() == pytest.approx(row["dual_clip_c3_objective"], abs=1e-9)
            assert gradient.item() == pytest.approx(row["dual_clip_gradient_wrt_ratio"], abs=1e-9)

    def test_clip_vector(self, case: Any) -> None:
        found = case("ppo_clip_vector")
        inputs, expected = found["inputs"], found["expected"]
        tokens = _tokens(inputs["logp"], inputs["old_logp"], inputs["advantages"])
        settings = PolicyGradientSettings(clip_low=inputs["eps"], clip_high=inputs["eps"])
        loss = PolicyGradient(settings).token_loss(tokens)
        assert (-loss.loss_P).tolist() == pytest.approx(expected["objective"], abs=found["tol"])
        assert loss.loss_P.mean().item() == pytest.approx(expected["loss"], abs=found["tol"])
        assert loss.clipped_P is not None
        assert loss.clipped_P.double().mean().item() == expected["clip_fraction"]
        dual = PolicyGradientSettings(
            clip_low=inputs["eps"], clip_high=inputs["eps"], dual_clip=inputs["c"]
        )
        found_dual = PolicyGradient(dual).token_loss(tokens).loss_P.mean().item()
        assert found_dual == pytest.approx(expected["dual_clip_loss"], abs=found["tol"])
        k1 = KL_ESTIMATES["k1"](tokens.old_logprobs_P, tokens.logprobs_P).mean().item()
        assert k1 == pytest.approx(expected["approx_kl_k1"], abs=found["tol"])

    @pytest.mark.parametrize("name", KL_ESTIMATES)
    def test_kl_expectation(self, case: Any, name: str) -> None:
        found = case("kl_exact_expectation")
        policy, reference = (_tensor(found["inputs"][key]) for key in ("pi", "ref"))
        expectation = (policy * KL_ESTIMATES[name](policy.log(), reference.log())).sum()
        wanted = found["expected"][f"E_{name}"]
        assert expectation.item() == pytest.approx(wanted, abs=found["tol"])

    @pytest.mark.parametrize("name", KL_ESTIMATES)
    def test_kl_gradient(self, case: Any, name: str) -> None:
        found = case("kl_gradient_bias")
        logits = _tensor(found["inputs"]["logits"]).requires_grad_()
        policy, reference = (_tensor(found["inputs"][key]) for key in ("pi", "ref"))
        estimate = (policy * KL_ESTIMATES[name](logits.log_softmax(-1), reference.log())).sum()
        (gradient,) = torch.autograd.grad(estimate, logits)
        wanted = _tensor(found["expected"][f"grad_{name}_in_loss"])
        assert torch.allclose(gradient, wanted, rtol=0, atol=found["tol"])

    def test_k3_extremes_stay_finite(self, case: Any) -> None:
        found = case("kl_extreme")
        inputs = found["inputs"]
        k3 = kl_k3(_tensor(inputs["logp"]), _tensor(inputs["ref_logp"]))
        wanted = _tensor(found["expected"]["k3_float64"])
        assert torch.allclose(k3, wanted, rtol=found["tol"], atol=0)

    @pytest.mark.parametrize("name", ["rloo_binary", "rloo_graded"])
    def test_rloo(self, case: Any, name: str) -> None:
        found = case(name)
        (advantages,) = rloo.advantages([_tensor(found["inputs"]["rewards"])])
        wanted = found["expected"]["advantages"]
        assert advantages.tolist() == pytest.approx(wanted, abs=found["tol"])

    def test_leave_one_out_of_the_odd_member_has_no_residue(self, case: Any) -> None:
        found = case("loo_std_residue")
        for dtype in (torch.float64, torch.float32):
            rewards = torch.tensor(found["inputs"]["rewards"], dtype=dtype)
            advantages = rloo.leave_one_out(rewards)
            baseline = (rewards.double() - advantages).tolist()
            assert baseline == pytest.approx(found["expected"]["loo_baseline"], abs=1e-6)
            wanted = found["expected"]["advantage_of_last"]
            assert advantages[-1].item() == pytest.approx(wanted, abs=1e-6)

    def test_reinforce_pp_over_all_tokens(self, case: Any) -> None:
        found = case("reinforcepp_global_norm")
        inputs, expected = found["inputs"], found["expected"]
        kl = np.concatenate(inputs["kl_per_token"])
        counts = [len(row) for row in inputs["kl_per_token"]]
        returns = reinforce_pp.returns_to_go(inputs["outcome_rewards"], inputs["beta"] * kl, counts)
        assert returns.tolist() == pytest.approx(np.concatenate(expected["returns"]), abs=1e-12)
        wanted = np.concatenate(expected["adv_sample_std"])
        assert reinforce_pp.normalised(returns).tolist() == pytest.approx(wanted, abs=found["tol"])

    def test_reinforce_pp_with_a_baseline(self, case: Any) -> None:
        found = case("reinforcepp_baseline")
        groups = [_tensor(group) for group in found["inputs"]["rewards_by_group"]]
        made = reinforce_pp.baseline_advantages(groups)
        for advantages, wanted in zip(made, found["expected"]["adv_sample_std"], strict=True):
            assert advantages.tolist() == pytest.approx(wanted, abs=found["tol"])

    @pytest.mark.parametrize("name", ["gspo_ratio", "gspo_mask_invariance"])
    def test_gspo_ratio(self, case: Any, name: str) -> None:
        found = case(name)
        inputs = found["inputs"]
        chosen = np.asarray(inputs.get("mask", [1] * len(inputs["logp"])), dtype=bool)
        logp, old = _tensor(inputs["logp"])[chosen], _tensor(inputs["old_logp"])[chosen]
        # A second row beside it, in between, must not change it.
        mixed = [torch.stack((a, torch.full_like(a, -7.0)), 1).flatten() for a in (logp, old)]
        rows = torch.tensor([3, 5] * len(logp))
        ratio = row_log_ratio(mixed[0], mixed[1], rows).exp()
        assert ratio[rows == 3].tolist() == pytest.approx(
            [found["expected"]["s"]] * len(logp), abs=found["tol"]
        )

    def test_gspo_loss(self, case: Any) -> None:
        found = case("gspo_loss")
        inputs = found["inputs"]
        settings = PolicyGradientSettings(
            ratio_of_rows=True, clip_low=inputs["eps_low"], clip_high=inputs["eps_high"]
        )
        logp = _tensor(inputs["s"]).log()
        tokens = _tokens(logp.tolist(), [0.0] * 3, inputs["advantages"], rows=[0, 1, 2])
        loss = PolicyGradient(settings).token_loss(tokens).loss_P
        assert (-loss).tolist() == pytest.approx(found["expected"]["objective"], abs=found["tol"])
        assert loss.mean().item() == pytest.approx(found["expected"]["loss"], abs=found["tol"])

    @pytest.mark.parametrize("name", ["dapo_soft_overlong", "dapo_soft_overlong_small"])
    def test_overlong_penalty(self, case: Any, name: str) -> None:
        found = case(name)
        inputs = found["inputs"]
        made = [
            overlong_penalty(length, longest=inputs["L_max"], buffer=inputs["L_cache"])
            for length in inputs["lengths"]
        ]
        assert made == pytest.approx(found["expected"]["penalty"], abs=found["tol"])

    def test_dynamic_sampling_keeps_what_teaches(self, case: Any) -> None:
        found = case("dapo_dynamic_sampling_filter")
        scores = [_tensor(group) for group in found["inputs"]["groups"]]
        none = [()] * sum(len(group) for group in scores)
        assert teaches(earned_by_turn(scores, none)) == found["expected"]["keep"]

    def test_groups_with_a_signal(self, case: Any) -> None:
        found = case("variance_classes")
        scores = [_tensor(samples) for samples in found["inputs"]["samples"]]
        none = [()] * sum(len(samples) for samples in scores)
        wanted = [row["has_signal"] for row in found["expected"]["rows"]]
        assert teaches(earned_by_turn(scores, none)) == wanted

    def test_weights_do_not_depend_on_how_a_step_is_accumulated(self, case: Any) -> None:
        found = case("trl_misscale")
        batch = PolicyGradient(PolicyGradientSettings()).batch(
            [[_rollout(index % 2, 1 + index % 5) for index in range(64)]]
        )
        size = batch.tokens.num_tokens
        for (_, accumulated), factor in zip(
            found["inputs"]["cases"], found["expected"]["right_factor"], strict=True
        ):
            # A loss of 1 everywhere has the mean 1, whatever lies in which micro-batch.
            parts = np.array_split(batch.weights_T, accumulated)
            assert sum(len(part) for part in parts) == size
            assert math.fsum(part.sum() for part in parts) == pytest.approx(factor, abs=1e-12)

    def test_importance_weights_of_a_long_row(self, case: Any) -> None:
        found = case("tis_length_blowup")
        inputs, expected = found["inputs"], found["expected"]
        size = inputs["tokens"]
        old, engine = _tensor([inputs["per_token_log_ratio"]] * size), _tensor([0.0] * size)
        rows = torch.zeros(size, dtype=torch.int64)
        free = sequence_weights(old, engine, rows, math.inf)
        cut = sequence_weights(old, engine, rows, inputs["cap"])
        assert free[0].item() == pytest.approx(expected["sequence_ratio"], abs=1e-9)
        assert set(cut.tolist()) == {expected["truncated"]}
        each = token_weights(old, engine, inputs["cap"])
        assert each[0].item() == pytest.approx(expected["geometric"], abs=found["tol"])

    def test_nucleus_sampling_is_corrected_by_its_weight(self, case: Any) -> None:
        found = case("nucleus_bias")
        expected = found["expected"]
        old, engine = _tensor([expected["trainer_logp"]]), _tensor([expected["engine_logp"]])
        weight = token_weights(old, engine, 2.0)
        assert weight.item() == pytest.approx(expected["naive_ratio"], abs=found["tol"])
        ratio = row_log_ratio(old, old, torch.tensor([0])).exp()
        assert ratio.item() == expected["corrected_ratio"]

    def test_effective_sample_size(self, case: Any) -> None:
        found = case("effective_sample_size")
        size = effective_sample_size(_tensor(found["inputs"]["weights"]))
        assert size == pytest.approx(found["expected"]["ess"], abs=found["tol"])

    @pytest.mark.parametrize(
        "name", ["gae_terminal", "gae_lambda0_td", "gae_lambda1_mc", "gae_llm_default_g1_l1"]
    )
    def test_gae(self, case: Any, name: str) -> None:
        found = case(name)
        inputs = found["inputs"]
        made = gae(
            np.array(inputs["rewards"], dtype=float),
            np.array(inputs["values"]),
            discounts(np.arange(len(inputs["values"])), inputs["gamma"]),
            inputs["lambda"],
            bootstrap=inputs["bootstrap_value"],
        )
        expected = found["expected"]
        assert made.advantages_T.tolist() == pytest.approx(expected["advantages"], abs=found["tol"])
        assert made.returns_T.tolist() == pytest.approx(expected["returns"], abs=found["tol"])

    def test_gae_rewards_the_last_policy_token_and_skips_tool_results(self, case: Any) -> None:
        found = case("gae_reward_then_observation")
        inputs = found["inputs"]
        mask = np.array(inputs["mask"], dtype=bool)
        turns = np.arange(len(mask))[mask]
        made = gae(
            token_rewards(inputs["outcome_reward"], (), turns),
            np.array(inputs["values"])[mask],
            discounts(turns, inputs["gamma"]),
            inputs["lambda"],
        )
        wanted = np.array(found["expected"]["advantages"])[mask]
        assert made.advantages_T.tolist() == pytest.approx(wanted, abs=found["tol"])

    def test_whitening_over_what_counts(self, case: Any) -> None:
        found = case("whiten_masked")
        mask = np.array(found["inputs"]["mask"], dtype=bool)
        made = whiten(np.array(found["inputs"]["x"])[mask])
        wanted = np.array(found["expected"]["sample"])[mask]
        assert made.tolist() == pytest.approx(wanted, abs=found["tol"])

    def test_sft_token_mean_over_the_batch(self, case: Any) -> None:
        found = case("sft_token_vs_sequence_mean")
        logp = found["inputs"]["logp"]
        rows = [_rollout(0, len(row)).rows[0] for row in logp]
        for aggregation in ("token_mean", "sequence_mean"):
            batch = sft_batch(rows, aggregation=aggregation)
            flat = [value for row in logp for value in row]
            loss = Sft().token_loss(_tokens(flat, flat, [0.0] * len(flat))).loss_P
            total = (torch.from_numpy(batch.weights_T) * loss).sum().item()
            assert total == pytest.approx(found["expected"][aggregation], abs=found["tol"])

    def test_sft_leaves_prompt_and_tool_tokens_out(self, case: Any) -> None:
        found = case("sft_prompt_and_tool_masked")
        mask = [False, *map(bool, found["inputs"]["loss_mask"])]

        class Row:
            token_ids = range(len(mask))
            loss_mask = mask

        batch = sft_batch([Row()])
        chosen = _tensor([0.0, *found["inputs"]["logp"]])[torch.from_numpy(batch.tokens.position_T)]
        loss = Sft().token_loss(_tokens(chosen.tolist(), chosen.tolist(), [0.0] * len(chosen)))
        total = (torch.from_numpy(batch.weights_T) * loss.loss_P).sum().item()
        assert total == pytest.approx(found["expected"]["loss"], abs=found["tol"])


def test_kl_is_added_with_exactly_its_coefficient() -> None:
    tokens = _tokens([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.5], reference=[-1.5, -1.0])
    without = PolicyGradient(PolicyGradientSettings()).token_loss(tokens).loss_P
    with_kl = PolicyGradient(PolicyGradientSettings(kl_coef=0.25)).token_loss(tokens).loss_P
    k3 = [math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1]
    assert (with_kl - without).tolist() == pytest.approx([0.25 * value for value in k3], abs=1e-15)


def test_the_two_clip_ends_are_independent() -> None:
    ratio = _tensor([1.25, 0.75]).log()
    loss, clipped = clipped_loss(ratio, _tensor([1.0, -1.0]), 0.3, 0.28)
    assert loss.tolist() == pytest.approx([-1.25, 0.75])
    assert clipped.tolist() == [False, False]


@pytest.mark.parametrize("rewards", [[], [1.0], [0.3, 0.3 + 1e-7]])
def test_groups_without_signal(rewards: list[float]) -> None:
    assert not has_spread(_tensor(rewards))
    assert not group_advantages(_tensor(rewards)).any()


def test_a_small_standard_deviation_is_not_blown_up() -> None:
    advantages = group_advantages(_tensor([0.5, 0.5 + 2e-6]))
    assert advantages.abs().max() < 0.02


def test_rows_of_a_fork_average_inside_their_rollout() -> None:
    counts = [[4], [2, 6]]
    assert AGGREGATIONS["token_mean"](counts, 1) == [[1 / 8], [1 / 16, 1 / 16]]
    assert AGGREGATIONS["sequence_mean"](counts, 1) == [[1 / 8], [1 / 8, 1 / 24]]
    assert AGGREGATIONS["constant"](counts, 10) == [[1 / 20], [1 / 40, 1 / 40]]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_rollout_counts_the_same_with_and_without_a_copy_of_its_row(aggregation: str) -> None:
    settings = PolicyGradientSettings(aggregation=aggregation, max_tokens=10)
    plain = PolicyGradient(settings).batch([[_rollout(0, 3), _rollout(1, 4)]])
    forked = PolicyGradient(settings).batch([[_rollout(0, 3), _rollout(1, 4, 4)]])
    for advantage in (-1, 1):
        sums = [
            batch.weights_T[np.sign(batch.advantages_T) == advantage].sum()
            for batch in (plain, forked)
        ]
        assert sums[0] == pytest.approx(sums[1])


def test_groups_without_spread_are_counted_and_not_computed() -> None:
    groups = [
        [_rollout(1, 3), _rollout(1, 3)],
        [_rollout(0, 2), _rollout(1, 2)],
        [_rollout(1, 5)],
        [],
    ]
    batch = PolicyGradient(PolicyGradientSettings()).batch(groups)
    assert batch.figures["groups/trained"] == 1
    assert batch.figures["groups/without_spread"] == 1
    assert batch.figures["groups/too_small"] == 2
    assert batch.tokens.counts == (2, 2)
    # Their tokens are in the mean all the same.
    assert batch.weights_T.tolist() == [1 / 15] * 4


def test_groups_without_spread_are_computed_for_the_kl() -> None:
    groups = [[_rollout(1, 3), _rollout(1, 3)]]
    batch = PolicyGradient(PolicyGradientSettings(kl_coef=0.1)).batch(groups)
    assert batch.tokens.counts == (3, 3)
    assert not batch.advantages_T.any()


def test_a_token_without_a_number_is_left_out_and_counted() -> None:
    good, bad = _rollout(0, 3), _rollout(1, 3)
    row = bad.rows[0]
    broken = TokenRow(
        token_ids=row.token_ids,
        loss_mask=row.loss_mask,
        logprobs=(0.0, -1.0, math.nan, -1.0),
        spans=row.spans,
    )
    bad = ScoredRollout(rollout_id="bad", rows=(broken,), score=1.0)
    batch = PolicyGradient(PolicyGradientSettings()).batch([[good, bad]])
    assert batch.tokens.counts == (3, 2)
    assert batch.figures["tokens/not_finite"] == 1
    assert batch.engine_logprobs_T is not None
    assert np.isfinite(batch.engine_logprobs_T).all()


def test_a_rollout_without_a_policy_token_votes_but_is_not_trained_on() -> None:
    batch = PolicyGradient(PolicyGradientSettings(advantages=dr_grpo.advantages)).batch(
        [[_rollout(0, 0), _rollout(1, 2)]]
    )
    assert batch.tokens.counts == (2,)
    assert batch.advantages_T.tolist() == [0.5, 0.5]


def test_a_score_that_is_no_number_is_refused_by_its_rollout() -> None:
    with pytest.raises(ValueError, match="rollout r7: its score is nan"):
        PolicyGradient(PolicyGradientSettings()).batch(
            [[_rollout(math.nan, 2, name="r7"), _rollout(1, 2)]]
        )


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("groups", [[], [[], []], [[_rollout(1, 0), _rollout(0, 0)]]])
def test_a_step_without_a_policy_token_is_an_empty_batch(
    groups: list[list[ScoredRollout]], kl_coef: float
) -> None:
    batch = PolicyGradient(PolicyGradientSettings(kl_coef=kl_coef)).batch(groups)
    assert batch.tokens.num_tokens == 0
    assert len(batch.weights_T) == len(batch.advantages_T) == 0


def test_supervised_training_on_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no row"):
        sft_batch([])


def test_a_turns_reward_lies_on_its_last_token_and_the_rest_on_the_rows() -> None:
    turns = np.array([0, 0, 1, 3, 3])
    made = token_rewards(1.0, (0.1, 0.2, 0.3, 0.0), turns)
    # Turn 2 has no token here; its 0.3 comes at the end with what the score has beyond the turns.
    assert made.tolist() == pytest.approx([0.0, 0.1, 0.2, 0.0, 0.7])
    assert made.sum() == pytest.approx(1.0)


def test_the_discount_counts_turns_and_not_tokens() -> None:
    turns = np.array([0, 0, 0, 2, 2])
    assert discounts(turns, 0.5).tolist() == [1.0, 1.0, 0.5, 1.0, 0.5]
    made = gae(np.array([0, 0, 0, 0, 1.0]), np.zeros(5), discounts(turns, 0.5), 1.0)
    assert made.returns_T.tolist() == [0.5, 0.5, 0.5, 1.0, 1.0]


def test_the_value_loss_is_the_larger_of_free_and_clipped() -> None:
    values = _tensor([0.5, 0.5, -0.5]).requires_grad_()
    loss = value_loss(values, _tensor([0.0, 0.4, 0.0]), _tensor([1.0, 1.0, 1.0]), 0.2)
    assert loss.tolist() == pytest.approx([0.32, 0.125, 1.125])
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    # Past the clip towards the target there is nothing more to gain.
    assert gradient.tolist() == pytest.approx([0.0, -0.5, -1.5])
