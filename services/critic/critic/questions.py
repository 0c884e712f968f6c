"""What a judge is asked and what it finds, as plain data."""

from dataclasses import dataclass
from enum import StrEnum

from trajectory.types import ChatMessage


class Winner(StrEnum):
    """The better of two answers."""

    A = "A"
    B = "B"
    TIE = "tie"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreKind:
    """A number from low to high, both included."""

    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelKind:
    """Exactly one of the labels, spelled as here."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseKind:
    """Which of two answers, called A and B, is better."""

    ties_allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryKind:
    """Whether the material passes."""


Kind = ScoreKind | LabelKind | PairwiseKind | BinaryKind
Verdict = float | str | Winner | bool


class AnswerForm(StrEnum):
    """How the judge is told to state its verdict."""

    LINE = "line"
    JSON = "json"
    AS_ASKED = "as_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question to a judge."""

    messages: tuple[ChatMessage, ...]
    kind: Kind
    model: str = ""
    """Empty means the default model."""
    temperature: float = 0.0
    max_tokens: int = 0
    """0 means the default."""
    seed: int | None = None
    form: AnswerForm = AnswerForm.LINE
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the judge found."""

    verdict: Verdict
    reasoning: str
    model: str
    text: str
    input_tokens: int
    output_tokens: int
    contradicted: bool
    """The prose says the opposite of the verdict."""
    num_tries: int
