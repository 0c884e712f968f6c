"""Steps learn, are the same however they are split, and happen as a whole or not at all."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from learner.ports import ScoredRollout, Stopped
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.algorithms.ppo import PpoSettings
from learner.training.algorithms.table import KINDS
from learner.training.errors import NonFiniteStep
from learner.training.logprobs import TreeScorer
from learner.training.model import Policy
from learner.training.rows import policy_tokens
from learner.training.schedule import ScheduleSettings, learning_rate
from learner.training.trainer import Trainer, TrainerSettings
from trajectory.types import TokenRow

pytestmark = pytest.mark.slow

MakePolicy = Callable[..., Policy]
MakeGroups = Callable[..., list[list[ScoredRollout]]]
SCHEDULE = ScheduleSettings(learning_rate=1e-2, max_steps=10)


def _trainer(policy: Policy, **settings: Any) -> Trainer:
    return Trainer(policy, TrainerSettings(**{"schedule": SCHEDULE, **settings}))


def _weights(policy: Policy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.parameters.values()]


def _same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _rows(groups: list[list[ScoredRollout]]) -> list[TokenRow]:
    return [row for group in groups for rollout in group for row in rollout.rows]


def _with_engine(policy: Policy, groups: list[list[ScoredRollout]]) -> list[list[ScoredRollout]]:
    """Replaces the engine's log-probabilities by those of the policy."""
    rows = _rows(groups)
    tokens = policy_tokens(rows)
    logprobs = [[0.0] * len(row.token_ids) for row in rows]
    for part in TreeScorer(torch.device("cpu")).split(tokens):
        with torch.no_grad():
            scored = part.score(policy.model, 1.0).logprobs_P
        for token, value in zip(part.tokens_P.tolist(), scored.tolist(), strict=True):
            logprobs[int(tokens.row_T[token])][int(tokens.position_T[token])] = value
    made = iter(
        replace(row, logprobs=tuple(values)) for row, values in zip(rows, logprobs, strict=True)
    )
    return [
        [replace(rollout, rows=tuple(next(made) for _ in rollout.rows)) for rollout in group]
        for group in groups
    ]


def test_sft_learns_its_rows(make_policy: MakePolicy, make_groups: MakeGroups) -> None:
    trainer = _trainer(make_policy(fresh=True))
    rows = _rows(make_groups(0))
    losses = [trainer.sft_step(rows)["loss"] for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    assert trainer.step == trainer.policy_version == 12


def test_grpo_makes_good_answers_likelier(make_policy: MakePolicy, make_groups: MakeGroups) -> None:
    policy = make_policy(fresh=True)
    groups = _with_engine(policy, make_groups(5, group_size=4))
    trainer = _trainer(policy)
    first = trainer.rollout_step(groups)
    for _ in range(4):
        trainer.rollout_step(groups)
    after = _with_engine(policy, groups)

    def gain(best: bool) -> float:
        total = 0.0
        for old, new in zip(groups, after, strict=True):
            scores = [rollout.score for rollout in old]
            wanted = max(scores) if best else min(scores)
            total += sum(
                sum(new_row.logprobs) - sum(old_row.logprobs)
                for old_rollout, new_rollout in zip(old, new, strict=True)
                if old_rollout.score == wanted
                for old_row, new_row in zip(old_rollout.rows, new_rollout.rows, strict=True)
            )
        return total

    assert gain(best=True) > 0 > gain(best=False)
    assert first["mismatch/max"] < 1e-5
    assert first["mismatch_kl/mean"] < 1e-9
    assert first["clip_frac"] == 0


@pytest.mark.parametrize("start_from_adapter", [False, True])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_kl_at_step_0_is_exactly_0_and_grows(
    make_policy: MakePolicy,
    make_groups: MakeGroups,
    tmp_path: Path,
    start_from_adapter: bool,
    kl_coef: float,
) -> None:
    if start_from_adapter:
        make_policy().export_adapter(tmp_path)
        policy = make_policy(fresh=True, adapter=tmp_path)
    else:
        policy = make_policy(fresh=True)
    trainer = _trainer(policy, rollouts=PolicyGradientSettings(kl_coef=kl_coef))
    groups = make_groups(1)
    assert trainer.rollout_step(groups)["kl"] == 0.0
    assert trainer.rollout_step(groups)["kl"] > 0.0


def test_kl_holds_the_policy_back(make_policy: MakePolicy, make_groups: MakeGroups) -> None:
    kl = {}
    for coefficient in (0.0, 5.0):
        trainer = _trainer(
            make_policy(fresh=True), rollouts=PolicyGradientSettings(kl_coef=coefficient)
        )
        kl[coefficient] = [trainer.rollout_step(make_groups(1))["kl"] for _ in range(6)][-1]
    assert kl[5.0] < 0.5 * kl[0.0]


def test_kl_is_not_measured_where_nobody_asks(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    assert "kl" not in _trainer(make_policy(), measure_kl=False).rollout_step(make_groups(1))
    assert "kl" not in _trainer(make_policy()).sft_step(_rows(make_groups(1)))


def test_measured_kl_is_that_of_one_micro_batch_after_the_other(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    policy = make_policy()
    still = replace(SCHEDULE, learning_rate=0.0)
    groups = make_groups(1)
    parts = _trainer(policy, schedule=still, max_nodes=16)
    measured = [parts.rollout_step(groups)["kl"] for _ in range(12)]
    whole = _trainer(
        policy, schedule=still, rollouts=PolicyGradientSettings(kl_coef=1e-9)
    ).rollout_step(groups)
    assert min(measured) < whole["kl"] < max(measured)
    assert len(set(measured)) > 1


def _gradients(
    policy: Policy, groups: list[list[ScoredRollout]], **settings: Any
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Returns the gradient of one GRPO step, as the optimiser saw it."""
    trainer = _trainer(policy, max_grad_norm=1e9, **settings)
    seen: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        for name, parameter in policy.parameters.items():
            assert parameter.grad is not None
            seen[name] = parameter.grad.clone()

    trainer.optimizer.register_step_pre_hook(keep)
    return seen, trainer.rollout_step(groups)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_micro_batches_do_not_change_the_gradient(
    make_policy: MakePolicy, make_groups: MakeGroups, seed: int, aggregation: str
) -> None:
    settings = PolicyGradientSettings(kl_coef=0.05, aggregation=aggregation, max_tokens=20)
    groups = make_groups(seed, num_groups=3)
    whole, figures = _gradients(make_policy(), groups, rollouts=settings, max_nodes=10_000)
    split, same = _gradients(make_policy(), groups, rollouts=settings, max_nodes=16)
    for name, gradient in whole.items():
        assert (split[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
    for name in ("loss", "kl", "entropy", "mismatch/mean", "grad_norm"):
        assert same[name] == pytest.approx(figures[name], rel=1e-4, abs=1e-7), name


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("kl_coef", "kl_in_reward"), [(0.0, False), (0.3, False), (0.3, True)])
def test_micro_batches_do_not_change_any_algorithm(
    make_policy: MakePolicy, make_groups: MakeGroups, name: str, kl_coef: float, kl_in_reward: bool
) -> None:
    settings = replace(
        KINDS[name],
        kl_coef=kl_coef,
        kl_in_reward=kl_in_reward,
        importance_sampling="sequence" if name == "gspo" else "token",
        overlong_buffer=8,
        max_tokens=12,
    )
    groups = make_groups(len(name), num_groups=3)
    whole, figures = _gradients(make_policy(), groups, rollouts=settings, max_nodes=10_000)
    split, same = _gradients(make_policy(), groups, rollouts=settings, max_nodes=16)
    assert any(gradient.norm() > 0 for gradient in whole.values())
    for part, gradient in whole.items():
        assert (split[part] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9, part
    assert same["loss"] == pytest.approx(figures["loss"], rel=1e-4, abs=1e-7)


def _plain_logprobs(policy: Policy, row: TokenRow) -> torch.Tensor:
    ids, mask = torch.tensor(row.token_ids), torch.tensor(row.loss_mask)
    logprobs = policy.model(ids[None]).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(-1, ids[1:, None])[:, 0][mask[1:]]


def _same_gradients(policy: Policy, found: dict[str, torch.Tensor]) -> None:
    for name, parameter in policy.parameters.items():
        assert parameter.grad is not None
        assert (found[name] - parameter.grad).norm() <= 1e-4 * parameter.grad.norm() + 1e-9, name


def test_the_kl_of_reinforce_pp_is_in_the_return_of_each_token(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    groups = make_groups(4)
    beta = 0.2
    settings = replace(KINDS["reinforce_pp"], kl_coef=beta, kl_estimator="k1", kl_in_reward=True)
    found, _ = _gradients(make_policy(reference="base"), groups, rollouts=settings)
    policy = make_policy(reference="base")
    returns, chosen, shares = [], [], []
    for group in groups:
        for rollout in group:
            for row in rollout.rows:
                logprobs = _plain_logprobs(policy, row)
                with policy.reference(), torch.no_grad():
                    kl = logprobs.detach() - _plain_logprobs(policy, row)
                returns.append(rollout.score - beta * kl.flip(0).cumsum(0).flip(0))
                chosen.append(logprobs)
                shares.append(torch.full_like(kl, 1 / len(rollout.rows)))
    flat, share = torch.cat(returns), torch.cat(shares)
    advantages = (flat - flat.mean()) / flat.std()
    loss = -(share * advantages * torch.cat(chosen)).sum() / share.sum()
    loss.backward()
    _same_gradients(policy, found)


PPO = PpoSettings(
    policy=PolicyGradientSettings(kl_coef=0.1, kl_estimator="k1", kl_in_reward=True),
    gamma=0.9,
    gae_lambda=0.8,
)


def _with_ends(groups: list[list[ScoredRollout]]) -> list[list[ScoredRollout]]:
    """Every second rollout was cut off, every third is rewarded by turn."""
    return [
        [
            replace(
                rollout,
                truncated=index % 2 == 1,
                turn_rewards=(0.25, -0.5) if index % 3 == 0 else (),
            )
            for index, rollout in enumerate(group)
        ]
        for group in groups
    ]


def _seeded_head(policy: Policy) -> Policy:
    assert policy.value_head is not None
    with torch.no_grad():
        policy.value_head.weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(3))
    return policy


@pytest.mark.parametrize("seed", range(3))
def test_micro_batches_do_not_change_ppo(
    make_policy: MakePolicy, make_groups: MakeGroups, seed: int
) -> None:
    groups = _with_ends(make_groups(seed, num_groups=3))
    found = [
        _gradients(
            _seeded_head(make_policy(value_head=True)), groups, rollouts=PPO, max_nodes=nodes
        )
        for nodes in (10_000, 16)
    ]
    (whole, figures), (split, same) = found
    assert "value_head.weight" in whole
    for name, gradient in whole.items():
        assert (split[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9, name
    for name in ("loss", "loss/value", "value/explained_var", "entropy", "tokens/trained"):
        assert same[name] == pytest.approx(figures[name], rel=1e-4, abs=1e-7), name


def test_the_gradient_of_ppo_is_that_of_the_formula(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    groups = _with_ends(make_groups(5))
    found, figures = _gradients(
        _seeded_head(make_policy(value_head=True, reference="base")), groups, rollouts=PPO
    )
    policy = _seeded_head(make_policy(value_head=True, reference="base"))
    assert policy.value_head is not None
    chosen, shares, advantages, returns, values = [], [], [], [], []
    for rollout in (rollout for group in groups for rollout in group):
        for row in rollout.rows:
            ids, mask = torch.tensor(row.token_ids), torch.tensor(row.loss_mask)
            logprobs = _plain_logprobs(policy, row)
            with policy.reference(), torch.no_grad():
                kl = (logprobs - _plain_logprobs(policy, row)).detach()
            hidden = policy.model(ids[None], output_hidden_states=True).hidden_states[-1][0]
            value = policy.value_head(hidden)[:, 0]
            before = value[:-1][mask[1:]]
            # make_groups puts every token of a row in turn 0.
            reward = -0.1 * kl
            reward[-1] += rollout.score
            cut_off = rollout.truncated and row is rollout.rows[-1]
            said = before.detach()
            following, advantage = (float(value[-1].detach()) if cut_off else 0.0), 0.0
            discount, row_advantages = 0.9, []
            for step in range(len(before) - 1, -1, -1):
                delta = float(reward[step]) + discount * following - float(said[step])
                advantage = delta + discount * 0.8 * advantage
                following, discount = float(said[step]), 1.0
                row_advantages.append(advantage)
            advantages.append(torch.tensor(row_advantages[::-1]))
            returns.append(advantages[-1] + said)
            chosen.append(logprobs)
            values.append(before)
            shares.append(torch.full((len(before),), 1 / len(rollout.rows)))
    flat, share = torch.cat(advantages), torch.cat(shares)
    white = (flat - flat.mean()) / (flat.var() + 1e-8).sqrt()
    errors = (torch.cat(values) - torch.cat(returns)).square() / 2
    loss = (share * (-white * torch.cat(chosen) + 0.1 * errors)).sum() / share.sum()
    loss.backward()
    _same_gradients(policy, found)
    assert figures["tokens/trained"] == len(flat)


def test_a_value_head_learns_what_to_expect(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    settings = replace(
        PPO, policy=PolicyGradientSettings(), gamma=1.0, value_coef=1.0, value_clip=9
    )
    trainer = _trainer(
        make_policy(value_head=True), rollouts=settings, value_learning_rate=0.05, measure_kl=False
    )
    groups = make_groups(7)
    losses = [trainer.rollout_step(groups)["loss/value"] for _ in range(8)]
    assert losses[-1] < 0.5 * losses[0]


def test_the_value_head_stays_when_the_adapter_is_off(make_policy: MakePolicy) -> None:
    policy = _seeded_head(make_policy(value_head=True))
    assert policy.value_head is not None
    state = torch.ones(1, policy.value_head.in_features)
    said = policy.value_head(state)
    with policy.reference():
        assert torch.equal(policy.value_head(state), said)


def test_the_ratio_of_gspo_is_one_per_row(make_policy: MakePolicy, make_groups: MakeGroups) -> None:
    groups = make_groups(6)
    settings = replace(KINDS["gspo"], clip_low=3e-4, clip_high=4e-4, aggregation="sequence_mean")
    trained = _trainer(make_policy(), rollouts=settings, updates_per_step=3)
    figures = trained.rollout_step(groups)
    # All tokens of a row are clipped or none is, and with so narrow a range the second update clips most.
    assert 0.2 < figures["clip_frac"] < 0.9


def test_groups_that_teach_nothing_do_not_dilute_dapo(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    teaching = [
        group for group in make_groups(3, num_groups=4) if len({r.score for r in group}) > 1
    ]
    silent = [[replace(r, score=1.0) for r in group] for group in make_groups(8)]
    alone, _ = _gradients(make_policy(), teaching, rollouts=KINDS["dapo"])
    beside, figures = _gradients(make_policy(), teaching + silent, rollouts=KINDS["dapo"])
    diluted, _ = _gradients(make_policy(), teaching + silent, rollouts=KINDS["grpo"])
    assert figures["groups/without_spread"] == 2
    for name, gradient in alone.items():
        assert (beside[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9
    assert sum(float(g.norm()) for g in diluted.values()) < 0.9 * sum(
        float(g.norm()) for g in alone.values()
    )


def test_the_gradient_is_that_of_the_formula(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    groups = make_groups(2)
    found, _ = _gradients(make_policy(), groups)
    policy = make_policy()
    total, loss = 0.0, torch.zeros(())
    for group in groups:
        scores = torch.tensor([rollout.score for rollout in group])
        spread = scores.std() if len(set(scores.tolist())) > 1 else torch.ones(())
        for rollout, score in zip(group, scores, strict=True):
            for row in rollout.rows:
                ids, mask = torch.tensor(row.token_ids), torch.tensor(row.loss_mask)
                logprobs = policy.model(ids[None]).logits[0, :-1].log_softmax(-1)
                chosen = logprobs.gather(-1, ids[1:, None])[:, 0][mask[1:]]
                share = 1 / len(rollout.rows)
                loss = loss - share * (score - scores.mean()) / spread * chosen.sum()
                total += share * len(chosen)
    (loss / total).backward()
    for name, parameter in policy.parameters.items():
        assert parameter.grad is not None
        assert (found[name] - parameter.grad).norm() <= 1e-5 * parameter.grad.norm(), name


def test_several_updates_clip_against_the_policy_before_the_first(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    trainer = _trainer(make_policy(), updates_per_step=4)
    figures = trainer.rollout_step(make_groups(5))
    assert figures["updates"] == 4
    assert figures["clip_frac"] > 0
    assert trainer.policy_version == 1


def test_without_a_signal_the_weights_stay(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    policy = make_policy()
    trainer = _trainer(policy)
    before = _weights(policy)
    flat = [[replace(r, score=1.0) for r in group] for group in make_groups(0)]
    figures = trainer.rollout_step(flat)
    assert figures["updates"] == 0
    assert figures["groups/without_spread"] == 2
    assert "loss" not in figures
    assert _same(before, _weights(policy))
    assert trainer.step == 1


@pytest.mark.parametrize("updates", [1, 3])
def test_a_step_that_is_not_finite_changes_nothing(
    make_policy: MakePolicy, make_groups: MakeGroups, updates: int
) -> None:
    policy = make_policy()
    trainer = _trainer(policy, updates_per_step=updates, max_nodes=16)
    groups = make_groups(5)
    trainer.rollout_step(groups)
    with torch.no_grad():
        next(iter(policy.parameters.values()))[0, 0] = math.nan
    before, steps = _weights(policy), _steps(trainer)
    with pytest.raises(NonFiniteStep, match=r"is nan; the weights are unchanged") as caught:
        trainer.rollout_step(groups)
    assert "r0-0" in caught.value.rollout_ids
    after = _weights(policy)
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True)
    )
    assert _steps(trainer) == steps
    assert trainer.step == 1
    assert all(parameter.grad is None for parameter in policy.parameters.values())


def _steps(trainer: Trainer) -> float:
    states = trainer.optimizer.state_dict()["state"].values()
    return max(float(entry["step"]) for entry in states)


def test_a_stop_between_micro_batches_undoes_the_step(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    policy = make_policy()
    trainer = _trainer(policy, updates_per_step=2, max_nodes=16)
    groups = make_groups(5)
    trainer.rollout_step(groups)
    before, steps = _weights(policy), _steps(trainer)
    stop = Event()

    def stop_in_the_second_update(done: int, total: int) -> None:
        if done > total // 2:
            stop.set()

    with pytest.raises(Stopped):
        trainer.rollout_step(groups, progress=stop_in_the_second_update, stop=stop)
    assert _same(before, _weights(policy))
    assert _steps(trainer) == steps
    stop.clear()
    trainer.rollout_step(groups, stop=stop)


def test_a_step_after_a_stop_equals_one_without(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    groups = make_groups(5)
    results = []
    for interrupted in (True, False):
        policy = make_policy()
        trainer = _trainer(policy, updates_per_step=2, max_nodes=16)
        trainer.rollout_step(groups)
        if interrupted:
            stop = Event()
            stop.set()
            with pytest.raises(Stopped):
                trainer.rollout_step(groups, stop=stop)
        trainer.rollout_step(groups)
        results.append(_weights(policy))
    assert _same(*results)


def test_progress_counts_rows(make_policy: MakePolicy, make_groups: MakeGroups) -> None:
    trainer = _trainer(make_policy(), max_nodes=16)
    rows = _rows(make_groups(5))
    seen: list[tuple[int, int]] = []
    trainer.sft_step(rows, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(rows), len(rows))
    assert len(seen) > 1


def test_first_pass_without_gradients_shows_life(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    groups = make_groups(5)
    told: dict[bool, list[tuple[int, int]]] = {}
    for first_pass in (False, True):
        rollouts = PolicyGradientSettings(kl_coef=0.1, kl_in_reward=first_pass)
        trainer = _trainer(make_policy(), max_nodes=16, rollouts=rollouts)
        seen = told[first_pass] = []
        trainer.rollout_step(groups, progress=lambda *counts, seen=seen: seen.append(counts))
    rows = told[False][-1][1]
    # Whoever watches would take a long first pass for a process that hangs.
    assert told[True] == [(0, rows)] * len(told[False]) + told[False]


def test_temperature_0_is_refused(make_policy: MakePolicy) -> None:
    with pytest.raises(ValueError, match=r"rollout\.temperature: found 0\.0"):
        _trainer(make_policy(), temperature=0.0)


def test_the_learning_rate_follows_its_schedule() -> None:
    linear = ScheduleSettings(learning_rate=1.0, max_steps=6, warmup_steps=2, kind="linear")
    rates = [learning_rate(linear, step) for step in range(7)]
    assert rates == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    flat = replace(linear, kind="constant")
    assert [learning_rate(flat, step) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]


def test_the_optimiser_takes_the_scheduled_rate(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    schedule = ScheduleSettings(learning_rate=1e-2, max_steps=2, kind="linear")
    trainer = _trainer(make_policy(), schedule=schedule)
    rows = _rows(make_groups(5))
    assert trainer.sft_step(rows)["learning_rate"] == 1e-2
    assert trainer.sft_step(rows)["learning_rate"] == 5e-3
    assert trainer.optimizer.param_groups[0]["lr"] == 5e-3
