"""Algorithms on numbers worked out by hand, and on the shared cases where they are at hand."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.ports import ScoredRollout
from learner.training.algorithms.aggregation import AGGREGATIONS
from learner.training.algorithms.base import ScoredTokens
from learner.training.algorithms.grpo import (
    Grpo,
    GrpoSettings,
    clipped_loss,
    group_advantages,
    grpo_batch,
    has_spread,
    kl_k3,
)
from learner.training.algorithms.sft import Sft, sft_batch
from trajectory.types import TokenRow, TokenSpan

MakeGroups = Callable[..., list[list[ScoredRollout]]]


def _cases() -> dict[str, Any]:
    shared = Path(os.environ.get("HONE_SHARED", Path(__file__).parents[5] / "shared"))
    file = shared / "cases" / "losses.json"
    if not file.is_file():
        return {}
    return {case["id"]: case for case in json.loads(file.read_text(encoding="utf-8"))["cases"]}


@pytest.fixture(scope="module")
def case() -> Callable[[str], Any]:
    cases = _cases()
    if not cases:
        pytest.skip("the shared cases are not at hand")
    return cases.__getitem__


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _tokens(logp: Any, old: Any, advantages: Any, reference: Any = None) -> ScoredTokens:
    return ScoredTokens(
        logprobs_P=_tensor(logp),
        old_logprobs_P=_tensor(old),
        advantages_P=_tensor(advantages),
        reference_logprobs_P=_tensor(reference or [math.nan] * len(logp)),
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
        for norm, key in ((True, "sample_std_eps0"), (False, "no_std")):
            advantages = group_advantages(rewards, norm_by_std=norm)
            wanted = _tensor(found["expected"][key])
            assert torch.allclose(advantages, wanted, rtol=0, atol=found["tol"])

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("name", ["all_equal_ones", "all_equal_zero", "all_equal_0.35"])
    def test_equal_rewards_give_exactly_zero(
        self, case: Any, name: str, dtype: torch.dtype
    ) -> None:
        rewards = torch.tensor(case(f"grpo_adv_{name}")["inputs"]["rewards"], dtype=dtype)
        assert not group_advantages(rewards, norm_by_std=True).any()

    def test_groups_are_normalised_apart(self, case: Any) -> None:
        found = case("grpo_adv_two_groups")
        groups = zip(
            found["inputs"]["rewards_by_group"], found["expected"]["sample_std"], strict=True
        )
        for rewards, wanted in groups:
            advantages = group_advantages(_tensor(rewards), norm_by_std=True)
            assert torch.allclose(advantages, _tensor(wanted), rtol=0, atol=found["tol"])

    def test_dr_grpo_advantages(self, case: Any) -> None:
        found = case("drgrpo_adv")
        advantages = group_advantages(_tensor(found["inputs"]["rewards"]), norm_by_std=False)
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
            loss, clipped = clipped_loss(
                ratio.log(), _tensor([0.0]), _tensor([row["advantage"]]), eps, eps
            )
            (gradient,) = torch.autograd.grad(-loss.sum(), ratio)
            assert loss.item() == pytest.approx(row["loss"], abs=1e-9)
            assert gradient.item() == pytest.approx(row["gradient_wrt_ratio"], abs=1e-9)
            assert clipped.item() == row["clipped"]

    def test_clip_vector(self, case: Any) -> None:
        found = case("ppo_clip_vector")
        inputs, expected = found["inputs"], found["expected"]
        tokens = _tokens(inputs["logp"], inputs["old_logp"], inputs["advantages"])
        settings = GrpoSettings(clip_low=inputs["eps"], clip_high=inputs["eps"])
        loss = Grpo(settings).token_loss(tokens)
        assert (-loss.loss_P).tolist() == pytest.approx(expected["objective"], abs=found["tol"])
        assert loss.loss_P.mean().item() == pytest.approx(expected["loss"], abs=found["tol"])
        assert loss.clipped_P is not None
        assert loss.clipped_P.double().mean().item() == expected["clip_fraction"]

    def test_k3_expectation(self, case: Any) -> None:
        found = case("kl_exact_expectation")
        policy, reference = (_tensor(found["inputs"][name]) for name in ("pi", "ref"))
        expectation = (policy * kl_k3(policy.log(), reference.log())).sum()
        assert expectation.item() == pytest.approx(found["expected"]["E_k3"], abs=found["tol"])

    def test_k3_gradient(self, case: Any) -> None:
        found = case("kl_gradient_bias")
        logits = _tensor(found["inputs"]["logits"]).requires_grad_()
        policy, reference = (_tensor(found["inputs"][name]) for name in ("pi", "ref"))
        k3 = (policy * kl_k3(logits.log_softmax(-1), reference.log())).sum()
        (gradient,) = torch.autograd.grad(k3, logits)
        wanted = _tensor(found["expected"]["grad_k3_in_loss"])
        assert torch.allclose(gradient, wanted, rtol=0, atol=found["tol"])

    def test_k3_extremes_stay_finite(self, case: Any) -> None:
        found = case("kl_extreme")
        inputs = found["inputs"]
        k3 = kl_k3(_tensor(inputs["logp"]), _tensor(inputs["ref_logp"]))
        wanted = _tensor(found["expected"]["k3_float64"])
        assert torch.allclose(k3, wanted, rtol=found["tol"], atol=0)

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
    without = Grpo(GrpoSettings()).token_loss(tokens).loss_P
    with_kl = Grpo(GrpoSettings(kl_coef=0.25)).token_loss(tokens).loss_P
    k3 = [math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1]
    assert (with_kl - without).tolist() == pytest.approx([0.25 * value for value in k3], abs=1e-15)


def test_the_two_clip_ends_are_independent() -> None:
    ratio = _tensor([1.25, 0.75]).log()
    loss, clipped = clipped_loss(ratio, _tensor([0.0, 0.0]), _tensor([1.0, -1.0]), 0.3, 0.28)
    assert loss.tolist() == pytest.approx([-1.25, 0.75])
    assert clipped.tolist() == [False, False]


@pytest.mark.parametrize("rewards", [[], [1.0], [0.3, 0.3 + 1e-7]])
def test_groups_without_signal(rewards: list[float]) -> None:
    assert not has_spread(_tensor(rewards))
    assert not group_advantages(_tensor(rewards), norm_by_std=True).any()


def test_a_small_standard_deviation_is_not_blown_up() -> None:
    advantages = group_advantages(_tensor([0.5, 0.5 + 2e-6]), norm_by_std=True)
    assert advantages.abs().max() < 0.02


def test_rows_of_a_fork_average_inside_their_rollout() -> None:
    counts = [[4], [2, 6]]
    assert AGGREGATIONS["token_mean"](counts, 1) == [[1 / 8], [1 / 16, 1 / 16]]
    assert AGGREGATIONS["sequence_mean"](counts, 1) == [[1 / 8], [1 / 8, 1 / 24]]
    assert AGGREGATIONS["constant"](counts, 10) == [[1 / 20], [1 / 40, 1 / 40]]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_rollout_counts_the_same_with_and_without_a_copy_of_its_row(aggregation: str) -> None:
    settings = GrpoSettings(aggregation=aggregation, max_tokens=10)
    plain = grpo_batch([[_rollout(0, 3), _rollout(1, 4)]], settings)
    forked = grpo_batch([[_rollout(0, 3), _rollout(1, 4, 4)]], settings)
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
    batch = grpo_batch(groups, GrpoSettings())
    assert batch.figures["groups/trained"] == 1
    assert batch.figures["groups/without_spread"] == 1
    assert batch.figures["groups/too_small"] == 2
    assert batch.tokens.counts == (2, 2)
    # Their tokens are in the mean all the same.
    assert batch.weights_T.tolist() == [1 / 15] * 4


def test_groups_without_spread_are_computed_for_the_kl() -> None:
    groups = [[_rollout(1, 3), _rollout(1, 3)]]
    batch = grpo_batch(groups, GrpoSettings(kl_coef=0.1))
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
    batch = grpo_batch([[good, bad]], GrpoSettings())
    assert batch.tokens.counts == (3, 2)
    assert batch.figures["tokens/not_finite"] == 1
    assert batch.engine_logprobs_T is not None
    assert np.isfinite(batch.engine_logprobs_T).all()


def test_a_rollout_without_a_policy_token_votes_but_is_not_trained_on() -> None:
    batch = grpo_batch([[_rollout(0, 0), _rollout(1, 2)]], GrpoSettings(norm_adv_by_std=False))
    assert batch.tokens.counts == (2,)
    assert batch.advantages_T.tolist() == [0.5, 0.5]


def test_a_score_that_is_no_number_is_refused_by_its_rollout() -> None:
    with pytest.raises(ValueError, match="rollout r7: its score is nan"):
        grpo_batch([[_rollout(math.nan, 2, name="r7"), _rollout(1, 2)]], GrpoSettings())


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("groups", [[], [[], []], [[_rollout(1, 0), _rollout(0, 0)]]])
def test_a_step_without_a_policy_token_is_an_empty_batch(
    groups: list[list[ScoredRollout]], kl_coef: float
) -> None:
    batch = grpo_batch(groups, GrpoSettings(kl_coef=kl_coef))
    assert batch.tokens.num_tokens == 0
    assert len(batch.weights_T) == len(batch.advantages_T) == 0


def test_supervised_training_on_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no row"):
        sft_batch([])
