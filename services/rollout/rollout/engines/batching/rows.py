"""Keys and values of the sequences that are being sampled, in preallocated rows, and their attention.

Active rows are always the first ones, rows that read their prompt the last of these, so that
attention works on slices. Shape suffixes: L layers, R rows, H key-value heads, G query heads per
key-value head, T positions, D head size, N tokens of a step, C tokens of the longest new part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GRANULE = 64
"""Positions are allocated in multiples of this, and attention runs over multiples of `SLICE`."""
SLICE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Tokens that one row reads in a step."""

    start: int
    """Position of the first of them."""
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where the tokens of a step lie and what they see; made once, used by every layer."""

    input_ids_1N: torch.Tensor
    position_ids_1N: torch.Tensor
    last_B: torch.Tensor
    """Index in N of each row's last token."""
    single: int
    """Rows that read one token; they come first."""
    slots_NH: torch.Tensor
    """Where keys and values go in the flat buffer."""
    width: int
    """Positions that attention covers."""
    single_mask: torch.Tensor
    """[single * H, 1, width], added to the scores."""
    prompt_pad: torch.Tensor
    """[P, C]: index in N of each new token of the other rows, or N for padding."""
    prompt_unpad: torch.Tensor
    """Index in P * C of each new token, in the order of N."""
    prompt_mask: torch.Tensor
    """[P, 1, C, width], added to the scores."""


class Rows:
    """Buffers for at most `max_rows` sequences of one policy."""

    def __init__(
        self, *, layers: int, heads: int, head_size: int, max_rows: int, dtype: torch.dtype
    ) -> None:
        """Starts empty; memory comes with the first sequence."""
        self._layers, self._heads, self._size = layers, heads, head_size
        self._max_rows = max_rows
        self._dtype = dtype
        self._kv = torch.zeros(layers, 2, 0, heads, 0, head_size, dtype=dtype)

    @property
    def capacity(self) -> int:
        """Positions that each row has room for."""
        return self._kv.shape[4]

    def reserve(self, rows: int, positions: int) -> None:
        """Makes room, keeping what is there."""
        have_rows, have = self._kv.shape[2], self.capacity
        if rows <= have_rows and positions <= have:
            return
        new_rows = have_rows if rows <= have_rows else min(self._max_rows, max(rows, 2 * have_rows))
        new = have if positions <= have else -(-positions // GRANULE) * GRANULE
        # Zeros, because a masked score still multiplies the value that lies there.
        grown = torch.zeros(
            self._layers, 2, new_rows, self._heads, new, self._size, dtype=self._dtype
        )
        grown[:, :, :have_rows, :, :have] = self._kv
        self._kv = grown

    def put(self, row: int, prefix: torch.Tensor, length: int) -> None:
        """Fills the first positions of a row from a saved prefix [L, 2, H, >= length, D]."""
        self._kv[:, :, row, :, :length] = prefix[:, :, :, :length]

    def copy_out(self, row: int, length: int) -> torch.Tensor:
        """Returns a copy of the first positions of a row, [L, 2, H, length, D]."""
        return self._kv[:, :, row, :, :length].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Puts what one row holds into another."""
        self._kv[:, :, target, :, :length] = self._kv[:, :, source, :, :length]

    def plan(self, feeds: Sequence[Feed]) -> Step:
        """Lays out a step; `feeds[i]` is for row i, rows with one token first."""
        lengths = [len(feed.token_ids) for feed in feeds]
        single = next((i for i, n in enumerate(lengths) if n > 1), len(feeds))
        total, widest = sum(lengths), max(lengths)
        ends = [feed.start + n for feed, n in zip(feeds, lengths, strict=True)]
        width = min(self.capacity, -(-max(ends) // SLICE) * SLICE)
        rows = torch.repeat_interleave(torch.arange(len(feeds)), torch.tensor(lengths))
        positions = torch.tensor(
            [p for feed, end in zip(feeds, ends, strict=True) for p in range(feed.start, end)]
        )
        heads = torch.arange(self._heads)
        slots = (rows[:, None] * self._heads + heads) * self.capacity + positions[:, None]
        seen = torch.arange(width)
        later = torch.finfo(self._dtype).min
        single_mask = torch.zeros(single, 1, width, dtype=self._dtype)
        single_mask.masked_fill_((seen > positions[:single, None]).unsqueeze(1), later)
        pad = torch.full((len(feeds) - single, widest), total)
        offset = single
        for row, length in enumerate(lengths[single:]):
            pad[row, :length] = torch.arange(offset, offset + length)
            offset += length
        padded_positions = torch.cat([positions, torch.tensor([0])])[pad]
        prompt_mask = torch.zeros(*pad.shape, width, dtype=self._dtype)
        prompt_mask.masked_fill_(seen > padded_positions[:, :, None], later)
        return Step(
            input_ids_1N=torch.tensor([[t for feed in feeds for t in feed.token_ids]]),
            position_ids_1N=positions.unsqueeze(0),
            last_B=torch.tensor(lengths).cumsum(0) - 1,
            single=single,
            slots_NH=slots,
            width=width,
            single_mask=single_mask.repeat_interleave(self._heads, dim=0),
            prompt_pad=pad,
            prompt_unpad=(pad < total).flatten().nonzero().squeeze(1),
            prompt_mask=prompt_mask.unsqueeze(1),
        )

    def attend(
        self,
        step: Step,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        """Stores the new keys and values and attends; takes [1, heads, N, D], returns [N, heads, D]."""
        slots = step.slots_NH.flatten()
        keys, values = self._kv[layer]
        keys.view(-1, self._size).index_copy_(0, slots, key[0].transpose(0, 1).flatten(0, 1))
        values.view(-1, self._size).index_copy_(0, slots, value[0].transpose(0, 1).flatten(0, 1))
        query_ND = query[0].transpose(0, 1) * scaling
        parts = []
        if step.single:
            parts.append(self._attend_single(step, keys, values, query_ND[: step.single]))
        if step.prompt_pad.shape[0]:
            parts.append(self._attend_prompts(step, keys, values, query_ND))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_single(
        self, step: Step, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor
    ) -> torch.Tensor:
        rows = step.single
        grouped = query.reshape(rows * self._heads, -1, self._size)
        seen_k = keys[:rows, :, : step.width].flatten(0, 1)
        seen_v = values[:rows, :, : step.width].flatten(0, 1)
        scores = torch.baddbmm(step.single_mask, grouped, seen_k.transpose(1, 2))
        return torch.bmm(scores.softmax(-1), seen_v).view(rows, -1, self._size)

    def _attend_prompts(
        self, step: Step, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor
    ) -> torch.Tensor:
        prompts, widest = step.prompt_pad.shape
        padded = torch.cat([query, query.new_zeros(1, *query.shape[1:])])[step.prompt_pad]
        # [P, C, H, G, D] -> [P, H, G * C, D]: the query heads of a key-value head stand together.
        grouped = padded.view(prompts, widest, self._heads, -1, self._size).permute(0, 2, 3, 1, 4)
        groups = grouped.shape[2]
        flat = grouped.reshape(prompts * self._heads, groups * widest, self._size)
        rows = slice(step.single, step.single + prompts)
        seen_k = keys[rows, :, : step.width].flatten(0, 1)
        seen_v = values[rows, :, : step.width].flatten(0, 1)
        scores = torch.bmm(flat, seen_k.transpose(1, 2))
        scores.view(prompts, self._heads * groups, widest, -1).add_(step.prompt_mask)
        mixed = torch.bmm(scores.softmax(-1), seen_v)
        mixed = mixed.view(prompts, self._heads, groups, widest, self._size)
        tokens = mixed.permute(0, 3, 1, 2, 4).reshape(prompts * widest, -1, self._size)
        return tokens[step.prompt_unpad]
