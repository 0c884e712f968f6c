"""Learning from pairs: exact on the shared cases, equal to the formula on a model, and it learns."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.training.algorithms.base import PairTokens, ScoredTokens, TokenLoss
from learner.training.algorithms.dpo import Dpo, DpoSettings
from learner.training.algorithms.pairs import (
    Pair,
    bradley_terry_loss,
    bradley_terry_probability,
    pair_batch,
)
from learner.training.algorithms.reward_model import RewardModel, RewardModelSettings
from learner.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from learner.training.logprobs import PlainScorer, TreeScorer
from learner.training.model import Policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from trajectory.rendering import RenderedRow

pytestmark = pytest.mark.slow

MakePolicy = Callable[..., Policy]


def _double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _tokens(chosen: list[bool], **said: list[float]) -> ScoredTokens:
    """Tokens of one pair."""
    size = len(chosen)
    zeros = torch.zeros(size, dtype=torch.float64)
    return ScoredTokens(
        logprobs_P=_double(said.get("logprobs", [0.0] * size)).requires_grad_(),
        old_logprobs_P=zeros,
        reference_logprobs_P=_double(said.get("reference", [math.nan] * size)),
        advantages_P=zeros,
        engine_logprobs_P=zeros,
        values_P=_double(said["values"]).requires_grad_() if "values" in said else None,
        old_values_P=zeros,
        returns_P=zeros,
        row_P=torch.tensor([int(not one) for one in chosen]),
        pairs=PairTokens(
            pair_T=torch.zeros(size, dtype=torch.long),
            chosen_T=torch.tensor(chosen),
            margin_T=_double(said.get("margin", [0.0] * size)),
            label_T=_double(said.get("label", [1.0] * size)),
        ),
    )


def _scored(chosen: float, rejected: float, margin: float = 0.0) -> TokenLoss:
    return RewardModel().token_loss(
        _tokens([True, False], values=[chosen, rejected], margin=[margin] * 2)
    )


def test_dpo_loss_is_the_shared_case(case: Callable[[str], Any]) -> None:
    found, said = case("dpo_loss"), case("dpo_loss")["inputs"]
    # The sums of each side, in two tokens each.
    tokens = _tokens(
        [True, True, False, False],
        logprobs=[said["lp_c"] + 3, -3.0, said["lp_r"] + 1, -1.0],
        reference=[said["ref_c"] + 5, -5.0, said["ref_r"], 0.0],
    )
    loss_P = Dpo(DpoSettings(beta=said["beta"])).token_loss(tokens).loss_P
    assert loss_P.tolist() == pytest.approx([found["expected"]["loss"]] * 4, abs=found["tol"])


def test_bradley_terry_losses_are_the_shared_cases(case: Callable[[str], Any]) -> None:
    found = case("bt_loss")
    for delta, loss, slope in zip(
        found["inputs"]["delta"],
        found["expected"]["loss"],
        found["expected"]["grad_wrt_delta"],
        strict=True,
    ):
        assert float(_scored(delta, 0.0).loss_P[0].detach()) == pytest.approx(
            loss, abs=found["tol"]
        )
        leaf = _double(delta).requires_grad_()
        bradley_terry_loss(leaf).backward()  # type: ignore[no-untyped-call]
        assert float(leaf.grad) == pytest.approx(slope, abs=found["tol"])  # type: ignore[arg-type]
    with_margin = case("bt_margin")
    for delta, margin, loss in zip(
        *with_margin["inputs"].values(), with_margin["expected"]["loss"], strict=True
    ):
        assert float(_scored(delta, 0.0, margin).loss_P[1].detach()) == pytest.approx(
            loss, abs=with_margin["tol"]
        )
    chance = case("bt_probability")
    delta = chance["inputs"]["s_A"] - chance["inputs"]["s_B"]
    assert float(bradley_terry_probability(_double(delta))) == pytest.approx(
        chance["expected"]["p"], abs=chance["tol"]
    )


def test_label_smoothing_and_margin_are_the_formula() -> None:
    tokens = _tokens(
        [True, False], logprobs=[-1.0, -2.0], reference=[-3.0, -1.0], margin=[0.5, 0.5]
    )
    ahead = 0.2 * ((-1 + 3) - (-2 + 1)) - 0.5
    wanted = 0.9 * math.log1p(math.exp(-ahead)) + 0.1 * math.log1p(math.exp(ahead))
    found = Dpo(DpoSettings(beta=0.2, label_smoothing=0.1)).token_loss(tokens)
    assert found.loss_P.tolist() == pytest.approx([wanted, wanted])
    assert found.rewards_P is not None
    assert found.rewards_P.tolist() == pytest.approx([0.4, -0.2])


def _row(prompt: list[int], said: list[int]) -> RenderedRow:
    mask = [False] * len(prompt) + [True] * len(said)
    return RenderedRow(token_ids=tuple(prompt + said), loss_mask=tuple(mask))


def make_pairs(seed: int, count: int = 6, *, soft: bool = False) -> list[Pair]:
    """Pairs that share a prompt, with forks and a repeat; chosen ones favour low ids. Some labels may be soft."""
    rng = random.Random(seed)

    def text(low: int, high: int) -> list[int]:
        return [rng.randrange(low, high) for _ in range(rng.randint(1, 8))]

    pairs = []
    for index in range(count):
        prompt = [7, 8, 9, *text(3, 512)]
        chosen = [_row(prompt, text(3, 30))]
        if index % 3 == 0:
            chosen.append(_row([*prompt[:2], 5], text(3, 30)))
        pairs.append(
            Pair(
                chosen=tuple(chosen),
                rejected=(_row(prompt, text(300, 330)),),
                margin=0.25 * (index % 2),
                soft_label=(1.0, 0.8, 0.3)[index % 3] if soft else 1.0,
            )
        )
    return [*pairs[:-1], pairs[0]]


def _flat(pairs: list[Pair]) -> list[Pair]:
    """The same without forks, for reward models."""
    return [replace(pair, chosen=pair.chosen[:1]) for pair in pairs]


def _trainer(policy: Policy, *, max_nodes: int = 1024, rate: float = 1e-2) -> Trainer:
    kind = DpoSettings() if policy.value_head is None else RewardModelSettings()
    return Trainer(
        policy,
        TrainerSettings(
            schedule=ScheduleSettings(learning_rate=rate, max_steps=100),
            preferences=kind,
            value_learning_rate=rate,
            max_nodes=max_nodes,
            max_grad_norm=1e9,
        ),
    )


def _head(policy: Policy) -> torch.nn.Linear:
    assert policy.value_head is not None
    return policy.value_head


def _awake(policy: Policy) -> Policy:
    """Gives the score head weights, so that the adapter has a gradient too."""
    with torch.no_grad():
        _head(policy).weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(3))
    return policy


def _logprob(model: Any, row: Any) -> torch.Tensor:
    ids = torch.tensor([row.token_ids])
    logprobs = model(input_ids=ids[:, :-1]).logits.log_softmax(-1)
    picked = logprobs.gather(-1, ids[:, 1:, None])[0, :, 0]
    total: torch.Tensor = picked[torch.tensor(row.loss_mask[1:])].sum()
    return total


def _gradients(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in policy.parameters.items() if p.grad is not None}


def _gradients_of_a_step(trainer: Trainer, pairs: list[Pair]) -> dict[str, torch.Tensor]:
    """Gradients as the optimiser gets them."""
    found: dict[str, torch.Tensor] = {}
    step = trainer.optimizer.step

    def keep() -> None:
        found.update(_gradients(trainer.policy))
        step()

    trainer.optimizer.step = keep  # type: ignore[method-assign,assignment]
    trainer.preference_step(pairs)
    return found


def _assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        error = float((found[name] - gradient).norm() / (gradient.norm() + 1e-12))
        assert error < 1e-4, (name, error)


@pytest.mark.parametrize("soft", [False, True])
def test_dpo_gradient_is_the_formula_written_out(make_policy: MakePolicy, soft: bool) -> None:
    policy, pairs = make_policy(), make_pairs(1, soft=soft)
    loss = torch.tensor(0.0)
    for pair in pairs:
        chosen = sum(_logprob(policy.model, row) for row in pair.chosen)
        rejected = sum(_logprob(policy.model, row) for row in pair.rejected)
        with policy.reference() as reference:
            before = sum(_logprob(reference, row) for row in pair.chosen)
            before = before - sum(_logprob(reference, row) for row in pair.rejected)
        ahead = 0.1 * (chosen - rejected - before) - pair.margin
        won = torch.sigmoid(torch.as_tensor(ahead))
        said = pair.soft_label * torch.log(won) + (1 - pair.soft_label) * torch.log(1 - won)
        loss = loss - said / len(pairs)
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = _gradients(policy)
    trainer = _trainer(make_policy())
    _assert_close(_gradients_of_a_step(trainer, pairs), wanted)
    again = _trainer(make_policy())
    assert again.preference_step(pairs)["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_gradient_is_the_same_however_the_pairs_are_split(
    make_policy: MakePolicy, scored: bool, soft: bool
) -> None:
    pairs = _flat(make_pairs(2, soft=soft)) if scored else make_pairs(2, soft=soft)
    found = []
    for max_nodes in (4096, 60, 1):
        policy = make_policy(score_head=scored)
        trainer = _trainer(_awake(policy) if scored else policy, max_nodes=max_nodes)
        found.append(_gradients_of_a_step(trainer, pairs))
    for other in found[1:]:
        _assert_close(other, found[0])


@pytest.mark.parametrize("scorer", [TreeScorer, PlainScorer])
@pytest.mark.parametrize("size", [1, 50, 4096])
def test_micro_batches_hold_every_token_once_and_pairs_whole(scorer: Any, size: int) -> None:
    batch = pair_batch(make_pairs(3))
    parts = scorer(torch.device("cpu"), size).split(batch.tokens)
    tokens = torch.cat([part.tokens_P for part in parts])
    assert sorted(tokens.tolist()) == list(range(batch.tokens.num_tokens))
    assert batch.pairs is not None
    seen = [set(batch.pairs.pair_T[part.tokens_P].tolist()) for part in parts]
    assert sum(len(pairs) for pairs in seen) == 6
    if size == 1:
        assert len(parts) == 6


def test_prompt_of_a_pair_is_computed_once(make_policy: MakePolicy) -> None:
    prompt = list(range(3, 103))
    pair = Pair(chosen=(_row(prompt, [200, 201]),), rejected=(_row(prompt, [300, 301]),))
    (part,) = TreeScorer(torch.device("cpu")).split(pair_batch([pair]).tokens)
    assert part.token_ids_N.shape == (102,)  # type: ignore[attr-defined]


def test_score_does_not_depend_on_what_it_is_scored_with(make_policy: MakePolicy) -> None:
    policy = _awake(make_policy(score_head=True))
    pairs = _flat(make_pairs(4, count=8))

    def scores(of: list[Pair], scorer: Any) -> list[float]:
        batch = RewardModel().batch(of)
        found = torch.zeros(batch.tokens.num_tokens)
        for part in scorer.split(batch.tokens):
            with torch.no_grad():
                values_P = part.score(policy.model, 1.0, policy.value_head).values_P
            found[part.tokens_P] = values_P
        return found.tolist()

    together = scores(pairs, TreeScorer(policy.device))
    alone = [score for pair in pairs for score in scores([pair], PlainScorer(policy.device))]
    padded = scores(pairs, PlainScorer(policy.device, 10_000))
    assert together == pytest.approx(alone, abs=1e-4)
    assert padded == pytest.approx(alone, abs=1e-4)
    assert max(alone) - min(alone) > 0.1


def test_before_training_dpo_sees_no_difference(make_policy: MakePolicy) -> None:
    figures = _trainer(make_policy(fresh=True)).measure_pairs(make_pairs(5))
    assert figures["rewards/margins"] == 0.0
    assert figures["rewards/accuracies"] == 0.0
    assert figures["rewards/probability"] == 0.5


@pytest.mark.parametrize("scored", [False, True])
def test_measuring_changes_nothing_and_agrees_with_the_next_step(
    make_policy: MakePolicy, scored: bool
) -> None:
    pairs = _flat(make_pairs(6)) if scored else make_pairs(6)
    trainer = _trainer(make_policy(score_head=scored))
    trainer.preference_step(pairs)
    measured = trainer.measure_pairs(pairs)
    assert trainer.measure_pairs(pairs) == measured
    stepped = trainer.preference_step(pairs)
    for name, value in measured.items():
        assert stepped[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert stepped["pairs/trained"] == 6.0
    assert ("logps/chosen" in stepped, "entropy" in stepped) == (not scored, not scored)
    assert all(math.isfinite(value) for value in stepped.values())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("scored", [False, True])
def test_margin_on_pairs_that_were_not_seen_rises(
    make_policy: MakePolicy, scored: bool, seed: int
) -> None:
    made = [make_pairs(100 * seed + step, count=12) for step in range(31)]
    batches = [_flat(pairs) for pairs in made] if scored else made
    trainer = _trainer(make_policy(fresh=True, score_head=scored, seed=seed))
    before = trainer.measure_pairs(batches[0])
    for pairs in batches[1:]:
        trainer.preference_step(pairs)
    after = trainer.measure_pairs(batches[0])
    assert after["rewards/margins"] > before["rewards/margins"] + 0.2
    assert after["rewards/accuracies"] >= 0.8
    assert after["loss"] < before["loss"]


@pytest.mark.parametrize("scored", [False, True])
def test_run_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(
    make_policy: MakePolicy, tmp_path: Path, scored: bool
) -> None:
    settings: dict[str, object] = {"fresh": True, "score_head": scored}
    made = [make_pairs(step, soft=True) for step in range(4)]
    batches = [_flat(pairs) for pairs in made] if scored else made
    straight = _trainer(make_policy(**settings))
    figures = [straight.preference_step(pairs) for pairs in batches]
    first = _trainer(make_policy(**settings))
    for pairs in batches[:2]:
        first.preference_step(pairs)
    save_checkpoint(tmp_path, first, {})
    second = _trainer(make_policy(**settings))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    load_checkpoint(found, second)
    assert [second.preference_step(pairs) for pairs in batches[2:]] == figures[2:]
    for name, weights in straight.policy.parameters.items():
        assert torch.equal(second.policy.parameters[name], weights), name


def test_pairs_that_hold_nothing_are_refused(make_policy: MakePolicy) -> None:
    with pytest.raises(ValueError, match="holds no pair"):
        _trainer(make_policy()).preference_step([])
    empty = RenderedRow(token_ids=(), loss_mask=())
    pair = Pair(chosen=(_row([3], [4]),), rejected=(empty,))
    with pytest.raises(ValueError, match="pair 0: a conversation holds no token"):
        _trainer(make_policy(score_head=True)).preference_step([pair])
