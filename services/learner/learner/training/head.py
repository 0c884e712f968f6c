"""Log-probabilities from hidden states, without ever holding the logits of all tokens.

The gradient of a token's log-probability by its hidden state h is (w[target] - E_p[w]) / temperature, where
E_p[w] is the mean row of the output matrix under the predicted distribution. The forward pass computes E_p[w] while it
has the logits of a chunk; the backward pass then needs no logits, and the entropy comes from the same vector. Where the
output layer is trained too, its gradient for row v is the sum over tokens of ([v = target] - p_v) h / temperature, and
the backward pass computes the logits of each chunk once more.

Shapes: M hidden states, P (hidden state, token) pairs, V vocabulary, X hidden size.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 64 * 1024 * 1024
"""Logits that are held at once."""


def pair_logprobs(
    hidden_MX: torch.Tensor,
    weight_VX: torch.Tensor,
    state_P: torch.Tensor,
    target_P: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the log-probability of each pair's token, and the entropy at its hidden state.

    `state_P` is sorted. Entropies carry no gradient; without gradients they are zeros, not computed.
    """
    logprob_P, entropy_P = _PairLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_MX, weight_VX, state_P, target_P, temperature
    )
    return logprob_P, entropy_P


class _PairLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MX: torch.Tensor,
        weight_VX: torch.Tensor,
        state_P: torch.Tensor,
        target_P: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wants_gradient = any(ctx.needs_input_grad)
        num_states = hidden_MX.shape[0]
        logprob_P = torch.empty(len(state_P), device=hidden_MX.device)
        entropy_M = torch.zeros(num_states, device=hidden_MX.device)
        norm_M = torch.empty(num_states, device=hidden_MX.device)
        mean_MX = torch.empty_like(hidden_MX) if wants_gradient else hidden_MX.new_empty(0)
        chunk = max(1, CHUNK_BYTES // (4 * weight_VX.shape[0]))
        starts = range(0, num_states, chunk)
        edges = torch.searchsorted(
            state_P, torch.tensor([*starts, num_states], device=state_P.device)
        ).tolist()
        for index, start in enumerate(starts):
            states = slice(start, min(start + chunk, num_states))
            pairs = slice(edges[index], edges[index + 1])
            hidden = hidden_MX[states]
            logits = torch.mm(hidden, weight_VX.t()).float()
            if temperature != 1.0:
                logits.div_(temperature)
            local = state_P[pairs] - start
            picked = logits[local, target_P[pairs]]
            # log-sum-exp by hand, in place: the exponentials are needed again.
            top = logits.amax(-1)
            total = logits.sub_(top[:, None]).exp_().sum(-1)
            norm = top + total.log()
            norm_M[states] = norm
            logprob_P[pairs] = picked - norm[local]
            if wants_gradient:
                mean = torch.mm(logits.to(weight_VX.dtype), weight_VX).float() / total[:, None]
                mean_MX[states] = mean.to(mean_MX.dtype)
                expected_logit = (mean * hidden.float()).sum(-1) / temperature
                entropy_M[states] = norm - expected_logit
        ctx.save_for_backward(hidden_MX, norm_M, mean_MX, weight_VX, state_P, target_P)
        ctx.temperature = temperature
        ctx.chunk = chunk
        ctx.edges = edges
        entropy_P = entropy_M[state_P]
        ctx.mark_non_differentiable(entropy_P)
        return logprob_P, entropy_P

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_P: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        hidden_MX, norm_M, mean_MX, weight_VX, state_P, target_P = ctx.saved_tensors
        scaled_P = grad_P / ctx.temperature
        total_M = torch.zeros(len(mean_MX), device=grad_P.device).index_add_(0, state_P, scaled_P)
        hidden_grad_MX = weight_grad_VX = None
        if ctx.needs_input_grad[0]:
            hidden_grad_MX = mean_MX * -total_M[:, None].to(mean_MX.dtype)
            hidden_grad_MX.index_add_(
                0, state_P, scaled_P[:, None].to(mean_MX.dtype) * weight_VX[target_P]
            )
        if ctx.needs_input_grad[1]:
            weight_grad_VX = torch.zeros(weight_VX.shape, device=grad_P.device)
            for index, start in enumerate(range(0, len(hidden_MX), ctx.chunk)):
                states = slice(start, min(start + ctx.chunk, len(hidden_MX)))
                pairs = slice(ctx.edges[index], ctx.edges[index + 1])
                hidden = hidden_MX[states]
                logits = torch.mm(hidden, weight_VX.t()).float().div_(ctx.temperature)
                # In place: the probabilities, then the gradient of the logits.
                slope = logits.sub_(norm_M[states, None]).exp_().mul_(-total_M[states, None])
                slope.index_put_(
                    (state_P[pairs] - start, target_P[pairs]), scaled_P[pairs], accumulate=True
                )
                weight_grad_VX.addmm_(slope.t(), hidden.float())
            weight_grad_VX = weight_grad_VX.to(weight_VX.dtype)
        return hidden_grad_MX, weight_grad_VX, None, None, None
