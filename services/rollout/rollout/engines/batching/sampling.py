"""Draws one token per row by inverting the distribution function, with its log-probability.

Each row brings its own uniform number, so a row's tokens do not depend on its batch mates. Shape
suffixes: B rows, V vocabulary, K blocks of the vocabulary.
"""

from collections.abc import Sequence

import torch

from trajectory.types import SamplingParams

BLOCK = 256
"""Entries per block; the search first finds the block and then the entry."""


def draw(
    logits_BV: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Returns token and log-probability per row; overwrites the logits.

    Args:
        logits_BV: float32, one row per sequence.
        params: How each row is drawn; temperature 0 takes the best token.
        uniforms: One number in [0, 1) per row.
    """
    temperatures = [p.temperature if p.temperature > 0 else 1.0 for p in params]
    if any(t != 1.0 for t in temperatures):
        logits_BV.div_(torch.tensor(temperatures, dtype=logits_BV.dtype).unsqueeze(1))
    for row, param in enumerate(params):
        if param.temperature > 0 and _truncates(param):
            _truncate(logits_BV[row], param)
    best_B, argmax_B = logits_BV.max(dim=1)
    logits_BV.sub_(best_B.unsqueeze(1))
    greedy = [p.temperature <= 0 for p in params]
    weights_BV = logits_BV.exp()
    totals_B, tokens_B = _invert(weights_BV, uniforms)
    if any(greedy):
        tokens_B = torch.where(torch.tensor(greedy), argmax_B, tokens_B)
    chosen_B = logits_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)
    logprobs_B = chosen_B.double() - totals_B.log()
    return tokens_B.tolist(), logprobs_B.tolist()


def _invert(
    weights_BV: torch.Tensor, uniforms: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds per row where the running sum of the weights passes its share; returns (sum, index)."""
    rows, size = weights_BV.shape
    padding = -size % BLOCK
    if padding:
        weights_BV = torch.nn.functional.pad(weights_BV, (0, padding))
    blocks_BKV = weights_BV.view(rows, -1, BLOCK)
    sums_BK = blocks_BKV.sum(dim=2).double().cumsum(dim=1)
    totals_B = sums_BK[:, -1]
    # 1 - u lies in (0, 1], so that an entry of weight 0 is never met.
    wanted_B1 = ((1.0 - torch.tensor(uniforms, dtype=torch.float64)) * totals_B).unsqueeze(1)
    block_B1 = torch.searchsorted(sums_BK, wanted_B1).clamp_(max=sums_BK.shape[1] - 1)
    before_B1 = torch.where(
        block_B1 > 0, sums_BK.gather(1, (block_B1 - 1).clamp_(min=0)), torch.zeros_like(wanted_B1)
    )
    inner_BV = blocks_BKV[torch.arange(rows), block_B1.squeeze(1)].double().cumsum(dim=1)
    # Summing in another order may leave the last entry short of the share by rounding.
    inside_B1 = torch.minimum(wanted_B1 - before_B1, inner_BV[:, -1:])
    index_B1 = torch.searchsorted(inner_BV, inside_B1).clamp_(max=BLOCK - 1)
    return totals_B, (block_B1 * BLOCK + index_B1).squeeze(1).clamp_(max=size - 1)


def _truncates(params: SamplingParams) -> bool:
    return 0.0 < params.top_p < 1.0 or params.top_k > 0 or params.min_p > 0.0


def _truncate(logits_V: torch.Tensor, params: SamplingParams) -> None:
    """Excludes what top-k, min-p and top-p cut off, in this order, in place."""
    if params.top_k > 0:
        kept = min(params.top_k, logits_V.numel())
        logits_V.masked_fill_(logits_V < logits_V.topk(kept).values[-1], float("-inf"))
    if params.min_p > 0.0:
        probabilities = logits_V.softmax(0)
        logits_V.masked_fill_(probabilities < params.min_p * probabilities.max(), float("-inf"))
    if 0.0 < params.top_p < 1.0:
        ordered, order = logits_V.softmax(0).sort(descending=True)
        beyond = ordered.cumsum(0) - ordered >= params.top_p
        logits_V[order[beyond]] = float("-inf")
