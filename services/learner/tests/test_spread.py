"""pass@k, spread and what groups could learn: the shared cases, and numbers worked out by hand."""

import math
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest

from learner.figures.spread import (
    TaskSamples,
    bernoulli_variance,
    informative_fraction,
    pass_at_k,
    shares_of,
    spread_metrics,
    task_spread,
)
from learner.rollouts.ledger import NO_SPREAD

Case = Callable[[str], Any]


def test_shared_case_of_pass_at_k(case: Case) -> None:
    found = case("pass_at_k")
    n, c, ks = (found["inputs"][name] for name in "nck")
    assert [pass_at_k(n, c, k) for k in ks] == pytest.approx(
        found["expected"]["pass"], abs=found["tol"]
    )


def test_shared_case_of_classes(case: Case) -> None:
    found = case("variance_classes")
    for scores, row in zip(found["inputs"]["samples"], found["expected"]["rows"], strict=True):
        spread = task_spread(scores)
        for name in ("mean", "variance_population", "variance_sample"):
            assert getattr(spread, name) == pytest.approx(row[name], abs=found["tol"]), name
        for name in ("has_signal", "always_wrong", "always_right"):
            assert getattr(spread, name) is row[name], (name, scores)


def test_shared_cases_of_informative_groups(case: Case) -> None:
    found = case("variance_informative_fraction")
    p = found["inputs"]["p"]
    told = [informative_fraction([p, 1 - p], size) for size in found["inputs"]["G"]]
    assert told == pytest.approx(found["expected"]["informative"], abs=found["tol"])
    gain = case("compute_multiplier_gain")
    size, times = gain["inputs"]["G"], gain["inputs"]["multipliers"]
    for p, row in zip(gain["inputs"]["p"], gain["expected"]["informative"], strict=True):
        told = [informative_fraction([p, 1 - p], size * m) for m in times]
        assert told == pytest.approx(row, abs=gain["tol"])


def test_shared_case_of_a_rates_variance(case: Case) -> None:
    found = case("bernoulli_variance")
    told = [bernoulli_variance(p) for p in found["inputs"]["p"]]
    assert told == pytest.approx(found["expected"]["variance"], abs=found["tol"])


def test_pass_at_k_is_the_share_of_draws_with_a_right_sample() -> None:
    for n, c in product(range(1, 7), range(7)):
        for k in range(1, n + 1) if c <= n else ():
            draws = list(combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_at_k(1024, 1, 1024) == 1.0
    assert pass_at_k(1024, 1, 512) == pytest.approx(0.5)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_counts_that_cannot_be_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {n} samples of which {c}"):
        pass_at_k(n, c, k)


def test_one_score_has_no_spread() -> None:
    with pytest.raises(ValueError, match="spread of 1 scores is unknown"):
        task_spread([1.0])


def test_scores_that_a_group_takes_for_equal_are_equal() -> None:
    nearly = [1.0 - NO_SPREAD / 2, 1.0]
    assert task_spread(nearly).name == "always_right"
    assert shares_of(nearly) == [1.0]
    apart = [1.0 - 2 * NO_SPREAD, 1.0]
    assert task_spread(apart).name == "spread"
    assert shares_of(apart) == [0.5, 0.5]
    assert task_spread([NO_SPREAD / 2, 0.0]).name == "always_wrong"
    assert task_spread([0.5, 0.5]).name == "constant"


def test_group_of_many_scores_is_informative_as_often_as_its_draws_differ() -> None:
    scores = [0.0, 0.3, 0.3, 1.0]
    draws = list(product(scores, repeat=3))
    differ = sum(len(set(draw)) > 1 for draw in draws) / len(draws)
    assert informative_fraction(shares_of(scores), 3) == pytest.approx(differ)
    assert informative_fraction(shares_of(scores), 1) == 0.0


def task(*scores: float, right: int) -> TaskSamples:
    return TaskSamples(task_id="t", scores=scores, num_right=right)


def test_figures_are_means_over_tasks_with_two_samples_or_more() -> None:
    tasks = [
        task(0.0, 0.0, 0.0, 0.0, right=0),
        task(1.0, 1.0, 1.0, 1.0, right=4),
        task(0.85, 0.85, 0.85, 0.85, right=4),
        task(1.0, 0.0, 0.0, right=1),  # no fourth sample: without a say in pass@4
        task(1.0, right=1),
        task(right=0),
    ]
    figures = spread_metrics(tasks, group_size=2)
    expected = {
        "tasks/measured": 4.0,
        "tasks/too_few_samples": 2.0,
        "pass@1": (0 + 1 + 1 + 1 / 3) / 4,
        "pass@2": (0 + 1 + 1 + 2 / 3) / 4,
        "pass@4": (0 + 1 + 1) / 3,
        "success_variance": (2 / 9) / 4,
        "tasks/spread_share": 0.25,
        "tasks/always_right_share": 0.25,
        "tasks/always_wrong_share": 0.25,
        "tasks/constant_share": 0.25,
        "reward/variance": (2 / 9) / 4,
        "reward/best_of_k": (0 + 1 + 0.85 + 1) / 4,
        "reward/potential_gain": (2 / 3) / 4,
        "groups/informative_share": (4 / 9) / 4,
    }
    assert figures.keys() == expected.keys()
    for name, value in expected.items():
        assert math.isclose(figures[name], value, abs_tol=1e-12), name


def test_tasks_without_samples_leave_their_count_alone() -> None:
    assert spread_metrics([task(right=0), task(1.0, right=1)], 8) == {
        "tasks/measured": 0.0,
        "tasks/too_few_samples": 2.0,
    }
