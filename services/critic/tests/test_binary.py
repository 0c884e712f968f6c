"""Yes or no, in every form, and what is neither."""

from collections.abc import Callable
from typing import Any

import pytest

from critic.questions import BinaryKind, Kind

Found = Callable[[str, Kind], Any]
BINARY = BinaryKind()


BINARY_WORDS = [
    (word, value)
    for value, text in (
        (True, "correct CORRECT Correct yes YES true pass PASSED valid"),
        (False, "incorrect INCORRECT no NO false FAIL failed wrong invalid"),
    )
    for word in text.split()
]
BINARY_FORMS = (
    "{}",
    "{}.",
    "**{}**",
    "{}, the sum was checked.",
    "{}\n\nThe sum was checked.",
    "The sum was checked.\n\n{}",
    "Verdict: {}",
    "**Verdict**: {}.",
    "Final answer: {}",
    "Judgement: {} because 2 + 2 is 4",
    "[[{}]]",
    "The sum was checked against the reference. {}",
    "Verdict - {}",
    "<verdict>{}</verdict>",
    '{{"verdict": "{}"}}',
    '{{"reasoning": "it says yes and no", "passed": "{}"}}',
    "<think>no, yes, incorrect, correct</think>{}",
)


@pytest.mark.parametrize("form", BINARY_FORMS)
def test_binary_verdict_is_read_in_every_form(found: Found, form: str) -> None:
    for word, value in BINARY_WORDS:
        assert found(form.format(word), BINARY) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("not correct", False),
        ("Not correct.", False),
        ("It is not correct.", False),
        ("Completely correct.", True),
        ("This is correct.", True),
        ("That is wrong.", False),
        ('{"correct": true}', True),
        ('{"is_correct": false, "reason": "true enough"}', False),
        ('{"score": 1}', True),
        ("0", False),
        ("Yes, no errors were found.", True),
        ("No, yes would be wrong.", False),
        ("Yes it is.", True),
        ("No - the sum is off", False),
        ("No, but it is close.", False),
        (
            "The response is well written.\nHowever, it mixes units.\nTherefore the answer is incorrect.",
            False,
        ),
        ("Correct at first sight.\n\nIncorrect", False),
        ("Verdict: correct. On reflection, verdict: incorrect", False),
        ("Is it correct? Final verdict: yes", True),
        ("\u6b63\u786e", True),
        ("\u4e0d\u6b63\u786e", False),
        ("\u7ed3\u8bba\uff1a\u9519\u8bef", False),
    ],
)
def test_binary_verdict_is_a_whole_word(found: Found, text: str, value: bool) -> None:
    assert found(text, BINARY) is value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Partially correct",
        "partly correct.",
        "Mostly correct",
        "Verdict: partially correct",
        '{"verdict": "partially correct"}',
        "Not entirely correct",
        "not incorrect",
        "unknown",
        "Unknown.",
        "Nothing is known.",
        "Yes and no",
        "Yes or no?",
        "Yes/No",
        "Yes, but only partially.",
        "Correct, but incomplete",
        "No answer was given",
        "No issues.\nNotable style.",
        "Correct answer: 42",
        "correctness matters",
        "Maybe",
        "N/A",
        "I cannot say.",
        '{"correct": null}',
        '{"correct": "maybe"}',
        '{"score": 0.5}',
        '{"correct": true, "passed": false}',
        "Right, let me look at this.",
        "He has 2 - 1 = 1 left.\n#### 1",
        "1\n\nThe ending is obvious.",
        "<think>correct</think>",
        "Verdict: correct\nFinal verdict: mixed",
    ],
)
def test_binary_text_that_is_neither_is_never_a_verdict(found: Found, text: str) -> None:
    assert found(text, BINARY) is None
