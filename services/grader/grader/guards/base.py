"""The seam that every guard fits, and what a guard may know of the definition that it watches over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from grader.fields import Fields
from grader.guards.grounds import Grounds
from grader.instruments.all import Instruments
from grader.sample import Sample
from trajectory.types import OutcomeKind, Role

MAX_TEXT = 200_000
"""Characters of each text that a guard reads; of a longer one the end is read, as graders of answers do."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A response that was graded."""

    sample: Sample
    right: bool
    """Whether every grader that counts found that it did what the task asked."""

    @property
    def prompt(self) -> str:
        """What the agent was given before it said anything."""
        said = []
        for message in self.sample.record.messages:
            if message.role is Role.ASSISTANT:
                break
            said.append(message.text)
        return "\n".join(said)

    @property
    def said(self) -> tuple[str, ...]:
        """What the agent wrote, turn by turn, its thinking included."""
        return tuple(
            f"{message.reasoning_content}\n{message.text}"[-MAX_TEXT:]
            for message in self.sample.record.messages
            if message.role is Role.ASSISTANT
        )


class Guard(Protocol):
    """Looks for one way of being paid without doing the task."""

    async def look(self, case: Case, instruments: Instruments) -> str | None:
        """Return what looks wrong, for people; None if nothing does.

        Raises:
            GradingFaultError: it could not be looked into.
        """
        ...


ParseGuard = Callable[[Fields, Grounds], Guard]
"""Reads a guard's own keys; reports problems through the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardKind:
    """A guard that definitions may name."""

    parse: ParseGuard
    shortfall: OutcomeKind
    """Of a response whose success the guard takes away."""


GuardTable = Mapping[str, GuardKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What an alarm does to the score."""

    name: str
    """flag, price, zero or mask."""
    price: float = field(default=0.0)
    """Share of the score above the range's low end that is taken away."""
