"""The seam that every guard fits, and what a guard may know of the definition that it watches over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from grader.fields import Fields
from grader.guards.grounds import Grounds
from grader.guards.texts import window
from grader.instruments.all import Instruments
from grader.sample import Sample
from trajectory.types import OutcomeKind, Role


@dataclass(frozen=True, kw_only=True)
class Case:
    """A response that was graded."""

    sample: Sample
    right: bool
    """Whether every grader that counts found that it did what the task asked."""

    @property
    def prompt(self) -> str:
        """What the agent was told: all that is neither its own words nor a tool's."""
        messages = self.sample.record.messages
        own = set(self._own)
        told = (m for n, m in enumerate(messages) if n not in own and m.role is not Role.TOOL)
        return window("\n".join(message.text for message in told))

    @property
    def said(self) -> tuple[str, ...]:
        """What the agent wrote, turn by turn, its thinking included."""
        said = (self.sample.record.messages[n] for n in self._own)
        return tuple(
            f"{window(message.reasoning_content)}\n{window(message.text)}" for message in said
        )

    @property
    def _own(self) -> tuple[int, ...]:
        """Places of the agent's own messages: one for each turn, after those that a task shows as examples."""
        record = self.sample.record
        said = [n for n, m in enumerate(record.messages) if m.role is Role.ASSISTANT]
        return tuple(said[-len(record.turns) :])


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
