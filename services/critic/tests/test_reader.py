"""What holds for all kinds of verdict: reasoning, and bounded time for hostile texts."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from critic.questions import BinaryKind, Kind, LabelKind, PairwiseKind, ScoreKind
from critic.verdicts.table import read_verdict

Found = Callable[[str, Kind], Any]
TEN = ScoreKind(low=0, high=10)
KINDS = [PairwiseKind(ties_allowed=True), BinaryKind(), TEN, LabelKind(labels=("good", "bad"))]


def test_reasoning_is_thinking_then_what_stood_before_the_verdict() -> None:
    spoken = read_verdict("<think>hm</think>It is *good*.\n\nScore: 8\nBye", TEN)
    given = read_verdict('{"reasoning": "It is good.", "score": 8}', TEN)
    assert spoken.reasoning == "hm\n\nIt is *good*."
    assert given.reasoning == "It is good."


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "<think>" * 100_000,
        "<think>" + "[[A]]" * 100_000,
        "9" * 60_000,
        "[[" * 30_000,
        '{"a":' * 12_000,
        '{"' * 30_000,
        '[{"' * 20_000,
        "{'" * 30_000,
        "score: " * 9_000,
        "verdict is " * 5_000,
        "Final verdict: " * 4_000,
        "final " * 10_000,
        "<a>" * 20_000,
        "\n" * 60_000 + "?",
        "a " * 32_000,
        "score " + " " * 60_000 + "8",
        "\x00\x01[[" * 15_000,
        "the answer " * 5_000 + "is",
        "rate " * 13_000,
        "\\boxed{" * 9_000,
        "-" * 65_000,
        "*" * 65_000,
        '{"score": ' + "1" * 5_000 + "}",
        '{"score": ' + "[" * 30_000 + "]" * 30_000 + "}",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_has_no_verdict_and_takes_no_time(found: Found, text: str, kind: Kind) -> None:
    begun = time.thread_time()
    assert found(text, kind) is None
    assert time.thread_time() - begun < 1.0
