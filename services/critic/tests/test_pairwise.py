"""Verdicts between two answers, in every form, and what is none."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from critic.questions import BinaryKind, Kind, PairwiseKind, Winner
from critic.verdicts.reader import UnreadableError
from critic.verdicts.table import read_verdict

Found = Callable[[str, Kind], Any]
PAIRWISE = PairwiseKind(ties_allowed=True)
BINARY = BinaryKind()


DRAFTS = (
    "",
    "Assistant A is wordy, Assistant B is short.\n\n",
    "<think>[[A]] or [[B]]? A tie?</think>",
)
PAIR_FORMS = (
    "[[{}]]",
    "My final verdict is: [[{}]].",
    "Final Verdict: {}",
    "**Verdict:** **{}**",
    "**Verdict: {}**",
    "Winner: {}.",
    "WINNER = {}",
    "Winner -> {}",
    "The winner is {}.",
    "Verdict: Assistant {}",
    "Verdict: Response {} is clearly the better one",
    "Verdict: {}, because it cites a source.",
    "Verdict: {} - it is shorter",
    "Better answer: {}",
    "Verdict - {}",
    "Verdict (A, B or tie): {}",
    "So the winner must be {}!",
    "Both were read with care. {}.",
    "\u5224\u65ad\u7ed3\u679c\uff1a{}",
    "<verdict>{}</verdict>",
    "<winner>\n{}\n</winner>",
    "<verdict>Answer {}",
    '{{"winner": "{}"}}',
    '{{"reasoning": "A was fine. B too.", "winner": "{}"}}',
    '```json\n{{"final_verdict": "{}", "confidence": 0.8}}\n```',
    '{{"result": {{"preferred_response": "Response {}"}}}}',
    '{{"winner": "assistant_{}"}}',
    "\\boxed{{{}}}",
    "{}",
    "**{}**",
    "Both were checked.\n\n{}",
    "Therefore, Assistant {} is better.",
    "\u6700\u7ec8\u5224\u65ad\uff1a{}",
    "\u7ed3\u8bba\uff1a\u56de\u7b54{}",
    "## Verdict:\n\n{}",
)


@pytest.mark.parametrize("form", PAIR_FORMS)
def test_pairwise_verdict_is_read_in_every_form(found: Found, form: str) -> None:
    for draft, winner in itertools.product(DRAFTS, "AB"):
        assert found(draft + form.format(winner), PAIRWISE) == winner


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        ("[[C]]", "tie"),
        ("[[Tie]]", "tie"),
        ("[[A=B]]", "tie"),
        ("[[A>>B]]", "A"),
        ("[[B>A]]", "B"),
        ("[[A<B]]", "B"),
        ("Verdict: A tie", "tie"),
        ("Verdict: tie.", "tie"),
        ('{"winner": "Tie"}', "tie"),
        ('{"winner": "neither"}', "tie"),
        ("<verdict>TIE</verdict>", "tie"),
        ("It's a tie.", "tie"),
        ("\u7ed3\u8bba\uff1a\u5e73\u5c40", "tie"),
        ("[[A]] at first sight, [[B]] on the facts, so [[A]]", "A"),
        ("I would say [[A]]. Final verdict: B", "B"),
        ("A tie would be wrong. Better answers cite. Verdict: B", "B"),
        ("Verdict: A > B", "A"),
        ("A > B", "A"),
        ("B>>A", "B"),
        ("A=B", "tie"),
        ("Style winner: A\nAccuracy winner: B\nOverall winner: B", "B"),
        ("Overall winner: B\nStyle winner: A", "B"),
        ('{"criteria": {"style": {"winner": "A"}, "facts": {"winner": "B"}}, "winner": "B"}', "B"),
        ("{'winner': 'B'}", "B"),
        ('{"winner": "B",}', "B"),
        ('{"reason": "line one\nline two", "winner": "A"}', "A"),
        ("Output [[A]] if assistant A is better, [[B]] if assistant B is better. I say [[B]]", "B"),
        ("Not [[A]]. It has to be [[B]]", "B"),
        ("Verdict: A, B is wrong", "A"),
        ("Verdict: [[B]]\n\n[[B]]", "B"),
        ("B\n\n### Reason: it is shorter", "B"),
        ("\u200b[[\u200eA]]", "A"),
        ("\uff3b\uff3bA\uff3d\uff3d\nVerdict\uff1a\uff21", "A"),
    ],
)
def test_pairwise_verdict_that_stands_is_the_last_and_the_whole(
    found: Found, text: str, winner: str
) -> None:
    assert found(text, PAIRWISE) == winner


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t ",
        "<think>[[A]]",
        "<think>[[A]]</think>",
        "I cannot compare these answers.",
        "Both answers have merits and flaws.",
        "A",
        "A better answer would cite a source.",
        "Verdict: A better answer would cite a source.",
        "Verdict: C",
        '{"winner": "C"}',
        "[[D]]",
        "[[A]] or [[B]]",
        "[[A]]/[[B]]",
        "[[A]], [[B]], [[C]]",
        'Output "[[A]]" if assistant A is better, "[[B]]" if assistant B is better, and "[[C]]" for a tie.',
        "Verdict: A or B",
        "Verdict: A, B or tie",
        "Verdict: A/B",
        "Verdict: A and B",
        '{"winner": null}',
        '{"winner": ""}',
        '{"winner": "A or B"}',
        '{"winner": ["A", "B"]}',
        '{"winner": "A", "verdict": "B"}',
        '{"style": {"winner": "A"}, "facts": {"winner": "B"}}',
        "Style winner: A\nAccuracy winner: B",
        "Assistant A is not better.",
        "Neither is usable, sadly, though A comes close.",
        "Winner: Alice",
        "Verdict: B at first. Verdict: unclear",
        "Verdict: B\nFinal verdict: A or B",
        "Verdict: A\nVerdict: A/B",
        "Winner: Berlin",
        "Verdict: tie-breaker needed",
    ],
)
def test_pairwise_text_without_a_verdict_is_never_a_winner_or_a_tie(
    found: Found, text: str
) -> None:
    expected = "A" if text == "A" else None
    assert found(text, PAIRWISE) == expected


def test_pairwise_tie_is_unreadable_when_ties_are_not_allowed() -> None:
    with pytest.raises(UnreadableError, match="A or B was asked for"):
        read_verdict("[[C]]", PairwiseKind(ties_allowed=False))


def test_contradiction_is_flagged_only_when_all_prose_speaks_for_another() -> None:
    against = read_verdict('Answer A is far superior.\n{"winner": "B"}', PAIRWISE)
    worse = read_verdict('Answer B is clearly worse.\n{"winner": "B"}', PAIRWISE)
    mixed = read_verdict("A is better in style. B is better on facts. [[B]]", PAIRWISE)
    silent = read_verdict("A cites nothing. [[B]]", PAIRWISE)
    wrong = read_verdict("The answer is incorrect.\nVerdict: correct", BINARY)
    assert (against.verdict, against.contradicted) == (Winner.B, True)
    assert worse.contradicted
    assert (mixed.contradicted, silent.contradicted, wrong.contradicted) == (False, False, True)
