"""`text_similarity`: every metric by hand-made figures and against the libraries' own ways of doing it."""

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sklearn.feature_extraction.text import CountVectorizer

from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.similarity import METRICS, similarity
from servicekit.errors import InvalidArgument
from trajectory.types import Failure, GraderErrorKind, OutcomeKind, RolloutRecord

MakeRecord = Callable[..., RolloutRecord]
CAT = "the cat sat on the mat"


async def _judge(desk: GradingDesk, record: RolloutRecord, metric: str, **more: object) -> Any:
    grader = {
        "type": "text_similarity",
        "reference": "{{item.text}}",
        "evaluation_metric": metric,
        **more,
    }
    return (await desk.judge(record, json.dumps(grader))).outcome


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "gold", [CAT, "72", "!", "\u5317\u4eac\u662f\u9996\u90fd", "caf\u00e9 cr\u00e8me"]
)
async def test_gold_is_one_and_wrong_is_low_in_every_metric(
    desk: GradingDesk, make_record: MakeRecord, metric: str, gold: str
) -> None:
    item = {"text": gold}
    right = await _judge(desk, make_record(f" {gold}\n", item=item), metric)
    assert (right.score, right.kind) == (1.0, None)
    wrong = await _judge(desk, make_record("quickly jumped over", item=item), metric)
    assert wrong.score < 0.3
    assert wrong.kind is OutcomeKind.REASONING
    empty = await _judge(desk, make_record(" ", item=item), metric)
    assert (empty.score, empty.kind) == (0.0, OutcomeKind.FORMAT)


@pytest.mark.parametrize(
    ("metric", "given", "wanted", "value"),
    [
        ("fuzzy_match", "kitten", "sitting", 1 - 5 / 13),
        ("bleu", "the cat", CAT, math.exp(1 - 6 / 2)),
        ("bleu", "the the the", "the cat", (1 / 3 * 0.1 / 2 * 0.1 / 1) ** (1 / 3)),
        ("gleu", "the cat sat", "the cat ran", 3 / 6),
        ("meteor", "the cats sat", "the cat sat", 1 - 0.5 / 27),
        ("meteor", "mat the", "the mat", 1 - 0.5),
        ("rouge_1", "The cat", "the dog ran", 2 * (1 / 2 * 1 / 3) / (1 / 2 + 1 / 3)),
        ("rouge_2", "the cat sat", "the cat ran", 0.5),
        ("rouge_5", "a b c d e f", "a b c d e g", 0.5),
        ("rouge_l", "police killed the gunman", "police kill the gunman", 0.75),
        ("rouge_l", "\u5317\u4eac", "\u5317\u6d77", 0.5),
        (
            "bleu",
            "\u5317\u4eac\u662f\u9996\u90fd",
            "\u5317\u4eac\u662f\u9996\u5e9c",
            (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25,
        ),
    ],
)
def test_the_figures(metric: str, given: str, wanted: str, value: float) -> None:
    assert similarity(metric, given, wanted) == pytest.approx(value, abs=1e-9)


words = st.lists(
    st.sampled_from(["the", "cat", "Cat", "sat", "on-a", "mat,", "don't", "3.5", "x"]), max_size=12
)
sentences = words.map(" ".join)


@given(sentences, sentences)
def test_rouge_is_that_of_the_library(one: str, other: str) -> None:
    if one == other or not one or not other:
        return
    names = ["rouge1", "rouge2", "rouge3", "rouge4", "rouge5", "rougeL"]
    scores = RougeScorer(names, use_stemmer=False).score(other, one)
    found = [similarity(f"rouge_{name[5:].lower()}", one, other) for name in names]
    assert found == pytest.approx([scores[name].fmeasure for name in names])


@given(sentences, sentences)
def test_cosine_is_that_of_character_counts(one: str, other: str) -> None:
    if one == other or not one or not other:
        return
    counts = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit_transform([one, other])
    left, right = counts.toarray()
    wanted = left @ right / math.sqrt((left @ left) * (right @ right))
    assert similarity("cosine", one, other) == pytest.approx(wanted)


@given(st.sampled_from(sorted(METRICS)), st.text(max_size=40), st.text(max_size=40))
def test_a_similarity_lies_between_nothing_and_one(metric: str, one: str, other: str) -> None:
    assert 0.0 <= similarity(metric, one, other) <= 1.0
    assert similarity(metric, one, one) == 1.0


@pytest.mark.parametrize(("threshold", "kind"), [(0.7, None), (0.8, OutcomeKind.REASONING)])
async def test_below_the_threshold_is_a_shortfall_and_the_value_stays(
    desk: GradingDesk, make_record: MakeRecord, threshold: float, kind: OutcomeKind | None
) -> None:
    record = make_record("police killed the gunman", item={"text": "police kill the gunman"})
    outcome = await _judge(desk, record, "rouge_l", pass_threshold=threshold)
    assert (outcome.score, outcome.kind) == (0.75, kind)


@pytest.mark.parametrize("metric", METRICS)
async def test_a_text_that_is_too_long_is_no_fault_and_a_reference_is(
    desk: GradingDesk, make_record: MakeRecord, metric: str
) -> None:
    start = time.process_time()
    long = "ab, " * 250_000
    outcome = await _judge(desk, make_record(long, item={"text": "ab"}), metric)
    assert (outcome.score, outcome.kind) == (0.0, OutcomeKind.FORMAT)
    for reference in (long, " "):
        fault = await _judge(desk, make_record("ab", item={"text": reference}), metric)
        assert isinstance(fault, Failure)
        assert fault.grader_error is GraderErrorKind.REFERENCE
    assert time.process_time() - start < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_the_longest_texts_are_compared_soon(metric: str) -> None:
    start = time.process_time()
    size = 1_999 if metric == "meteor" else 12_000
    one = " ".join(f"w{n % 997}" for n in range(size))[:50_000]
    similarity(metric, one, one[::-1])
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"evaluation_metric": "rouge_6"}, "evaluation_metric"),
        ({"pass_threshold": 1.1}, "pass_threshold"),
        ({"reference": "{{item}}"}, "reference"),
        ({"reference": "{{ sample.output_text }}"}, "reference"),
    ],
)
def test_a_wrong_definition_names_its_field(change: dict[str, object], path: str) -> None:
    grader = {"type": "text_similarity", "reference": "x", "evaluation_metric": "bleu", **change}
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps(grader))
    assert path in caught.value.violations
