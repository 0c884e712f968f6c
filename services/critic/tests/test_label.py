"""Labels, met whole."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from critic.questions import Kind, LabelKind

Found = Callable[[str, Kind], Any]
LABELS = LabelKind(labels=("correct", "incorrect", "partially correct", "not_attempted"))


LABEL_FORMS = (
    "{}",
    "{}.",
    "Label: {}",
    "**Label:** {}.",
    "The label is {}",
    "Label: {} because the sum is off",
    "[[{}]]",
    "It was checked. {}.",
    "<label>{}</label>",
    '{{"label": "{}"}}',
    '{{"steps": [], "result": "{}"}}',
    "It was checked.\n\n{}",
)


@pytest.mark.parametrize("form", LABEL_FORMS)
def test_label_is_met_whole_and_returned_as_asked_for(found: Found, form: str) -> None:
    for label, change in itertools.product(LABELS.labels, (str, str.upper, str.title)):
        assert found(form.format(change(label)), LABELS) == label


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Label: correctness",
        "Label: not correct",
        "Label: correct or incorrect",
        "correct, incorrect, partially correct",
        '{"label": "wrong"}',
        '{"label": null}',
        '{"label": ["correct", "incorrect"]}',
        "The response makes no attempt.",
        "<think>correct</think>",
        "Label: correctly done",
    ],
)
def test_text_without_one_of_the_labels_is_never_a_label(found: Found, text: str) -> None:
    assert found(text, LABELS) is None


def test_labels_that_are_numbers_or_letters_are_met_whole(found: Found) -> None:
    kind = LabelKind(labels=("1", "10", "A"))
    assert found("Label: 10", kind) == "10"
    assert found('{"label": 1}', kind) == "1"
    assert found("Label: a", kind) == "A"
    assert found("Label: 100", kind) is None
