"""Log-probabilities of the policy tokens of many rows, in micro-batches.

`TreeScorer` packs rows into prefix trees and computes what rows share once. `PlainScorer` pads rows
and computes full logits, as a textbook would: it serves models whose attention cannot share a prefix,
and it is what the other is tested against. `choose_scorer` tries a model and takes the faster that
is right.

Shapes: N nodes of a tree, M nodes whose logits are needed, P policy tokens of a micro-batch, L row
length, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from learner.training.attention import TREE_ATTENTION, TreeLayout, tree_layout
from learner.training.head import pair_logprobs
from learner.training.rows import IntArray, PolicyTokens
from trajectory.tree import DEFAULT_MAX_NODES, TokenTree, build_tree

log = logging.getLogger(__name__)

MAX_DIFFERENCES: dict[torch.dtype, float] = {torch.float32: 1e-3, torch.bfloat16: 0.4}
"""Sharing is off where it moves the log-probabilities of the probe by more than this in the mean.

Rounding alone moves them by 1e-5 and 0.13 in SmolLM2."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """What the policy thinks of the policy tokens of a micro-batch."""

    logprobs_P: torch.Tensor
    """With gradient, at the sampling temperature."""
    entropy_P: torch.Tensor
    """Of the distribution that each token was drawn from, without gradient; zeros under no_grad."""
    values_P: torch.Tensor | None = None
    """Of the state that each token was chosen in, with gradient; None without a value head."""


ValueHead = Callable[[torch.Tensor], torch.Tensor]
"""From hidden states of shape (M, X) to values of shape (M, 1)."""


class Microbatch(Protocol):
    """A part of a batch that goes through the model at once."""

    @property
    def tokens_P(self) -> torch.Tensor:
        """Which policy tokens of the batch these are."""
        ...

    @property
    def num_rows(self) -> int:
        """How many rows of the batch this part holds."""
        ...

    def states(self, model: Any) -> torch.Tensor:
        """Runs the model without its output layer, and returns hidden states of shape (N, X)."""
        ...

    def score(
        self, model: Any, temperature: float, value_head: ValueHead | None = None
    ) -> TokenScores:
        """Runs a causal language model over this part."""
        ...


class Scorer(Protocol):
    """Splits a batch into micro-batches."""

    def split(self, tokens: PolicyTokens) -> list[Microbatch]:
        """Returns micro-batches that hold every policy token once, and units whole."""
        ...


class TreeScorer:
    """Computes shared prefixes once."""

    def __init__(self, device: torch.device, max_nodes: int = DEFAULT_MAX_NODES) -> None:
        """Takes the number of tree nodes that go through the model at once."""
        self._device = device
        self._max_nodes = max_nodes

    def split(self, tokens: PolicyTokens) -> list[Microbatch]:
        """Returns one micro-batch per tree."""
        firsts = np.concatenate(([0], np.cumsum(tokens.counts)))
        # The last policy token is predicted from the token before it; what follows is not needed.
        lengths = tokens.position_T[firsts[1:] - 1]
        inputs = [row[:length] for row, length in zip(tokens.rows, lengths, strict=True)]
        trees = (
            build_tree(inputs, self._max_nodes)
            if tokens.unit_R is None
            else _trees_of_units(inputs, tokens.unit_R, self._max_nodes)
        )
        return [_tree_microbatch(tree, tokens, firsts, self._device) for tree in trees]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeMicrobatch:
    """Rows that are packed into one tree."""

    tokens_P: torch.Tensor
    num_rows: int
    token_ids_N: torch.Tensor
    positions_N: torch.Tensor
    layout: TreeLayout
    nodes_M: torch.Tensor
    """Nodes whose logits are needed, each once even where rows repeat each other."""
    state_P: torch.Tensor
    """Place of each policy token's predicting node in nodes_M; sorted."""
    target_P: torch.Tensor

    def states(self, model: Any) -> torch.Tensor:
        """Runs the model over the nodes, without its output layer."""
        hidden_NX: torch.Tensor = model.base_model(
            input_ids=self.token_ids_N[None],
            position_ids=self.positions_N[None],
            # Four dimensions: transformers takes it as it is and makes no mask of its own.
            attention_mask=self.token_ids_N.new_ones((1, 1, 1, 1), dtype=torch.bool),
            use_cache=False,
            tree=self.layout,
        ).last_hidden_state[0]
        return hidden_NX

    def score(
        self, model: Any, temperature: float, value_head: ValueHead | None = None
    ) -> TokenScores:
        """Runs the model over the nodes, and its output layer over those that predict."""
        hidden_MX = self.states(model).index_select(0, self.nodes_M)
        logprobs, entropy = pair_logprobs(
            hidden_MX,
            model.get_output_embeddings().weight,
            self.state_P,
            self.target_P,
            temperature,
        )
        values = None if value_head is None else value_head(hidden_MX.float())[self.state_P, 0]
        return TokenScores(logprobs_P=logprobs, entropy_P=entropy, values_P=values)


class PlainScorer:
    """Computes every row by itself, padded to the longest of its micro-batch."""

    def __init__(self, device: torch.device, max_tokens: int = 1024) -> None:
        """Takes the number of tokens, padding included, that go through the model at once."""
        self._device = device
        self._max_tokens = max_tokens

    def split(self, tokens: PolicyTokens) -> list[Microbatch]:
        """Returns micro-batches of rows of similar length."""
        firsts = np.concatenate(([0], np.cumsum(tokens.counts)))
        units = _units(tokens)
        longest_in = [max(len(tokens.rows[index]) for index in unit) for unit in units]
        parts: list[list[int]] = []
        longest = 0
        for place in sorted(range(len(units)), key=lambda place: -longest_in[place]):
            if not parts or longest * (len(parts[-1]) + len(units[place])) > self._max_tokens:
                parts.append([])
                longest = longest_in[place]
            parts[-1] += units[place]
        return [_plain_microbatch(part, tokens, firsts, self._device) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainMicrobatch:
    """Rows side by side."""

    tokens_P: torch.Tensor
    num_rows: int
    token_ids_BL: torch.Tensor
    mask_BL: torch.Tensor
    row_P: torch.Tensor
    position_P: torch.Tensor
    target_P: torch.Tensor

    def states(self, model: Any) -> torch.Tensor:
        """Runs the model over the rows, padding included, without its output layer."""
        hidden_BLX: torch.Tensor = model.base_model(
            input_ids=self.token_ids_BL, attention_mask=self.mask_BL, use_cache=False
        ).last_hidden_state
        return hidden_BLX.flatten(0, 1)

    def score(
        self, model: Any, temperature: float, value_head: ValueHead | None = None
    ) -> TokenScores:
        """Runs the whole model and picks the policy tokens from full logits."""
        found = model(
            input_ids=self.token_ids_BL,
            attention_mask=self.mask_BL,
            use_cache=False,
            output_hidden_states=value_head is not None,
        )
        values = None
        if value_head is not None:
            hidden_PX = found.hidden_states[-1][self.row_P, self.position_P - 1]
            values = value_head(hidden_PX.float())[:, 0]
        logits_PV = found.logits[self.row_P, self.position_P - 1].float() / temperature
        logprobs_PV = logits_PV.log_softmax(-1)
        with torch.no_grad():
            entropy = -(logprobs_PV.exp() * logprobs_PV).sum(-1)
        picked = logprobs_PV.gather(-1, self.target_P[:, None])[:, 0]
        return TokenScores(logprobs_P=picked, entropy_P=entropy, values_P=values)


def choose_scorer(model: Any, device: torch.device, max_nodes: int = DEFAULT_MAX_NODES) -> Scorer:
    """Returns the tree scorer if this model computes the same with it, else the plain one.

    The model is tried on two short rows with a common start: any kind of attention or output layer
    that does not fit shows there, except a window that is longer than the rows.
    """
    plain = PlainScorer(device, max_nodes)
    reason = _cannot_share(model)
    if not reason:
        tree = TreeScorer(device, max_nodes)
        difference = _mean_difference(model, tree, plain)
        if difference <= MAX_DIFFERENCES[model.dtype]:
            return tree
        reason = f"log-probabilities differ by {difference:.2g} when prefixes are shared"
    log.warning("prefixes are not shared", extra={"reason": reason})
    return plain


def _cannot_share(model: Any) -> str:
    """Says why this model's attention cannot run over a tree; empty if it can."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"attention of kind {', '.join(sorted(kinds - {'full_attention'}))}"
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        return f"attention with a window of {window} tokens"
    if config._attn_implementation != TREE_ATTENTION:
        return f"{type(model).__name__} does not take attention from outside"
    return ""


def _mean_difference(model: Any, tree: Scorer, plain: Scorer) -> float:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = np.random.default_rng(0).integers(0, vocabulary, size=24)
    rows = (ids[:16], np.concatenate((ids[:6], ids[16:])))
    positions = [np.arange(1, len(row)) for row in rows]
    probe = PolicyTokens(
        rows=rows,
        row_T=np.repeat([0, 1], [len(row) - 1 for row in rows]),
        position_T=np.concatenate(positions),
        counts=tuple(len(row) - 1 for row in rows),
    )
    found = []
    with torch.no_grad():
        for scorer in (tree, plain):
            logprobs = torch.empty(probe.num_tokens)
            for part in scorer.split(probe):
                try:
                    scored = part.score(model, 1.0).logprobs_P
                    logprobs[part.tokens_P.cpu()] = scored.cpu()
                except (TypeError, ValueError, RuntimeError, AttributeError) as error:
                    # A model that does not take the extra inputs raises one of these.
                    if scorer is plain:
                        raise
                    log.info("the model refuses trees", extra={"error": str(error)})
                    return float("inf")
            found.append(logprobs)
    return float((found[0] - found[1]).abs().mean())


def _units(tokens: PolicyTokens) -> list[list[int]]:
    """Returns the rows of each unit."""
    if tokens.unit_R is None:
        return [[index] for index in range(len(tokens.rows))]
    return [np.flatnonzero(tokens.unit_R == unit).tolist() for unit in np.unique(tokens.unit_R)]


def _trees_of_units(
    inputs: Sequence[IntArray], unit_R: IntArray, max_nodes: int
) -> list[TokenTree]:
    """Packs units into trees, each unit into one; only a unit that is longer by itself exceeds `max_nodes`."""
    packs: list[list[int]] = []
    filled = 0
    for unit in np.unique(unit_R):
        rows = np.flatnonzero(unit_R == unit).tolist()
        needed = _one_tree([inputs[row] for row in rows]).num_nodes
        if not packs or filled + needed > max_nodes:
            packs.append([])
            filled = 0
        packs[-1] += rows
        filled += needed
    trees = []
    for pack in packs:
        tree = _one_tree([inputs[row] for row in pack])
        trees.append(replace(tree, row_index=tuple(pack[place] for place in tree.row_index)))
    return trees


def _one_tree(rows: Sequence[IntArray]) -> TokenTree:
    (tree,) = build_tree(rows, sum(len(row) for row in rows))
    return tree


def _tree_microbatch(
    tree: TokenTree, tokens: PolicyTokens, firsts: IntArray, device: torch.device
) -> TreeMicrobatch:
    chosen = [np.arange(firsts[row], firsts[row + 1]) for row in tree.row_index]
    nodes = [
        path[tokens.position_T[these] - 1]
        for path, these in zip(tree.row_nodes, chosen, strict=True)
    ]
    # Sorted by node, so that the output layer finds the pairs of a chunk in one piece.
    order = np.argsort(np.concatenate(nodes), kind="stable")
    tokens_P = np.concatenate(chosen)[order]
    nodes_M, state_P = np.unique(np.concatenate(nodes)[order], return_inverse=True)

    def tensor(array: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return TreeMicrobatch(
        tokens_P=tensor(tokens_P),
        num_rows=len(tree.row_index),
        token_ids_N=tensor(tree.token_ids),
        positions_N=tensor(tree.positions),
        layout=tree_layout(tree, device),
        nodes_M=tensor(nodes_M),
        state_P=tensor(state_P),
        target_P=tensor(_targets(tokens, tokens_P)),
    )


def _plain_microbatch(
    part: Sequence[int], tokens: PolicyTokens, firsts: IntArray, device: torch.device
) -> PlainMicrobatch:
    longest = max(len(tokens.rows[index]) for index in part)
    ids = np.zeros((len(part), longest), dtype=np.int64)
    mask = np.zeros((len(part), longest), dtype=np.int64)
    for place, index in enumerate(part):
        row = tokens.rows[index]
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    chosen = [np.arange(firsts[index], firsts[index + 1]) for index in part]
    tokens_P = np.concatenate(chosen)
    row_P = np.repeat(np.arange(len(part)), [len(these) for these in chosen])

    def tensor(array: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return PlainMicrobatch(
        tokens_P=tensor(tokens_P),
        num_rows=len(part),
        token_ids_BL=tensor(ids),
        mask_BL=tensor(mask),
        row_P=tensor(row_P),
        position_P=tensor(tokens.position_T[tokens_P]),
        target_P=tensor(_targets(tokens, tokens_P)),
    )


def _targets(tokens: PolicyTokens, tokens_P: IntArray) -> IntArray:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in tokens.rows])))
    flat = np.concatenate(tokens.rows)
    targets: IntArray = flat[offsets[tokens.row_T[tokens_P]] + tokens.position_T[tokens_P]]
    return targets
