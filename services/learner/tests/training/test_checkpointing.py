"""Activation checkpointing: the same gradients from less memory, on trees and padded rows, LoRA and full weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from learner.training.logprobs import PlainScorer, TreeScorer
from learner.training.model import Policy
from learner.training.rows import policy_tokens

MakePolicy = Callable[..., Policy]
CPU = torch.device("cpu")


def _gradients_and_kept(policy: Policy, rows: list[Any], scorer: Any) -> tuple[Any, int]:
    """Returns gradients by name, and bytes that were kept for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    (part,) = scorer.split(policy_tokens(rows))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scores = part.score(policy.model, 1.0)
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    scores.logprobs_P.square().sum().backward()
    found = {name: value.grad.clone() for name, value in policy.parameters.items()}
    return found, sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("scorer", [TreeScorer(CPU), PlainScorer(CPU)])
def test_gradients_are_equal_and_less_is_kept(
    make_policy: MakePolicy, make_groups: Callable[..., Any], full: bool, scorer: Any
) -> None:
    rows = [row for group in make_groups(3) for rollout in group for row in rollout.rows]
    wanted, before = _gradients_and_kept(make_policy(full=full), rows, scorer)
    found, after = _gradients_and_kept(make_policy(full=full, checkpointing=True), rows, scorer)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
    assert after < 0.5 * before


def test_nothing_within_the_layers_is_in_training_mode(make_policy: MakePolicy) -> None:
    layers = make_policy(checkpointing=True).model.model.layers
    assert all(layer.training for layer in layers)
    within = [module for layer in layers for module in layer.modules() if module is not layer]
    assert not any(module.training for module in within)


def test_reference_stays_the_policy_at_its_start(make_policy: MakePolicy, make_groups: Any) -> None:
    policy = make_policy(fresh=True, checkpointing=True)
    rows = [row for rollout in make_groups(3)[0] for row in rollout.rows]
    (part,) = TreeScorer(CPU).split(policy_tokens(rows))
    with policy.reference() as reference:
        wanted = part.score(reference, 1.0).logprobs_P
    torch.testing.assert_close(part.score(policy.model, 1.0).logprobs_P.detach(), wanted)
