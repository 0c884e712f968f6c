"""Trees hold every row, share every common prefix, and let nodes see their ancestors alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajectory.tree import TokenTree, ancestor_mask, build_tree

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


def _ancestors(tree: TokenTree, node: int) -> set[int]:
    seen = set()
    while node >= 0:
        seen.add(node)
        node = int(tree.parents[node])
    return seen


@given(rows=ROWS, max_nodes=st.integers(1, 30))
def test_every_row_is_a_path_from_a_root(rows: list[list[int]], max_nodes: int) -> None:
    trees = build_tree(rows, max_nodes)
    packed = [index for tree in trees for index in tree.row_index]
    assert sorted(packed) == list(range(len(rows)))
    for tree in trees:
        for index, nodes in zip(tree.row_index, tree.row_nodes, strict=True):
            assert tree.token_ids[nodes].tolist() == rows[index]
            assert tree.positions[nodes].tolist() == list(range(len(rows[index])))
            assert tree.parents[nodes].tolist() == [-1, *nodes[:-1].tolist()]


@given(rows=ROWS)
def test_one_tree_has_one_node_per_distinct_prefix(rows: list[list[int]]) -> None:
    (tree,) = build_tree(rows, max_nodes=10_000)
    prefixes = {tuple(row[: length + 1]) for row in rows for length in range(len(row))}
    assert tree.num_nodes == len(prefixes)


@given(rows=ROWS, max_nodes=st.integers(1, 30))
def test_trees_keep_to_their_size_unless_one_row_is_longer(
    rows: list[list[int]], max_nodes: int
) -> None:
    for tree in build_tree(rows, max_nodes):
        distinct = {tuple(rows[index]) for index in tree.row_index}
        assert tree.num_nodes <= max_nodes or len(distinct) == 1


@given(rows=ROWS)
def test_ancestor_mask_is_the_chain_of_parents(rows: list[list[int]]) -> None:
    (tree,) = build_tree(rows, max_nodes=10_000)
    mask = ancestor_mask(tree)
    for node in range(tree.num_nodes):
        assert set(np.flatnonzero(mask[node]).tolist()) == _ancestors(tree, node)


def test_a_group_shares_its_prompt_and_all_groups_the_system_prompt() -> None:
    system, prompts = [1, 2, 3], ([4, 5], [6, 7, 8])
    rows = [system + prompt + [9 + i] for prompt in prompts for i in range(4)]
    (tree,) = build_tree(rows)
    assert tree.num_nodes == 3 + 2 + 3 + 8


def test_no_rows_give_no_tree() -> None:
    assert build_tree([]) == []


def test_an_empty_row_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="row 1 holds no token"):
        build_tree([[1], []])


def test_max_nodes_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_nodes must be at least 1, is 0"):
        build_tree([[1]], 0)
