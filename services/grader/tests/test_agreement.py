"""Kappa against the shared cases, an independent computation and labels that people really gave."""

import csv
import json
import math
import os
import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.agreement.cohen import Kappa, Weights, cohen, crosstab
from grader.agreement.demand import demanded, shortfalls
from grader.agreement.labels import Scale, label_of, scale_of
from grader.agreement.meaning import strength_of
from grader.agreement.measure import AgreementTable, agreement_of, measure
from grader.agreement.ratings import Rating, Ratings, majority_of, ratings_of
from grader.agreement.several import fleiss, krippendorff
from servicekit.errors import InvalidArgument

SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
needs_shared = pytest.mark.skipif(
    not SHARED.exists(), reason=f"{SHARED} is not there; set HONE_SHARED"
)
PEOPLE = ("annotator1", "annotator2", "annotator3")


def _ratings(**columns: Sequence[object]) -> Ratings:
    return ratings_of(
        Rating(item=str(item), rater=rater, label=label)
        for rater, labels in columns.items()
        for item, label in enumerate(labels)
    )


def _plain_kappa(first: Sequence[str], second: Sequence[str], weights: Weights = "none") -> float:
    """Cohen 1960 and 1968 in plain Python, for labels that are whole numbers."""

    def apart(a: str, b: str) -> float:
        if weights == "none":
            return float(a != b)
        return abs(int(a) - int(b)) ** (1 if weights == "linear" else 2)

    n = len(first)
    observed = math.fsum(apart(a, b) for a, b in zip(first, second, strict=True)) / n
    shares_a, shares_b = Counter(first), Counter(second)
    by_chance = math.fsum(
        apart(a, b) * shares_a[a] * shares_b[b] / n**2 for a in shares_a for b in shares_b
    )
    return 1 - observed / by_chance


def _of_table(table: list[list[float]], weights: Weights = "none") -> Kappa:
    labels = tuple(str(index) for index in range(len(table)))
    scale = Scale(labels=labels, positions=tuple(range(len(table))))
    return cohen(np.asarray(table).astype(np.int64), scale, weights=weights)


@needs_shared
def test_every_shared_case_is_exact() -> None:
    cases = json.loads((SHARED / "cases" / "losses.json").read_text("utf-8"))["cases"]
    rows = [case for case in cases if case["topic"] == "cohens_kappa"]
    assert {row["id"] for row in rows} == {
        "kappa_grants",
        "kappa_same_po_1",
        "kappa_sklearn",
        "kappa_perfect",
        "kappa_chance",
        "kappa_undefined",
        "kappa_weighted",
    }
    for row in rows:
        inputs, expected, tol = row["inputs"], dict(row["expected"]), row["tol"]
        for weights in ("linear", "quadratic"):
            if weights in expected:
                found = _of_table(inputs["table"], weights).kappa  # type: ignore[arg-type]
                assert found == pytest.approx(expected.pop(weights), abs=tol), row["id"]
        table = inputs.get("table")
        pair = (inputs.get("rater1"), inputs.get("rater2"))
        kappa = _of_table(table) if table is not None else agreement_of(*pair)
        found_by_name = {
            "po": kappa.observed,
            "pe": kappa.expected,
            "kappa": kappa.kappa,
            "unweighted": kappa.kappa,
        }
        for name, value in expected.items():
            if value is None:
                assert found_by_name[name] is None and kappa.undefined, row["id"]
            else:
                assert found_by_name[name] == pytest.approx(value, abs=tol), row["id"]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60),
    st.sampled_from(["none", "linear", "quadratic"]),
)
def test_kappa_equals_the_plain_computation(pairs: list[tuple[int, int]], weights: Weights) -> None:
    first, second = [str(a) for a, _ in pairs], [str(b) for _, b in pairs]
    kappa = agreement_of(first, second, weights=weights)
    if len({*first, *second}) == 1:
        assert kappa.kappa is None
        assert kappa.undefined == f"both always say '{first[0]}'"
        return
    assert kappa.kappa == pytest.approx(_plain_kappa(first, second, weights), abs=1e-12)
    by_parts = (kappa.observed - kappa.expected) / (1 - kappa.expected)
    assert kappa.kappa == pytest.approx(by_parts, abs=1e-12)
    assert kappa.interval is None or kappa.interval.low <= kappa.interval.high


def test_distance_counts_steps_that_nobody_used() -> None:
    # 1 against 5 is four steps apart, although 3 and 4 never occur.
    first, second = ["1", "1", "2", "5", "5", "2"], ["1", "5", "2", "5", "1", "1"]
    kappa = agreement_of(first, second, weights="linear")
    assert kappa.kappa == pytest.approx(_plain_kappa(first, second, "linear"), abs=1e-12)
    halves = [str(int(label) / 2) for label in first], [str(int(label) / 2) for label in second]
    assert agreement_of(*halves, weights="linear").kappa == pytest.approx(kappa.kappa, abs=1e-12)


def test_words_in_an_order_are_weighed_by_it() -> None:
    order = ("low", "medium", "high")
    first, second = ["low", "high", "low", "high"], ["low", "high", "high", "low"]
    ranks = {"low": "0", "medium": "1", "high": "2"}
    expected = _plain_kappa([ranks[x] for x in first], [ranks[x] for x in second], "quadratic")
    found = agreement_of(first, second, weights="quadratic", order=order)
    assert found.kappa == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InvalidArgument, match="order: lacks 'high'"):
        agreement_of(first, second, order=("low", "medium"))


def test_weights_without_an_order_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"linear needs labels in an order, found '1', 'a'"):
        agreement_of(["1", "a", "b"], ["1", "b", "a"], weights="linear")


def test_interval_is_seeded_and_near_the_one_of_resampled_items() -> None:
    rng = random.Random(7)
    first = [str(rng.randrange(3)) for _ in range(120)]
    second = [a if rng.random() < 0.7 else str(rng.randrange(3)) for a in first]
    kappa = agreement_of(first, second, seed=1)
    assert kappa == agreement_of(first, second, seed=1)
    other = agreement_of(first, second, seed=2)
    assert kappa.interval != other.interval
    drawn = []
    for _ in range(2000):
        items = rng.choices(range(120), k=120)
        drawn.append(_plain_kappa([first[i] for i in items], [second[i] for i in items]))
    drawn.sort()
    assert kappa.interval is not None
    assert kappa.interval.low == pytest.approx(drawn[50], abs=0.02)
    assert kappa.interval.high == pytest.approx(drawn[1949], abs=0.02)


@pytest.mark.parametrize(("pairs", "low"), [(1, -0.6838), (5, 0.383), (15, 0.7686), (500, 0.9926)])
def test_raters_who_never_differ_on_few_items_may_differ_on_more(pairs: int, low: float) -> None:
    kappa = agreement_of(["a", "b"] * pairs, ["a", "b"] * pairs)
    assert kappa.kappa == 1.0
    assert kappa.interval is not None
    # Clopper & Pearson: 0 of n differences leave a share up to 1 - 0.025^(1/n) possible; half differ by chance.
    assert kappa.interval.low == pytest.approx(1 - 2 * (1 - 0.025 ** (1 / (2 * pairs))))
    assert (kappa.interval.low, kappa.interval.high) == (pytest.approx(low, abs=1e-4), 1.0)
    table = measure(_ratings(x=["a", "b"] * pairs, y=["a", "b"] * pairs, z=["a", "b"] * pairs))
    group = table.groups[0].interval
    assert group is not None
    assert group.low == pytest.approx(low, abs=1e-4)
    assert bool(shortfalls(table, 0.6)) == (low < 0.6)


def test_a_label_that_hardly_occurs_leaves_agreement_open() -> None:
    rare = agreement_of(["a"] * 39 + ["b"], ["a"] * 39 + ["b"], weights="linear")
    assert rare.interval is not None
    assert (rare.interval.low, rare.interval.high) == (pytest.approx(-0.8071, abs=1e-4), 1.0)
    near = agreement_of(["1", "2"] * 9, ["1", "2"] * 9, weights="quadratic", order=list("12345"))
    assert near.interval is not None and near.interval.low == -1.0


def test_resamples_without_a_kappa_are_left_out_and_counted() -> None:
    kappa = agreement_of(["a"] * 19 + ["b"], ["a"] * 19 + ["b"])
    assert kappa.kappa == 1.0
    assert kappa.interval is not None
    # The one b is not drawn in (19/20)^20 = 36% of the resamples.
    assert 600 < kappa.interval.num_undefined < 850
    table = measure(_ratings(x=["a"] * 39 + ["b"], y=["a"] * 39 + ["b"]))
    assert any("undefined in more than 5%" in text for text in table.warnings)


def test_prevalence_is_said_with_its_indices() -> None:
    # Byrt, Bishop & Carlin 1993: a = 118, b = 5, c = 2, d = 0.
    kappa = _of_table([[118, 5], [2, 0]])
    assert kappa.kappa is not None and kappa.kappa < 0
    assert kappa.prevalence_index == pytest.approx(118 / 125)
    assert kappa.bias_index == pytest.approx(3 / 125)
    assert kappa.pabak == pytest.approx(2 * 118 / 125 - 1)
    first = ["0"] * 123 + ["1"] * 2
    second = ["0"] * 118 + ["1"] * 5 + ["0"] * 2
    (warning,) = measure(_ratings(x=first, y=second)).warnings
    assert "the kappa paradox" in warning and "x ~ y: equal 0.944" in warning
    assert "prevalence index 0.94, bias index 0.02, PABAK 0.888" in warning
    balanced = measure(_ratings(x=["0", "1"] * 40, y=["0", "1"] * 36 + ["1", "0"] * 4))
    assert balanced.warnings == ()


def test_missing_labels_are_left_out_by_pair_and_counted() -> None:
    table = measure(
        _ratings(x=["a", "b", None, "a"], y=["a", "", "b", "b"], z=["a", "b", "b", math.nan])
    )
    counted = {row.name: (row.kappa.num_items, row.num_missing) for row in table.comparisons}
    assert counted["x ~ y"] == (2, 2)
    assert counted["x ~ z"] == (2, 2)
    assert [group.coefficient for group in table.groups] == ["fleiss_kappa", "krippendorff_alpha"]
    assert table.groups[0].num_items == 1


def test_pair_without_a_common_item_has_no_kappa() -> None:
    table = measure(_ratings(x=["a", None], y=[None, "b"]))
    (row,) = table.comparisons
    assert (row.kappa.kappa, row.kappa.undefined) == (None, "no item has labels of both")
    assert table.warnings == ("kappa is undefined, which is neither 0 nor 1: x ~ y",)


def test_majority_leaves_out_ties_and_counts_them() -> None:
    majority = majority_of([["a", "a", "a", None], ["a", "b", "b", None], ["b", "b", "c", None]])
    assert majority.labels == ("a", "b", None, None)
    assert majority.num_tied == 1


def test_person_is_held_against_the_others_and_judge_against_all() -> None:
    columns = {"x": ["a", "b", "a", "b"], "y": ["a", "b", "b", "a"], "z": ["a", "b", "a", "a"]}
    ratings = _ratings(**columns, judge=["a", "a", "a", "a"])
    table = measure(Ratings(num_items=ratings.num_items, labels=ratings.labels, judges=("judge",)))
    against = {row.first: row for row in table.comparisons if row.against != "rater"}
    assert list(against) == ["x", "y", "z", "judge"]
    # y and z disagree on the third item, so their majority has no label there.
    assert (against["x"].num_tied, against["x"].kappa.agreement) == (1, pytest.approx(2 / 3))
    assert (against["judge"].against, against["judge"].num_tied) == ("majority", 0)
    assert against["judge"].kappa.agreement == pytest.approx(3 / 4)
    assert "judge" not in table.people and table.groups[0].num_raters == 3


def test_fleiss_equals_the_published_example() -> None:
    # Fleiss 1971 as in Wikipedia's "Fleiss' kappa": 14 raters, 10 items, kappa 0.210.
    counts = [
        (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
        (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
    ]  # fmt: skip
    rows = [[str(k) for k, count in enumerate(row) for _ in range(count)] for row in counts]
    columns = list(zip(*rows, strict=True))
    found = fleiss(columns, [str(k) for k in range(5)], seed=0)
    assert found.value == pytest.approx(0.20993, abs=1e-5)
    assert found.interval is not None and found.interval.low < 0.21 < found.interval.high
    assert (found.num_items, found.num_raters) == (10, 14)


def test_fleiss_of_one_label_is_undefined() -> None:
    found = fleiss([["a", "a"], ["a", "a"], ["a", None]], ["a"], seed=0)
    assert (found.value, found.undefined, found.num_items) == (None, "all always say 'a'", 1)


def test_alpha_equals_the_published_example() -> None:
    # Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", example C: nominal 0.743.
    columns = {
        "A": "1 2 3 3 2 1 4 1 2 . . .",
        "B": "1 2 3 3 2 2 4 1 2 5 . 3",
        "C": ". 3 3 3 2 3 4 2 2 5 1 .",
        "D": "1 2 3 3 2 4 4 1 2 5 1 .",
    }
    given = {
        rater: [None if label == "." else label for label in text.split()]
        for rater, text in columns.items()
    }
    found = krippendorff(given)
    assert found.value == pytest.approx(0.743, abs=5e-4)
    assert found.num_items == 11
    assert krippendorff({"A": ["x", "y"], "B": ["x", None]}).undefined == "all always say 'x'"


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1, "1"),
        ("1", "1"),
        (1.0, "1"),
        ("1.00", "1"),
        (" +1 ", "1"),
        ("-0", "0"),
        ("1e2", "100"),
        ("0.5", "0.5"),
        ("123456789012345678901234567890123456789", "123456789012345678901234567890123456789"),
        ("0.1234567890123456789012345678901230", "0.123456789012345678901234567890123"),
        (True, "true"),
        ("TRUE", "true"),
        ("Tie", "Tie"),
        ("none", "none"),
        ("NaN", None),
        (math.nan, None),
        ("  ", None),
        (None, None),
    ],
)
def test_labels_are_equal_by_what_they_mean(value: object, label: str | None) -> None:
    assert label_of(value) == label


@pytest.mark.parametrize("value", [[1], {"a": 1}, math.inf, "x" * 201])
def test_what_is_no_label_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        label_of(value)


def test_numbers_too_large_to_write_out_stay_words() -> None:
    assert label_of("1e999999999") == "1e999999999"
    assert label_of("9" * 150) == "9" * 150
    assert scale_of({"1e999999999", "1"}).positions == (0, 1)


def test_texts_are_no_labels() -> None:
    with pytest.raises(InvalidArgument, match="found 101 different labels, expected at most 100"):
        scale_of({f"text {index}" for index in range(101)})


@pytest.mark.slow
def test_what_would_take_minutes_is_refused() -> None:
    columns = {f"r{rater}": [(item * rater) % 90 for item in range(9000)] for rater in range(1, 9)}
    with pytest.raises(InvalidArgument, match="8 raters with 90 labels are too many to resample"):
        measure(_ratings(**columns))


@pytest.mark.parametrize(
    ("rows", "judges", "message"),
    [
        ([], (), "ratings: found no items"),
        ([("1", "x", "a")], (), "raters: found only 'x', expected at least two"),
        ([("1", "x", "a"), ("1", "x", "b")], (), r"ratings\[1\]: 'x' labels item '1' again"),
        ([("1", "x", "a"), ("1", "", "b")], (), r"ratings\[1\]: found an empty rater"),
        ([("1", "x", "a"), ("1", "y", [1])], (), r"ratings\[1\]: label of 'y': found \[1\]"),
        ([("1", "x", "a"), ("1", "y", "b")], ("z",), "judges: no rater is called 'z'"),
        ([("1", "x", "a"), ("1", "y", "b")], ("x", "y"), "judges: every rater is a judge"),
    ],
)
def test_ratings_that_cannot_be_compared_are_refused(
    rows: list[tuple[str, str, object]], judges: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        ratings_of(
            (Rating(item=item, rater=rater, label=label) for item, rater, label in rows), judges
        )


def test_minimum_is_for_the_lower_end_of_the_interval() -> None:
    first = ["0", "1"] * 30
    second = ["0", "1"] * 25 + ["1", "0"] * 5
    table = measure(_ratings(x=first, y=second))
    kappa = table.comparisons[0].kappa
    assert kappa.kappa is not None and kappa.interval is not None
    assert kappa.interval.low < 0.6 < kappa.kappa
    (text,) = shortfalls(table, 0.6)
    assert text.startswith("x ~ y has kappa 0.667 [0.") and "minimum of 0.6" in text
    assert shortfalls(table, 0.3) == ()


def test_minimum_is_for_judges_where_there_are_any_and_never_met_undefined() -> None:
    people = {"x": ["a", "b"] * 20, "y": ["b", "a"] * 20}
    ratings = _ratings(**people, judge=["a"] * 40)
    judged = Ratings(num_items=40, labels=ratings.labels, judges=("judge",))
    assert [row.first for row in demanded(measure(judged))] == ["judge"]
    (text,) = shortfalls(measure(judged), 0.0)
    assert "undefined kappa (no item has labels of both)" in text
    assert len(demanded(measure(_ratings(**people)))) == 1


@pytest.mark.parametrize(
    ("kappa", "word"),
    [(-0.1, "poor"), (0, "slight"), (0.2, "slight"), (0.21, "fair"), (0.6, "moderate"),
     (0.61, "substantial"), (0.8, "substantial"), (0.81, "almost perfect"), (1, "almost perfect"),
     (1 + 1e-15, "almost perfect")],
)  # fmt: skip
def test_strength_is_in_the_words_of_landis_and_koch(kappa: float, word: str) -> None:
    assert strength_of(kappa) == word


def test_mixed_and_alike_labels_are_said() -> None:
    warnings = measure(_ratings(x=["0", "Tie", "1"], y=["0", "tie", "0"])).warnings
    assert "labels are numbers and words mixed: 'Tie' (1), 'tie' (1)" in warnings[0]
    assert warnings[1] == "labels 'Tie' and 'tie' differ in case only and count as different"
    assert "fewer than 30 items" in warnings[2]


def _pandalm() -> tuple[AgreementTable, dict[str, list[str | None]]]:
    folder = SHARED / "data" / "pandalm"
    people = json.loads((folder / "testset-v1.json").read_text("utf-8"))
    columns: dict[str, list[str | None]] = {
        name: [str(row[name]) for row in people] for name in PEOPLE
    }
    for judge, key in (("gpt-3.5-turbo", "gpt_result"), ("pandalm-7b", "pandalm_result")):
        rows = json.loads((folder / f"{judge}-testset-v1.json").read_text("utf-8"))
        said = {row["idx"]: {"Tie": "0", "garbage": None}.get(row[key], row[key]) for row in rows}
        columns[judge] = [
            None if said[row["idx"]] is None else str(said[row["idx"]]) for row in people
        ]
    ratings = _ratings(**columns)
    judged = Ratings(
        num_items=ratings.num_items, labels=ratings.labels, judges=("gpt-3.5-turbo", "pandalm-7b")
    )
    return measure(judged), columns


@needs_shared
def test_pandalm_kappas_equal_an_independent_computation() -> None:
    table, columns = _pandalm()
    found = {
        (row.first, row.second): row.kappa.kappa
        for row in table.comparisons
        if row.against == "rater"
    }
    expected = {
        pair: _plain_kappa([str(x) for x in columns[pair[0]]], [str(x) for x in columns[pair[1]]])
        for pair in combinations(PEOPLE, 2)
    }
    for pair, kappa in expected.items():
        assert found[pair] == pytest.approx(kappa, abs=1e-12)
    assert [round(kappa, 3) for kappa in expected.values()] == [0.816, 0.849, 0.832]


@needs_shared
def test_pandalm_judges_against_the_majority_equal_an_independent_computation() -> None:
    table, columns = _pandalm()
    right = [
        Counter(str(columns[name][item]) for name in PEOPLE).most_common(1)[0][0]
        for item in range(table.num_items)
    ]
    rounded = []
    for row in table.comparisons:
        if row.against == "majority":
            both = [
                (str(said), label)
                for said, label in zip(columns[row.first], right, strict=True)
                if said is not None
            ]
            expected = _plain_kappa([a for a, _ in both], [b for _, b in both])
            assert row.kappa.kappa == pytest.approx(expected, abs=1e-12)
            assert (row.kappa.num_items, row.num_tied) == (len(both), 0)
            rounded.append((row.first, round(expected, 3), len(both)))
    assert rounded == [("gpt-3.5-turbo", 0.481, 644), ("pandalm-7b", 0.415, 666)]


@needs_shared
def test_hanna_constant_label_is_undefined_and_rare_ones_are_warned_of() -> None:
    with (SHARED / "data" / "hanna" / "user_study.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def table(question: str) -> AgreementTable:
        key = next(name for name in rows[0] if question in name)
        given = [row[key] for row in rows]
        return measure(_ratings(first=given[0::3], second=given[1::3], third=given[2::3]))

    constant = table("incorrectness")
    assert all(row.kappa.kappa is None for row in constant.comparisons)
    assert constant.comparisons[0].kappa.undefined == "both always say '0'"
    assert (constant.groups[0].value, constant.groups[0].undefined) == (None, "all always say '0'")
    (warning,) = constant.warnings
    assert warning.endswith("first ~ second, first ~ third, second ~ third and 3 more")
    assert shortfalls(constant, 0.0)
    rare = table("guidelines")
    assert any("kappa paradox" in text for text in rare.warnings)
    assert all(row.kappa.kappa is None or row.kappa.kappa < 0.4 for row in rare.comparisons)


def test_interval_is_narrow_where_there_are_many_items() -> None:
    rng = random.Random(3)
    first = [str(rng.randrange(5)) for _ in range(10_000)]
    second = [str(rng.randrange(5)) for _ in range(10_000)]
    scale = scale_of({*first, *second})
    kappa = cohen(crosstab(first, second, scale), scale, weights="quadratic")
    assert kappa.interval is not None and kappa.interval.high - kappa.interval.low < 0.06
