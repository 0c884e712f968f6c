"""Who computes a step: one process alone, or several that hold a part of the weights each.

Every rank has the whole batch and computes some of its micro-batches. In each round every rank computes one; a rank
that has none left computes another's once more without counting it, since the others wait for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from learner.training.logprobs import Microbatch
from learner.training.policy import Policy


class Ranks(Protocol):
    """The processes that take a step together."""

    @property
    def index(self) -> int:
        """Which of them this one is."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def place(self, policy: Policy) -> None:
        """Leaves this rank's part of the weights here."""
        ...

    def any(self, flag: bool) -> bool:
        """Says whether the flag is set on any rank."""
        ...

    def sum(self, value: float) -> float:
        """Adds up a number over the ranks."""
        ...

    def tell(self, text: str) -> str:
        """Returns what the first rank says; waits for all."""
        ...

    def join(self, values_T: torch.Tensor, mine_T: torch.Tensor) -> torch.Tensor:
        """Returns the values of all tokens, of which this rank has those in `mine_T`."""
        ...


class Alone:
    """One process."""

    index = 0
    count = 1

    def place(self, policy: Policy) -> None:
        """Leaves the policy as it is."""

    def any(self, flag: bool) -> bool:
        """Returns the flag."""
        return flag

    def sum(self, value: float) -> float:
        """Returns the number."""
        return value

    def tell(self, text: str) -> str:
        """Returns the text."""
        return text

    def join(self, values_T: torch.Tensor, mine_T: torch.Tensor) -> torch.Tensor:
        """Returns the values."""
        return values_T


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """What a rank computes in a round."""

    place: int
    """Of the micro-batch in the step."""
    part: Microbatch
    counts: bool
    """False where the rank only keeps the others company."""
    round_rows: int
    """Rows that all ranks together compute in the round."""
    round_places: tuple[int, ...]
    """Micro-batches that count in the round."""


def turns(parts: Sequence[Microbatch], ranks: Ranks) -> list[Turn]:
    """Returns this rank's part of a step, one turn per round; a round's micro-batches are of similar size."""
    order = list(range(len(parts)))
    if ranks.count > 1:
        order.sort(key=lambda place: -len(parts[place].tokens_P))
    found = []
    for first in range(0, len(order), ranks.count):
        of_round = order[first : first + ranks.count]
        counts = ranks.index < len(of_round)
        place = of_round[ranks.index] if counts else of_round[-1]
        found.append(
            Turn(
                place=place,
                part=parts[place],
                counts=counts,
                round_rows=sum(parts[other].num_rows for other in of_round),
                round_places=tuple(of_round),
            )
        )
    return found
