"""Soft labels of preference rows: how likely the chosen response is the better one, as a judge says (arXiv:2309.00267).

    {"soft_label": p}                        p: the probability that chosen is better
    {"first_shown_probabilities": [a, b]}    that the response shown first is; a: chosen first, b: rejected first

A judge leans to one of the two places, whatever stands there. Asked in both orders, its two probabilities of the same
response are averaged (RLAIF, sec. 2.1). A label under 0.5 says that the judge holds rejected for the better one.
"""

from collections.abc import Callable, Mapping

from runspec.problems import described

SOFT_LABEL, FIRST_SHOWN = "soft_label", "first_shown_probabilities"
HARD = 1.0
"""The label of a row that gives none: chosen is better."""


def soft_label(chosen_first: float, rejected_first: float) -> float:
    """Returns the probability that chosen is better, averaged over both orders.

    Args:
        chosen_first: probability that the response shown first is better, with chosen shown first.
        rejected_first: the same with rejected shown first.
    """
    return (chosen_first + (1.0 - rejected_first)) / 2.0


def read_soft_label(row: Mapping[str, object], note: Callable[[str, str], None]) -> float:
    """Returns the label of a row; `note` takes the field and what is wrong with it."""
    label, answers = row.get(SOFT_LABEL), row.get(FIRST_SHOWN)
    if label is not None and answers is not None:
        note(SOFT_LABEL, f"found {SOFT_LABEL} and {FIRST_SHOWN}, expected one of them")
    elif label is not None:
        return _read_probability(label, SOFT_LABEL, note)
    elif isinstance(answers, list) and len(answers) == 2:
        both = (_read_probability(p, f"{FIRST_SHOWN}[{i}]", note) for i, p in enumerate(answers))
        return soft_label(*both)
    elif answers is not None:
        expected = "two numbers: one with chosen shown first, one with rejected shown first"
        note(FIRST_SHOWN, f"found {described(answers)}, expected a list of {expected}")
    return HARD


def _read_probability(value: object, field: str, note: Callable[[str, str], None]) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    note(field, f"found {described(value)}, expected a probability: a number from 0 to 1")
    return HARD
