"""Flattens training rows to the policy tokens in them.

Everything that an algorithm computes (weights, advantages, log-probabilities, losses) is one vector
over the policy tokens of the whole batch, in the order of the rows. How the rows are later split into
micro-batches then cannot change a result.

Shapes: T policy tokens of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


class MaskedRow(Protocol):
    """Token ids and, for each, whether the policy sampled it (or should learn to)."""

    @property
    def token_ids(self) -> Sequence[int]:
        """The whole sequence."""
        ...

    @property
    def loss_mask(self) -> Sequence[bool] | BoolArray:
        """True for policy tokens; as long as token_ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyTokens:
    """The policy tokens of some rows."""

    rows: tuple[IntArray, ...]
    """Ids of each row."""
    row_T: IntArray
    """Row of each policy token."""
    position_T: IntArray
    """Its place in the row; at least 1, since something must come before it."""
    counts: tuple[int, ...]
    """Policy tokens of each row."""
    unit_R: IntArray | None = None
    """Rows of one unit go through the model together; None where each row may go by itself."""

    @property
    def num_tokens(self) -> int:
        """How many policy tokens there are."""
        return len(self.row_T)


def policy_tokens(rows: Sequence[MaskedRow]) -> PolicyTokens:
    """Finds the policy tokens of the rows.

    Raises:
        ValueError: ids and mask differ in length, a row has no policy token, or its very first token
            is one, which nothing predicts.
    """
    ids = [np.asarray(row.token_ids, dtype=np.int64) for row in rows]
    positions = []
    for index, row in enumerate(rows):
        mask = np.asarray(row.loss_mask, dtype=bool)
        if len(mask) != len(ids[index]):
            raise ValueError(
                f"row {index}: {len(ids[index])} token ids and {len(mask)} mask entries; "
                "both must be equal"
            )
        found = np.flatnonzero(mask)
        if not len(found):
            raise ValueError(f"row {index}: no token is in the loss; leave such rows out")
        if found[0] == 0:
            raise ValueError(
                f"row {index}: its first token is in the loss, but nothing predicts it"
            )
        positions.append(found)
    counts = tuple(len(found) for found in positions)
    return PolicyTokens(
        rows=tuple(ids),
        row_T=np.repeat(np.arange(len(ids), dtype=np.int64), counts),
        position_T=np.concatenate(positions) if positions else np.empty(0, dtype=np.int64),
        counts=counts,
    )
