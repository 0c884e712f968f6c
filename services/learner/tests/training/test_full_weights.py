"""Full weights: gradients of every weight, the frozen reference, checkpoints, and what is published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from learner.ports import ScoredRollout
from learner.training.algorithms.dpo import DpoSettings
from learner.training.algorithms.pairs import Pair
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from learner.training.head import pair_logprobs
from learner.training.logprobs import PlainScorer, TreeScorer
from learner.training.model import Policy
from learner.training.reward_export import export_reward_model
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.resolve import ModelUnusableError

MakePolicy = Callable[..., Policy]
MakeGroups = Callable[..., list[list[ScoredRollout]]]


def _trainer(policy: Policy, *, rate: float = 1e-3, **settings: Any) -> Trainer:
    schedule = ScheduleSettings(learning_rate=rate, max_steps=5)
    return Trainer(policy, TrainerSettings(schedule=schedule, **settings))


def _kl(coefficient: float = 0.1) -> dict[str, Any]:
    return {"rollouts": PolicyGradientSettings(kl_coef=coefficient)}


def _weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters.values()])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("vocabulary", "bound"), [(40, 1e-5), pytest.param(400_000, 2e-4, marks=pytest.mark.slow)]
)
def test_output_layer_has_the_gradient_of_the_formula(
    temperature: float, vocabulary: int, bound: float
) -> None:
    # The larger vocabulary leaves room for 41 states in a chunk; its long sums round more.
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(60, 4, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, 4, generator=generator, requires_grad=True)
    state = torch.tensor([0, 0, 1, 3, 3, 3, 40, 41, 41, 59])
    target = torch.tensor([7, 8, 39, 2, 2, 5, 0, 1, 38, 5])
    pull = torch.randn(10, generator=generator)
    found, _ = pair_logprobs(hidden, weight, state, target, temperature)
    (found * pull).sum().backward()
    got = [hidden.grad, weight.grad]
    hidden.grad = weight.grad = None
    logits = hidden.double() @ weight.double().t() / temperature
    plain = logits.log_softmax(-1)[state, target]
    (plain * pull).sum().backward()
    torch.testing.assert_close(found, plain.float())
    for mine, wanted in zip(got, (hidden.grad, weight.grad), strict=True):
        assert mine is not None and wanted is not None
        assert float((mine - wanted).norm() / wanted.norm()) <= bound


def test_every_weight_has_the_gradient_of_the_textbook(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    grads = []
    for scorer in (TreeScorer, PlainScorer):
        policy = make_policy(full=True, refers=False)
        trainer = _trainer(policy, max_grad_norm=1e9, max_nodes=64)
        trainer._scorer = scorer(policy.device, 64)
        seen: dict[str, torch.Tensor] = {}
        trainer.optimizer.register_step_pre_hook(
            lambda *_, policy=policy, seen=seen: seen.update(
                {name: p.grad.clone() for name, p in policy.parameters.items()}
            )
        )
        trainer.rollout_step(make_groups(3))
        grads.append(seen)
    tree, plain = grads
    # The output layer is the embedding: its gradient comes from both ends.
    assert "model.embed_tokens.weight" in tree and "lm_head.weight" not in tree
    assert tree.keys() == plain.keys() and len(tree) > 15
    for name, wanted in plain.items():
        error = (tree[name] - wanted).norm() / wanted.norm()
        assert float(error) <= 1e-5, name


@pytest.mark.parametrize("reference", ["start", "base"])
def test_kl_at_step_0_is_exactly_0_and_grows(
    make_policy: MakePolicy, make_groups: MakeGroups, reference: str
) -> None:
    trainer = _trainer(make_policy(full=True, reference=reference), **_kl())
    first, second = (trainer.rollout_step(make_groups(3)) for _ in range(2))
    assert first["kl"] == 0.0
    assert second["kl"] > 0.0


def test_full_weights_start_with_the_adapter_merged_and_may_refer_to_the_model_alone(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    tuned = make_policy()
    tuned.export(tmp_path)
    policy = make_policy(full=True, adapter=tmp_path, reference="base")
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        torch.testing.assert_close(policy.model(ids).logits, tuned.model(ids).logits)
        with policy.reference() as reference:
            base = make_policy(fresh=True).model(ids).logits
            torch.testing.assert_close(reference(ids).logits, base)
    same = make_policy(full=True, reference=str(tmp_path))
    with same.reference() as reference, torch.no_grad():
        torch.testing.assert_close(reference(ids).logits, tuned.model(ids).logits)


def test_no_copy_is_held_where_nothing_asks_for_the_reference(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    policy = make_policy(full=True, refers=False)
    assert policy.reference_hash == ""
    assert "kl" not in _trainer(policy).rollout_step(make_groups(3))


def test_dpo_before_training_sees_no_difference(make_policy: MakePolicy) -> None:
    def side(*said: int) -> Any:
        return _Row((5, 6, 7, *said), (False,) * 3 + (True,) * len(said))

    pairs = [Pair(chosen=(side(8, 9),), rejected=(side(10),), margin=0.0)]
    trainer = _trainer(make_policy(full=True), preferences=DpoSettings())
    first, second = (trainer.preference_step(pairs) for _ in range(2))
    assert first["rewards/margins"] == 0.0
    assert second["rewards/margins"] > 0.0


class _Row:
    def __init__(self, token_ids: tuple[int, ...], loss_mask: tuple[bool, ...]) -> None:
        self.token_ids, self.loss_mask = token_ids, loss_mask


def test_two_and_two_steps_equal_four(
    make_policy: MakePolicy, make_groups: MakeGroups, tmp_path: Path
) -> None:
    batches = [make_groups(seed, group_size=4) for seed in range(4)]
    straight = _trainer(make_policy(full=True), **_kl())
    figures = [straight.rollout_step(groups) for groups in batches]
    first = _trainer(make_policy(full=True), **_kl())
    for groups in batches[:2]:
        first.rollout_step(groups)
    found = save_checkpoint(tmp_path, first, {})
    second = _trainer(make_policy(full=True), **_kl())
    load_checkpoint(found, second)
    assert [second.rollout_step(groups) for groups in batches[2:]] == figures[2:]
    assert torch.equal(_weights(second.policy), _weights(straight.policy))


def test_a_checkpoint_refuses_another_reference(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path
) -> None:
    found = save_checkpoint(tmp_path / "c", _trainer(make_policy(full=True), **_kl()), {})
    assert len(found.reference_hash) == 64
    moved = make_policy(full=True)
    with torch.no_grad():
        moved.parameters["model.norm.weight"].add_(0.5)
    moved.export(tmp_path / "model")
    other = _trainer(make_policy(full=True, reference=str(tmp_path / "model")), **_kl())
    with pytest.raises(CheckpointError, match=r"reference had hash .* have changed"):
        load_checkpoint(found, other)


def test_a_checkpoint_of_an_adapter_is_not_one_of_full_weights(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    found = save_checkpoint(tmp_path, _trainer(make_policy(refers=False)), {})
    with pytest.raises(CheckpointError, match="is of other weights"):
        load_checkpoint(found, _trainer(make_policy(full=True, refers=False)))


def test_an_export_is_a_whole_model(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy(full=True, refers=False)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.mul_(1.01)
    policy.export(tmp_path)
    opened = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path))
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        assert torch.equal(opened(ids).logits, policy.model(ids).logits)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o044 == 0o044


def test_a_reward_model_of_full_weights_opens_as_a_classifier(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path
) -> None:
    policy = make_policy(full=True, refers=False, score_head=True)
    assert policy.value_head is not None
    with torch.no_grad():
        policy.parameters["model.norm.weight"].mul_(1.5)
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tiny_folder))
    export_reward_model(policy, tiny_folder, tokenizer, tmp_path)
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(str(tmp_path))
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        hidden = policy.model(ids, output_hidden_states=True).hidden_states[-1][0, -1]
        wanted = policy.value_head(hidden)
        torch.testing.assert_close(opened(ids).logits[0], wanted)


def test_half_precision_is_refused(make_policy: MakePolicy) -> None:
    with pytest.raises(
        ModelUnusableError, match=r"model\.dtype: found bfloat16 .* float32 is right"
    ):
        make_policy(full=True, dtype="bfloat16")
