"""How strong each of several players is, by who won against whom (Bradley and Terry 1952).

    P(i beats j) = p_i / (p_i + p_j)
    p_i         <- W_i / sum over j of n_ij / (p_i + p_j)       Hunter 2004, eq. 3 (MM), until nothing moves

W_i counts the wins of i, n_ij the games of i and j; a tie is half a win for each. Only ratios of strengths mean
anything, so their geometric mean is 1. A maximum exists only where no set of players has won all games against the
others.
"""

import math
from collections.abc import Sequence

TOLERANCE = 1e-12
"""Relative change below which strengths no longer move."""
MAX_ROUNDS = 100_000


class NoStrengths(ValueError):
    """The games have no maximum of likelihood: some would be infinitely stronger than others."""


def strengths(wins: Sequence[Sequence[float]]) -> list[float]:
    """Returns the strength of each player.

    Args:
        wins: row beats column, so often; the diagonal does not count.

    Raises:
        NoStrengths: some players have won all games against the others, or played none.
        ValueError: the table is not square, or a number is negative or not finite.
    """
    size = len(wins)
    if any(len(row) != size for row in wins):
        raise ValueError(f"wins: a table of {size} rows needs {size} columns in each")
    if any(not 0 <= won < math.inf for row in wins for won in row):
        raise ValueError("wins: found a number that is negative or not finite; 0 or more is right")
    if not _is_connected(wins):
        raise NoStrengths("some have won all games against the others, or played none")
    total = [sum(won for j, won in enumerate(row) if j != i) for i, row in enumerate(wins)]
    found = [1.0] * size
    for _ in range(MAX_ROUNDS):
        made = _normalised(
            [
                total[i]
                / sum(
                    (wins[i][j] + wins[j][i]) / (found[i] + found[j]) for j in range(size) if j != i
                )
                if size > 1
                else 1.0
                for i in range(size)
            ]
        )
        moved = max((abs(new / old - 1) for new, old in zip(made, found, strict=True)), default=0)
        found = made
        if moved < TOLERANCE:
            break
    return found


def _normalised(values: Sequence[float]) -> list[float]:
    """Returns the values over their geometric mean."""
    middle = math.exp(math.fsum(map(math.log, values)) / len(values)) if values else 1.0
    return [value / middle for value in values]


def _is_connected(wins: Sequence[Sequence[float]]) -> bool:
    """Says whether everyone is reached from everyone by a chain of wins, which is when a maximum exists (Ford 1957)."""

    def reached(beats: Sequence[Sequence[float]]) -> int:
        seen, open_ = {0}, [0]
        while open_:
            here = open_.pop()
            new = {j for j, won in enumerate(beats[here]) if won > 0} - seen
            seen |= new
            open_ += new
        return len(seen)

    size = len(wins)
    turned = [[wins[i][j] for i in range(size)] for j in range(size)]
    return size < 2 or (reached(wins) == size and reached(turned) == size)
