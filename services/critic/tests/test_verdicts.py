"""Reading verdicts: what counts, in every form, and what never does."""

import itertools
import time
from typing import Any

import pytest

from critic.questions import BinaryKind, Kind, LabelKind, PairwiseKind, ScoreKind, Winner
from critic.verdicts.reader import UnreadableError, read
from critic.verdicts.score import ScoreGrammar
from critic.verdicts.table import read_verdict

PAIRWISE = PairwiseKind(ties_allowed=True)
BINARY = BinaryKind()
TEN = ScoreKind(low=0, high=10)
LABELS = LabelKind(labels=("correct", "incorrect", "partially correct", "not_attempted"))


def found(text: str, kind: Kind) -> Any:
    """The verdict, or None where there is none."""
    try:
        return read_verdict(text, kind).verdict
    except UnreadableError:
        return None


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
def test_pairwise_verdict_is_read_in_every_form(form: str) -> None:
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
def test_pairwise_verdict_that_stands_is_the_last_and_the_whole(text: str, winner: str) -> None:
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
        "Winner: Berlin",
        "Verdict: tie-breaker needed",
    ],
)
def test_pairwise_text_without_a_verdict_is_never_a_winner_or_a_tie(text: str) -> None:
    expected = "A" if text == "A" else None
    assert found(text, PAIRWISE) == expected


def test_pairwise_tie_is_unreadable_when_ties_are_not_allowed() -> None:
    with pytest.raises(UnreadableError, match="A or B was asked for"):
        read_verdict("[[C]]", PairwiseKind(ties_allowed=False))


def test_contradiction_is_flagged_only_when_all_prose_speaks_for_another() -> None:
    against = read_verdict('Answer A is far superior.\n{"winner": "B"}', PAIRWISE)
    mixed = read_verdict("A is better in style. B is better on facts. [[B]]", PAIRWISE)
    silent = read_verdict("A cites nothing. [[B]]", PAIRWISE)
    wrong = read_verdict("The answer is incorrect.\nVerdict: correct", BINARY)
    assert (against.verdict, against.contradicted) == (Winner.B, True)
    assert (mixed.contradicted, silent.contradicted, wrong.contradicted) == (False, False, True)


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
    "<verdict>{}</verdict>",
    '{{"verdict": "{}"}}',
    '{{"reasoning": "it says yes and no", "passed": "{}"}}',
    "<think>no, yes, incorrect, correct</think>{}",
)


@pytest.mark.parametrize("form", BINARY_FORMS)
def test_binary_verdict_is_read_in_every_form(form: str) -> None:
    for word, value in BINARY_WORDS:
        assert found(form.format(word), BINARY) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("not correct", False),
        ("Not correct.", False),
        ("It is not correct.", False),
        ("Completely correct.", True),
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
def test_binary_verdict_is_a_whole_word(text: str, value: bool) -> None:
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
def test_binary_text_that_is_neither_is_never_a_verdict(text: str) -> None:
    assert found(text, BINARY) is None


SCORE_FORMS = (
    "{}",
    "{}.",
    "{}/10",
    "{} / 10",
    "{} out of 10",
    "Score: {}",
    "**Score:** {}",
    "**Score**: **{}**",
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
def test_score_is_read_whole_in_every_form(form: str) -> None:
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
def test_score_is_read_in_its_own_range(text: str, kind: ScoreKind, value: float) -> None:
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
def test_score_that_does_not_count_is_never_replaced(text: str) -> None:
    assert found(text, TEN) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("Score: 8/10", 8), ("11/10", None), ("Score: 85 (scale 0-10)", None), ("7", 7)],
)
def test_score_without_a_range_stays_within_the_scale_that_is_stated(
    text: str, value: float | None
) -> None:
    try:
        verdict = read(text, ScoreGrammar()).verdict
    except UnreadableError:
        verdict = None
    assert verdict == value


LABEL_FORMS = (
    "{}",
    "{}.",
    "Label: {}",
    "**Label:** {}.",
    "The label is {}",
    "Label: {} because the sum is off",
    "[[{}]]",
    "<label>{}</label>",
    '{{"label": "{}"}}',
    '{{"steps": [], "result": "{}"}}',
    "It was checked.\n\n{}",
)


@pytest.mark.parametrize("form", LABEL_FORMS)
def test_label_is_met_whole_and_returned_as_asked_for(form: str) -> None:
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
def test_text_without_one_of_the_labels_is_never_a_label(text: str) -> None:
    assert found(text, LABELS) is None


def test_labels_that_are_numbers_or_letters_are_met_whole() -> None:
    kind = LabelKind(labels=("1", "10", "A"))
    assert found("Label: 10", kind) == "10"
    assert found('{"label": 1}', kind) == "1"
    assert found("Label: a", kind) == "A"
    assert found("Label: 100", kind) is None


def test_reasoning_is_thinking_then_what_stood_before_the_verdict() -> None:
    spoken = read_verdict("<think>hm</think>It is *good*.\n\nScore: 8\nBye", TEN)
    given = read_verdict('{"reasoning": "It is good.", "score": 8}', TEN)
    assert spoken.reasoning == "hm\n\nIt is *good*."
    assert given.reasoning == "It is good."


@pytest.mark.parametrize(
    "kind", [PAIRWISE, BINARY, TEN, LABELS], ids=lambda kind: type(kind).__name__
)
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
def test_hostile_text_has_no_verdict_and_takes_no_time(text: str, kind: Kind) -> None:
    begun = time.perf_counter()
    assert found(text, kind) is None
    assert time.perf_counter() - begun < 1.0
