"""A statement of an answer within a response."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """An answer as the response states it."""

    text: str
    """The answer's own span."""
    line: str
    """What the span was cut from."""
    source: str
    """final, hash, box, box percent (a percent sign is behind the box), tag, json, answer, foreign, chinese, choice,
    correction, whole, result, last or pattern."""
    position: int
