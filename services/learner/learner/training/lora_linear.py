"""A linear layer with LoRA whose products go into one output.

peft computes y = x W' + s (x A') B' (LoRA, arXiv:2106.09685, section 4.1) as separate operations, each of which makes a
tensor of the output's size and reads it again. Here the adapter's product is added to the layer's in place, forward and
backward: the same numbers up to rounding, less memory and fewer passes over it. peft makes these layers itself, by
`use_lora_linear`, so that everything else of peft holds for them.

Shapes: N tokens, I inputs, O outputs, R rank.
"""

from typing import Any

import peft
import torch
from peft.tuners.lora import Linear
from torch.autograd.function import once_differentiable


def use_lora_linear(config: peft.LoraConfig) -> peft.LoraConfig:
    """Lets peft make these layers, and returns the config."""
    config._register_custom_module({torch.nn.Linear: LoraLinear})
    return config


class LoraLinear(Linear):
    """peft's layer; what is not one plain adapter of the layer's own type goes peft's way."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the layer's output with the active adapter's, (..., I) to (..., O)."""
        name = self._only_adapter(x.dtype)
        if name is None or args or kwargs:
            found: torch.Tensor = super().forward(x, *args, **kwargs)
            return found
        base = self.base_layer
        out_NO: torch.Tensor = _LoraProduct.apply(  # type: ignore[no-untyped-call]  # torch has no types for it
            x.reshape(-1, x.shape[-1]),
            base.weight,
            base.bias,
            self.lora_A[name].weight,
            self.lora_B[name].weight,
            self.scaling[name],
        )
        return out_NO.view(*x.shape[:-1], -1)

    def _only_adapter(self, dtype: torch.dtype) -> str | None:
        """Returns the active adapter where it alone is applied, as the paper has it."""
        if self.disable_adapters or self.merged:
            return None
        active = [name for name in self.active_adapters if name in self.lora_A]
        if len(active) != 1 or self.base_layer.weight.requires_grad:
            return None
        (name,) = active
        down, up = self.lora_A[name], self.lora_B[name]
        plain = (
            name not in self.lora_variant
            and isinstance(self.lora_dropout[name], torch.nn.Identity)
            and up.bias is None
            and down.weight.dtype == self.base_layer.weight.dtype == dtype
            and not torch.is_autocast_enabled(down.weight.device.type)
        )
        return name if plain else None


class _LoraProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        down_RI: torch.Tensor,
        up_OR: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        inner_NR = torch.mm(x_NI, down_RI.t())
        out_NO = torch.mm(x_NI, weight_OI.t())
        out_NO.addmm_(inner_NR, up_OR.t(), alpha=scale)
        if bias_O is not None:
            out_NO.add_(bias_O)
        ctx.save_for_backward(x_NI, inner_NR, weight_OI, down_RI, up_OR)
        ctx.scale = scale
        return out_NO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_NI, inner_NR, weight_OI, down_RI, up_OR = ctx.saved_tensors
        wants_x, _, _, wants_down, wants_up, _ = ctx.needs_input_grad
        grad_x = grad_down = grad_up = None
        if wants_up:
            grad_up = torch.mm(grad_NO.t(), inner_NR).mul_(ctx.scale)
        if wants_x or wants_down:
            grad_inner_NR = torch.mm(grad_NO, up_OR).mul_(ctx.scale)
            if wants_down:
                grad_down = torch.mm(grad_inner_NR.t(), x_NI)
            if wants_x:
                grad_x = torch.mm(grad_NO, weight_OI).addmm_(grad_inner_NR, down_RI)
        return grad_x, None, None, grad_down, grad_up, None
