"""Numbers in a range, in every form, and what does not count."""

from collections.abc import Callable
from typing import Any

import pytest

from critic.questions import Kind, ScoreKind
from critic.verdicts.reader import UnreadableError, read
from critic.verdicts.score import ScoreGrammar

Found = Callable[[str, Kind], Any]
TEN = ScoreKind(low=0, high=10)


SCORE_FORMS = (
    "{}",
    "{}.",
    "{}/10",
    "{} / 10",
    "{} out of 10",
    "Score: {}",
    "**Score:** {}",
    "**Score**: **{}**",
    "Score (0-10): {}",
    "Rating [1-10]: {}",
    "Score (out of 10): **{}**",
    "Score - {}",
    "| Depth score | 2 |\n| Overall score | {} |",
    "Overall: {}/10",
    "The score of this answer is {}.",
    "{}/10, nice.",
    "I would rate this story a {} on style. It has 2 plots.",
    "I'd give it {}.",
    "{} - mostly coherent.\n\nIt has 2 plots.",
    "{}: mostly coherent",
    "Score: {}/10.",
    "Score = {}",
    "Reward: {}.",
    "Final rating: [[{}]]",
    "Rating: [[{}]]. I would call it 3 of 10.",
    "Score: {} (scale 0-10)",
    "Score: {} points",
    "Score: {} - decent",
    "Overall score: {}\nClarity score: 1\nDepth score: 2",
    "5 reasons speak for it, so it deserves a score of {}.",
    "The score is {}.",
    "I would rate this response {}/10.",
    "<score>{}</score>",
    '{{"score": {}}}',
    '{{"score": "{}"}}',
    '```json\n{{"steps": [{{"score": 1}}], "score": {}}}\n```',
    '{{"reasoning": "Score: 2 for style", "overall_score": {}}}',
    "Score: 1\nA second look.\nScore: {}",
    "Score: {}\n\nA score of 10 would require sources.",
    "<think>Score: 3</think>\n{}",
    "A list:\n1. clear\n2. short\n\n{}",
    "\u8bc4\u5206\uff1a{}\u5206",
    "\\boxed{{{}}}",
)


@pytest.mark.parametrize("form", SCORE_FORMS)
def test_score_is_read_whole_in_every_form(found: Found, form: str) -> None:
    for number in ("8", "7.5", "0", "10", "0.25", "1e-1"):
        assert found(form.format(number), TEN) == float(number)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Reward: -0.5", ScoreKind(low=-1, high=1), -0.5),
        ("Reward: \u22120.5", ScoreKind(low=-1, high=1), -0.5),
        ("Score: 85%", ScoreKind(low=0, high=1), 0.85),
        ("Score: 85%", ScoreKind(low=0, high=100), 85),
        ("Score: 4/5", ScoreKind(low=1, high=5), 4),
        ("Score: 1,000", ScoreKind(low=0, high=1000), 1000),
        ("It should be \\boxed{3}. Score: 8", TEN, 8),
        ("Score: 8. It should be \\boxed{3}.", TEN, 8),
        ("Score: .5", ScoreKind(), 0.5),
        ("Score: +0.5", ScoreKind(), 0.5),
        ("Score: 8 (out of 10)", TEN, 8),
        ("Score: 7 (1-10)", TEN, 7),
        ("\uff33core: 1\nScore\uff1a\uff18", TEN, 8),
    ],
)
def test_score_is_read_in_its_own_range(
    found: Found, text: str, kind: ScoreKind, value: float
) -> None:
    assert found(text, kind) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Score: 85 (scale 0-10)",
        "Score: 11",
        "Score: -1",
        "Score: 85",
        "Reward: nan",
        "Reward: inf",
        "Score: 1e999",
        '{"score": NaN}',
        '{"score": 1e999}',
        '{"score": 11}',
        '{"score": true}',
        '{"score": null}',
        '{"score": "high"}',
        '{"score": [7]}',
        '{"scores": []}',
        '{"scores": {"clarity": 3, "depth": 5}}',
        '{"clarity": {"score": 3}, "depth": {"score": 5}}',
        '[{"score": 3}, {"score": 5}]',
        "Score: N/A",
        "Score: 5\nFinal score: N/A",
        "Score: 8\nFinal score: 80",
        "Score: excellent",
        "This is excellent work, 3 points stand out.",
        "I cannot evaluate this.",
        "Score: 7-8",
        "Score: 8 \u00b1 1",
        "Score: <8",
        "Score (0-100): 8",
        "Score (out of 5): 3",
        '{"scores": [7, 9]}',
        "Score: 7 to 8",
        "Score: 7 or 8",
        "Score: 0,85",
        "Score: 8th",
        "Score: 1.2.3",
        "Score: 10k",
        "Score: 8\u00bd",
        "Score: 10\u00b2",
        "Score: 4/5",
        "Score: 8/100",
        "8/100",
        "Score: 85%",
        "Score: 7 (scale 0-100)",
        "Clarity score: 3\nDepth score: 9",
        "5 reasons speak for it.",
        "I give it 5 tries and 2 cents.",
        "I would give 3 reasons.",
        "I would rate this a 7 to 8.",
        'For example: "Rating: [[5]]"',
        "[[5]] or [[6]]",
        "The answer 7 is wrong.",
        "Score:\n1. It is short.\n2. It is clear.",
        "1 - It is short.\n2 - It is clear.",
        "1. It is short.\n2. It is clear.",
        "That leaves 12 - 8 = 4.\n#### 4",
        "<think>Score: 6",
        "Score: " + "9" * 500,
    ],
)
def test_score_that_does_not_count_is_never_replaced(found: Found, text: str) -> None:
    assert found(text, TEN) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Score: 8/10", 8),
        ("11/10", None),
        ("Score (0-10): 85", None),
        ("Score: 85 (scale 0-10)", None),
        ("7", 7),
    ],
)
def test_score_without_a_range_stays_within_the_scale_that_is_stated(
    text: str, value: float | None
) -> None:
    try:
        verdict = read(text, ScoreGrammar()).verdict
    except UnreadableError:
        verdict = None
    assert verdict == value
