"""LoRA layers compute what peft's own compute and leave to peft what is not plain LoRA."""

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch

from learner.training.lora_linear import LoraLinear, use_lora_linear


class Base(torch.nn.Module):
    def __init__(self, *, bias: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(24, 40, bias=bias, dtype=dtype)
        self.second = torch.nn.Linear(40, 16, bias=bias, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.nn.functional.silu(self.first(x)))
        return found


Make = Callable[..., tuple[Any, Any]]


@pytest.fixture
def make_both() -> Make:
    """Makes a model with peft's layers and the same one with ours, adapters not zero."""

    def make(**choices: Any) -> tuple[Any, Any]:
        base = {name: choices.pop(name) for name in ("bias", "dtype") if name in choices}
        made = []
        for ours in (False, True):
            torch.manual_seed(0)
            model = Base(**base)
            config = peft.LoraConfig(
                r=4, lora_alpha=6, target_modules=["first", "second"], **choices
            )
            adapted = peft.get_peft_model(model, use_lora_linear(config) if ours else config)
            with torch.no_grad():
                for name, parameter in adapted.named_parameters():
                    if "lora_B" in name:
                        parameter.normal_(0.0, 0.1)
            made.append(adapted)
        return made[0], made[1]

    return make


def gradients(model: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    x = x.clone().requires_grad_()
    model(x).square().sum().backward()
    assert x.grad is not None
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"x": x.grad, **found}


@pytest.mark.parametrize("bias", [False, True])
def test_outputs_and_gradients_equal_pefts(make_both: Make, bias: bool) -> None:
    theirs, ours = make_both(bias=bias)
    assert isinstance(ours.base_model.model.first, LoraLinear)
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(x), theirs(x))
    wanted, found = gradients(theirs, x), gradients(ours, x)
    assert found.keys() == wanted.keys()
    assert sum("lora_" in name for name in found) == 4
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def test_base_alone_where_adapters_are_off(make_both: Make) -> None:
    _, ours = make_both()
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(1))
    with ours.disable_adapter():
        off = ours(x)
    torch.manual_seed(0)
    torch.testing.assert_close(off, Base()(x), rtol=0, atol=0)
    assert not torch.allclose(off, ours(x))


@pytest.mark.parametrize(
    "choices",
    [
        {"use_dora": True},
        {"lora_bias": True},
        # peft keeps the adapter in float32 there.
        {"dtype": torch.bfloat16},
    ],
)
def test_other_adapters_go_pefts_way(make_both: Make, choices: dict[str, Any]) -> None:
    dtype = choices.get("dtype", torch.float32)
    theirs, ours = make_both(**choices)
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted, found = gradients(theirs, x), gradients(ours, x)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=0, msg=name)


def test_second_adapter_is_applied_when_it_is_the_active_one(make_both: Make) -> None:
    theirs, ours = make_both()
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(1))
    before = ours(x)
    for model in (theirs, ours):
        torch.manual_seed(3)
        config = peft.LoraConfig(r=2, target_modules=["first"], init_lora_weights=False)
        model.add_adapter("other", config)
        model.set_adapter("other")
    assert not torch.allclose(ours(x), before)
    torch.testing.assert_close(ours(x), theirs(x))
