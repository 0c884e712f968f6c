"""The vectors of one scope in memory, and the search for those nearest to a query: one matrix product."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

_FIRST_ROOM = 64
_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """Rows nearest to a query, nearest first."""

    positions: NDArray[np.int64]
    """Where the memories stand in the store, shape [n]."""
    similarities: NDArray[np.float64]
    """Cosines from -1 to 1, shape [n]."""


class VectorIndex:
    """Unit vectors by position, in ascending order of position; not safe to use from several threads at once."""

    def __init__(self, positions: NDArray[np.int64], vectors: Vectors) -> None:
        """Hold these.

        Args:
            positions: Ascending, shape [n].
            vectors: Unit vectors, shape [n, dimension].
        """
        self._size = len(positions)
        self._positions, self._vectors = positions, vectors

    def __len__(self) -> int:
        return self._size

    def add(self, position: int, vector: Vectors) -> None:
        """Append one vector of shape [dimension]; its position is above all others."""
        if self._size == len(self._positions):
            room = max(_FIRST_ROOM, self._size)
            self._positions = np.concatenate([self._positions, np.zeros(room, np.int64)])
            more = np.zeros((room, len(vector)), np.float32)
            self._vectors = np.concatenate([self._vectors, more])
        self._positions[self._size], self._vectors[self._size] = position, vector
        self._size += 1

    def remove(self, position: int) -> None:
        """Close the gap that a position leaves."""
        row = int(np.searchsorted(self._positions[: self._size], position))
        for array in (self._positions, self._vectors):
            array[row : self._size - 1] = array[row + 1 : self._size]
        self._size -= 1

    def nearest(self, query: Vectors, count: int) -> Nearest:
        """Return up to `count` rows by cosine, nearest first, of equals the one with the lowest position.

        Args:
            query: Unit vector, shape [dimension].
            count: 1 or more.
        """
        vectors, positions = self._vectors[: self._size], self._positions[: self._size]
        rows = _at_least_the_best(vectors @ query, count, len(query))
        similarities = _cosines(vectors, rows, query)
        order = np.lexsort((rows, -similarities))[:count]
        return Nearest(positions=positions[rows[order]], similarities=similarities[order])


def _at_least_the_best(approximate: Vectors, count: int, dimension: int) -> NDArray[np.intp]:
    """Return the rows that can be among the best once rounding errors are gone, ascending."""
    if len(approximate) <= count:
        return np.arange(len(approximate))
    # A dot product of unit vectors in float32 is off by at most dimension * epsilon; two of them are compared.
    rounding = 2 * dimension * np.finfo(np.float32).eps
    least = np.partition(approximate, -count)[-count] - rounding
    return np.flatnonzero(approximate >= least)


def _cosines(vectors: Vectors, rows: NDArray[np.intp], query: Vectors) -> NDArray[np.float64]:
    """Return the cosines of some rows, equal for equal rows.

    The matrix product rounds a row by where it stands; each row summed by itself does not.
    """
    cosines = np.empty(len(rows), np.float64)
    for begin in range(0, len(rows), _BLOCK):
        block = vectors[rows[begin : begin + _BLOCK]].astype(np.float64)
        cosines[begin : begin + _BLOCK] = (block * query.astype(np.float64)).sum(axis=1)
    return cosines.clip(-1.0, 1.0)
