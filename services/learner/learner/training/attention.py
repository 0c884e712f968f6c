"""Attention over a token tree: every node attends to its ancestors, and to them alone.

A dense N x N mask wastes most of its products, since a node's ancestors are few. Here the nodes that a
row added to the tree are queries, in blocks of up to 64, against the keys of that row's own path.
Blocks of similar size are computed together; keys and values of shared nodes are gathered, not
recomputed, and their gradients add up.

Shapes: N nodes, B blocks, Q queries per block, K keys per block, H query heads, G key heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trajectory.tree import IntArray, TokenTree

TREE_ATTENTION = "hone_tree"
"""Name under which transformers knows this attention."""

BLOCK_QUERIES = 64

MAX_STORED_KEYS = 1024
"""Up to so many keys attention weights are kept for the backward pass, which is faster; beyond it they
are computed again."""

MIN_FILL = 0.7
"""Blocks are computed together while the shortest has at least this share of the longest's keys."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockGroup:
    """Blocks of similar length, padded to the same shape."""

    query_BQ: torch.Tensor
    """Node of each query; padding repeats node 0."""
    key_BK: torch.Tensor
    """Node of each key; padding repeats node 0."""
    allowed_BQK: torch.Tensor
    """Whether a query sees a key. Padded queries see the first key, so that nothing is undefined."""
    biases: dict[tuple[int, int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    """The same as numbers to add, laid out for a number of heads; made once for all layers."""

    def bias(self, key_heads: int, shared: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns what to add to the scores [B x G, S x Q, K]: 0 where a query sees a key, else -inf."""
        layout = (key_heads, shared, dtype)
        if layout not in self.biases:
            blocks, queries, keys = self.allowed_BQK.shape
            made = torch.zeros(blocks, queries, keys, dtype=dtype, device=self.key_BK.device)
            made.masked_fill_(~self.allowed_BQK, float("-inf"))
            spread = made[:, None, None].expand(blocks, key_heads, shared, queries, keys)
            self.biases[layout] = spread.reshape(blocks * key_heads, shared * queries, keys)
        return self.biases[layout]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeLayout:
    """How the attention of one tree is computed."""

    groups: tuple[BlockGroup, ...]
    place_N: torch.Tensor
    """Where each node's output lies among the outputs of all groups, one after the other."""


@dataclass(frozen=True, slots=True)
class _Block:
    path: IntArray
    first_query: int


def tree_layout(tree: TokenTree, device: torch.device) -> TreeLayout:
    """Plans the attention of a tree."""
    blocks = sorted(_blocks(tree), key=lambda block: -len(block.path))
    groups: list[list[_Block]] = []
    for block in blocks:
        if not groups or len(block.path) < MIN_FILL * len(groups[-1][0].path):
            groups.append([])
        groups[-1].append(block)
    place = np.empty(tree.num_nodes, dtype=np.int64)
    built = []
    start = 0
    for group in groups:
        made, start = _build_group(group, place, start, device)
        built.append(made)
    return TreeLayout(groups=tuple(built), place_N=torch.from_numpy(place).to(device))


def register_tree_attention() -> None:
    """Makes the attention known to transformers; repeating it changes nothing."""
    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    # Without a tree layout the model works as with sdpa, masks included.
    AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: TreeLayout | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attends over a tree; without one it is the model's ordinary attention."""
    if tree is None:
        plain: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return plain
    _, num_heads, _, head_size = query.shape
    query_NX = query[0].transpose(0, 1).flatten(1)
    # Keys and values travel together: one gather, and one scatter in the backward pass.
    pair_NX = torch.cat((key[0], value[0])).transpose(0, 1).flatten(1)
    scale = scaling if scaling is not None else head_size**-0.5
    outputs = [
        _attend(group, query_NX, pair_NX, num_heads, head_size, scale) for group in tree.groups
    ]
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined.index_select(0, tree.place_N)[None], None


def _attend(
    group: BlockGroup,
    query_NX: torch.Tensor,
    pair_NX: torch.Tensor,
    num_heads: int,
    head_size: int,
    scale: float,
) -> torch.Tensor:
    num_blocks, num_queries = group.query_BQ.shape
    num_keys = group.key_BK.shape[1]
    key_heads = pair_NX.shape[1] // head_size // 2
    shared = num_heads // key_heads
    query_BQGSD = query_NX.index_select(0, group.query_BQ.flatten()).view(
        num_blocks, num_queries, key_heads, shared, head_size
    )
    pair_BKGD = pair_NX.index_select(0, group.key_BK.flatten()).view(
        num_blocks, num_keys, 2 * key_heads, head_size
    )
    query_BGSQD = query_BQGSD.permute(0, 2, 3, 1, 4)
    key_BGKD = pair_BKGD[:, :, :key_heads].transpose(1, 2)
    value_BGKD = pair_BKGD[:, :, key_heads:].transpose(1, 2)
    if num_keys > MAX_STORED_KEYS:
        attended = functional.scaled_dot_product_attention(
            query_BGSQD.reshape(num_blocks, num_heads, num_queries, head_size),
            key_BGKD,
            value_BGKD,
            attn_mask=group.allowed_BQK[:, None],
            scale=scale,
            enable_gqa=shared > 1,
        ).view(num_blocks, key_heads, shared, num_queries, head_size)
    else:
        attended = _stored_attention(group, query_BGSQD, key_BGKD, value_BGKD, scale)
    out_BQGSD = attended.permute(0, 3, 1, 2, 4)
    return out_BQGSD.reshape(num_blocks * num_queries, num_heads * head_size)


def _stored_attention(
    group: BlockGroup,
    query_BGSQD: torch.Tensor,
    key_BGKD: torch.Tensor,
    value_BGKD: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attends with the plain formula; the query heads that share a key head form one product."""
    num_blocks, key_heads, shared, num_queries, head_size = query_BGSQD.shape
    num_keys = key_BGKD.shape[2]
    query = query_BGSQD.reshape(num_blocks * key_heads, shared * num_queries, head_size)
    key = key_BGKD.reshape(num_blocks * key_heads, num_keys, head_size)
    value = value_BGKD.reshape(num_blocks * key_heads, num_keys, head_size)
    bias = group.bias(key_heads, shared, query.dtype)
    scores = torch.baddbmm(bias, query, key.transpose(1, 2), alpha=scale)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    attended = torch.bmm(weights, value)
    return attended.view(num_blocks, key_heads, shared, num_queries, head_size)


def _blocks(tree: TokenTree) -> list[_Block]:
    """Cuts what each row added to the tree into blocks."""
    blocks = []
    known = 0
    for path in tree.row_nodes:
        first_new = int(np.searchsorted(path, known))
        for first in range(first_new, len(path), BLOCK_QUERIES):
            stop = min(first + BLOCK_QUERIES, len(path))
            blocks.append(_Block(path=path[:stop], first_query=first))
        known = max(known, int(path[-1]) + 1)
    return blocks


def _build_group(
    blocks: Sequence[_Block], place: IntArray, start: int, device: torch.device
) -> tuple[BlockGroup, int]:
    """Pads blocks to one shape and notes in `place` where the outputs of their queries will lie."""
    num_keys = max(len(block.path) for block in blocks)
    num_queries = max(len(block.path) - block.first_query for block in blocks)
    query = np.zeros((len(blocks), num_queries), dtype=np.int64)
    key = np.zeros((len(blocks), num_keys), dtype=np.int64)
    allowed = np.zeros((len(blocks), num_queries, num_keys), dtype=bool)
    allowed[:, :, 0] = True
    keys = np.arange(num_keys)
    for index, block in enumerate(blocks):
        nodes = block.path[block.first_query :]
        query[index, : len(nodes)] = nodes
        key[index, : len(block.path)] = block.path
        positions = np.arange(block.first_query, len(block.path))
        allowed[index, : len(nodes)] = keys[None, :] <= positions[:, None]
        place[nodes] = start + index * num_queries + np.arange(len(nodes))
    group = BlockGroup(
        query_BQ=torch.from_numpy(query).to(device),
        key_BK=torch.from_numpy(key).to(device),
        allowed_BQK=torch.from_numpy(allowed).to(device),
    )
    return group, start + len(blocks) * num_queries
