"""Packs token rows into trees in which every shared prefix is one set of nodes.

The rollouts of a group share their prompt, all rollouts of a run share the system prompt, and a
forked row shares everything up to its fork. A model that runs over the nodes of a tree, each at the
position of its depth and attending to its ancestors alone, computes for every row exactly what it
would compute for that row by itself, and computes what rows share once. Prefixes are found from
the ids; nobody says where a prompt ends. This module builds the trees; it knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

DEFAULT_MAX_NODES = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTree:
    """Some rows as one tree, or as several beside each other when they share no first token.

    Nodes are in depth-first order: a parent comes before its children, and what hangs below a node
    follows it without a gap.
    """

    token_ids: IntArray
    """Token of each node."""
    parents: IntArray
    """Node before it in its rows; -1 at the start of a row."""
    positions: IntArray
    """Depth of each node, which is its position in every row that holds it."""
    ends: IntArray
    """The nodes below node n are n + 1 to ends[n], the latter excluded."""
    row_nodes: tuple[IntArray, ...]
    """Per row the node of each of its tokens."""
    row_index: tuple[int, ...]
    """Per row its place among the rows that were given."""

    @property
    def num_nodes(self) -> int:
        """How many tokens a forward pass over the tree computes."""
        return len(self.token_ids)


def build_tree(
    rows: Sequence[Sequence[int] | IntArray], max_nodes: int = DEFAULT_MAX_NODES
) -> list[TokenTree]:
    """Packs all rows into trees of at most `max_nodes` nodes.

    Rows are taken in the order of their ids, so that those with a common prefix are neighbours,
    and a tree is filled until the next row does not fit. A row that alone is longer than
    `max_nodes` has a tree to itself.

    Raises:
        ValueError: a row is empty, or max_nodes is below 1.
    """
    if max_nodes < 1:
        raise ValueError(f"max_nodes must be at least 1, is {max_nodes}")
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    for index, array in enumerate(arrays):
        if not len(array):
            raise ValueError(f"row {index} holds no token")
    # Big-endian bytes sort as the ids do, and far faster than lists of integers.
    keys = [array.astype(">u4").tobytes() for array in arrays]
    order = sorted(range(len(arrays)), key=keys.__getitem__)

    trees: list[TokenTree] = []
    builder = _Builder()
    for index in order:
        if builder.num_nodes and builder.num_nodes + builder.cost(arrays[index]) > max_nodes:
            trees.append(builder.finish())
            builder = _Builder()
        builder.add(index, arrays[index])
    if builder.num_nodes:
        trees.append(builder.finish())
    return trees


def ancestor_mask(tree: TokenTree) -> BoolArray:
    """Returns [N, N]: whether node i (row) attends to node j (column), itself included."""
    nodes = np.arange(tree.num_nodes, dtype=np.int64)
    return (nodes[None, :] <= nodes[:, None]) & (nodes[:, None] < tree.ends[None, :])


class _Builder:
    """One tree in the making; rows arrive in the order of their ids."""

    def __init__(self) -> None:
        self.num_nodes = 0
        self._tokens: list[IntArray] = []
        self._parents: list[IntArray] = []
        self._positions: list[IntArray] = []
        # Nodes whose subtrees end before the given node.
        self._closed: list[tuple[IntArray, int]] = []
        self._row_nodes: list[IntArray] = []
        self._row_index: list[int] = []
        self._last_row: IntArray = np.empty(0, dtype=np.int64)
        self._last_nodes: IntArray = np.empty(0, dtype=np.int64)

    def cost(self, row: IntArray) -> int:
        """Says how many new nodes the row needs."""
        return len(row) - _common_prefix(self._last_row, row)

    def add(self, index: int, row: IntArray) -> None:
        """Hangs the row under the longest prefix that it shares with the row before it."""
        shared = _common_prefix(self._last_row, row)
        start, stop = self.num_nodes, self.num_nodes + len(row) - shared
        new = np.arange(start, stop, dtype=np.int64)
        nodes = np.concatenate((self._last_nodes[:shared], new))
        parents = new - 1
        if len(new):
            parents[0] = nodes[shared - 1] if shared else -1
        self._closed.append((self._last_nodes[shared:], start))
        self._tokens.append(row[shared:])
        self._parents.append(parents)
        self._positions.append(np.arange(shared, len(row), dtype=np.int64))
        self._row_nodes.append(nodes)
        self._row_index.append(index)
        self._last_row, self._last_nodes, self.num_nodes = row, nodes, stop

    def finish(self) -> TokenTree:
        """Returns the tree."""
        ends = np.full(self.num_nodes, self.num_nodes, dtype=np.int64)
        for nodes, end in self._closed:
            ends[nodes] = end
        return TokenTree(
            token_ids=np.concatenate(self._tokens),
            parents=np.concatenate(self._parents),
            positions=np.concatenate(self._positions),
            ends=ends,
            row_nodes=tuple(self._row_nodes),
            row_index=tuple(self._row_index),
        )


def _common_prefix(left: IntArray, right: IntArray) -> int:
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    return int(different.argmax()) if different.any() else length
