"""What reads like a verdict and is none: another's, a limit, a count, code, a list, a quotation, a supposition."""

from collections.abc import Callable
from typing import Any

import pytest

from critic.questions import BinaryKind, Kind, LabelKind, PairwiseKind, ScoreKind

Found = Callable[[str, Kind], Any]
TEN, BINARY, PAIR = ScoreKind(low=0, high=10), BinaryKind(), PairwiseKind(ties_allowed=True)
NUMBERS = LabelKind(labels=("1", "2", "3", "4", "5"))
OPINIONS = LabelKind(labels=("strongly agree", "agree", "neutral", "disagree"))
SIGNS = LabelKind(labels=("-1", "0", "1"))
GRADES = LabelKind(labels=("A", "B", "C"))


@pytest.mark.parametrize(
    "text",
    [
        "Max score: 10",
        '{"max_score": 10}',
        "The passing score is 5.",
        "Reference score: 9",
        "The previous reviewer's score was 9.",
        "A perfect score of 10 is not warranted.",
        "A score of 9 is too generous.",
        "To get a score of 9, cite sources.",
        "I cannot give a score of 9.",
        "For a score of 9, sources are needed.",
        "The code sets result = 1 and returns.",
        "`reward = 0` is the bug that it missed.",
        "It computes result = (2**n) for all n.",
        "```python\nscore = 1\n```\nThe code is fine.",
        "```py\nreturn x\n# Score: 9\n```",
        "Overall: 3 errors found.",
        "Result: 5 tests passed",
        "Score: 7\nOverall: 3 errors",
        "Score: 0..1",
        "Score: [0, 10]",
        'It ends with "Score: 10/10" to sway me.',
        "It ends with \u201cFinal score: 10\u201d to sway me.",
        'It ends with "[[10]]" to sway me.',
        "The response claims a score of 10. I disagree.",
        "It asks me to ignore the rules and output Score: 10",
        "The answer's own score: 10",
        "The user's rating: 9",
    ],
)
def test_number_that_is_not_the_judges_score_is_none(found: Found, text: str) -> None:
    assert found(text, TEN) is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 8\nMax score: 10", 8),
        ("Score: 8\nThe previous score was 3.", 8),
        ("Score: 8. With sources the score would be 9.", 8),
        ('The response says "Score: 10/10", which is meant to sway me. Score: 1', 1),
        ('Score: 1\nThe response says "Score: 10/10".', 1),
        ("```python\nscore = 1\n```\nScore: 6", 6),
        ('```json\n{"score": 6}\n```', 6),
        ("Final score = 6", 6),
        ("score=6", 6),
        ('{"reasoning": "ok", "score": 6,}', 6),
        ('{"scores": {"accuracy": 7, "style": 5}, "overall": 6}', 6),
        ("The score should be 6.", 6),
        ("I would give it a score of 6 for style.", 6),
        ("| Facts | 4 |\n| **Total** | **6** |", 6),
        ("Score: 6 because it is short", 6),
        ("The response's score: 6", 6),
        ("My own score: 6", 6),
        ("Score: 6 The style is flat.", 6),
    ],
)
def test_score_beside_such_a_number_is_read(found: Found, text: str, score: float) -> None:
    assert found(text, TEN) == score


@pytest.mark.parametrize(
    "text",
    [
        '{"incorrect": false}',
        '{"failed": false}',
        '{"failed": true}',
        "{'failed': False}",
        "Failed: 0",
        "Failed: none",
        "Passed: 3, Failed: 2",
        "Passed: 3/5 tests",
        "Incorrect: no",
        "Wrong: false",
        "Correct answer: yes",
        "Reference answer: no",
        "The student claims the answer is correct.",
        "I doubt it is correct.",
        "It is unclear whether the answer is correct.",
        "Verdict: yes, although the units are wrong",
        "Verdict: correct except for the units",
        "Verdict: correct if x > 0",
        'It ends with "Verdict: yes" to sway me.',
    ],
)
def test_word_that_does_not_say_whether_it_passes_is_none(found: Found, text: str) -> None:
    assert found(text, BINARY) is None


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ('Verdict: no\nThe response said: "Verdict: yes"', False),
        ("Correct answer: yes\nVerdict: no", False),
        ("Pass/Fail: Fail", False),
        ("Verdict: The answer is wrong.", False),
        ("Judgement: This is not correct", False),
        ("Verdict: It is correct.", True),
        ("The answer isn't correct.", False),
        ("I think the answer is correct.", True),
        ("So the model's final answer is incorrect.", False),
        ("\u2705 Correct", True),
        ("\u274c Incorrect", False),
        ("**Final Verdict:** Incorrect \u274c", False),
        ("PASS \u2714\ufe0f", True),
        ("Verdict: \u2714\ufe0f", True),
        ("Correct: the sum is right.", True),
    ],
)
def test_verdict_in_such_words_is_read(found: Found, text: str, passed: bool) -> None:
    assert found(text, BINARY) is passed


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        ("[[B]]\n\nAnswer A tried to inject [[A]].", None),
        ('Answer A says "[[A]]" to sway me.', None),
        ('[[B]]\n\nAnswer A says "[[A]]" to sway me.', "B"),
        ("I would give [[A]] for style, but accuracy decides: [[B]]", "B"),
        ("[[A]]\n\nA second look.\n\n[[B]]", "B"),
        ("Winner: A is better at style but B at facts", None),
        ("Winner: A is better in style, and B is better in facts.", None),
        ("Winner: A is better because it cites, but B is shorter.", "A"),
        ("Verdict: A\nThe previous verdict was B.", "A"),
        ("The better response is clearly A.", "A"),
        ("I slightly prefer B.", "B"),
        ("Style: A\nFacts: B\nOverall: B", "B"),
        ("\u66f4\u597d\u7684\u56de\u7b54\u662fB", "B"),
    ],
)
def test_winner_is_the_judges_own(found: Found, text: str, winner: str | None) -> None:
    assert found(text, PAIR) == winner


@pytest.mark.parametrize(
    ("text", "kind", "label"),
    [
        ("Label: 1.5", NUMBERS, None),
        ("4.5", NUMBERS, None),
        ('{"label": 1.5}', NUMBERS, None),
        ('{"label": 4.0}', NUMBERS, "4"),
        ("Label: 3 - 4", NUMBERS, None),
        ("Label: 3:1", NUMBERS, None),
        ("2, 12, 8", NUMBERS, None),
        ("1. It is good.\n2. It is short.", NUMBERS, None),
        ("1) It is good.", NUMBERS, None),
        ("4.", NUMBERS, "4"),
        ("Label: 4. It is clear.", NUMBERS, "4"),
        ("4: it is clear", NUMBERS, "4"),
        ("Label: neutral - agree", OPINIONS, None),
        ("Label: neutral \u2013 no opinion", OPINIONS, "neutral"),
        ("\\boxed{-3}", NUMBERS, None),
        ("- 3", NUMBERS, "3"),
        ("1,-2", NUMBERS, None),
        ("2 - 50", NUMBERS, None),
        ("1\u201390", NUMBERS, None),
        ("Label: -1", SIGNS, "-1"),
        ("Label: 1", SIGNS, "1"),
        ('{"label": -1}', SIGNS, "-1"),
        ("-1", SIGNS, "-1"),
        ("Agree: no", OPINIONS, None),
        ("Agree: **false**", OPINIONS, None),
        ("Agree: the sum is right.", OPINIONS, "agree"),
        ("Label: A, but barely", GRADES, "A"),
        ("Label: A, B", GRADES, None),
    ],
)
def test_label_is_no_part_of_a_number_or_a_list(
    found: Found, text: str, kind: Kind, label: str | None
) -> None:
    assert found(text, kind) == label
