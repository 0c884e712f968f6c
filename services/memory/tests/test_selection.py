"""The two phases of a recall: the shared case, ties, values without spread, exploration."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.selection import Selection, select


def choose(
    similarities: Sequence[float],
    utilities: Sequence[float],
    *,
    delta: float = -1.0,
    weight: float = 0.5,
    count: int = 100,
    **more: Any,
) -> Selection:
    return select(
        np.array(similarities, np.float64),
        np.array(utilities, np.float64),
        min_similarity=delta,
        utility_weight=weight,
        count=count,
        **more,
    )


def test_two_phases_choose_as_in_the_case(case: Callable[[str], dict[str, Any]]) -> None:
    row = case("memrl_two_phase")
    asked, expected = row["inputs"], row["expected"]
    chosen = choose(
        asked["sim"],
        asked["Q"],
        delta=asked["delta"],
        weight=asked["lambda"],
        count=asked["k2"],
    )
    assert list(chosen.candidates) == expected["candidates"]
    assert chosen.scores == pytest.approx(expected["scores"], abs=row["tol"])
    assert list(chosen.selected) == expected["selected"]


def test_one_candidate_has_score_0() -> None:
    assert choose([0.9], [0.3]).scores == (0.0,)


def test_no_candidate_is_no_memory() -> None:
    assert choose([0.1, 0.2], [1.0, 1.0], delta=0.3).selected == ()
    assert choose([], []).selected == ()


def test_a_text_passes_the_gate_of_its_own_cosine_though_float32_rounds_it() -> None:
    assert choose([1 - 5e-7, 0.99], [0.0, 0.0], delta=1.0).selected == (0,)


def test_equal_utilities_leave_the_order_to_the_similarity() -> None:
    # Their mean is 0.1 and a rounding.
    assert choose([0.2, 0.9, 0.5], [0.1, 0.1, 0.1]).selected == (1, 2, 0)


def test_equal_similarities_leave_the_order_to_the_utility() -> None:
    assert choose([0.7, 0.7, 0.7], [0.1, 0.3, 0.2]).selected == (1, 2, 0)


def test_equal_scores_go_to_the_more_similar_and_then_to_the_first() -> None:
    # z is -1 and 1 both ways, so both have score 0.
    assert choose([0.2, 0.8], [1.0, 0.0]).selected == (1, 0)
    assert choose([0.5, 0.5, 0.5], [1.0, 1.0, 1.0]).selected == (0, 1, 2)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1e6, 1e6)), max_size=20), st.floats(0, 1))
def test_scores_are_finite_and_the_best_come_first(
    items: list[tuple[float, float]], weight: float
) -> None:
    chosen = choose([s for s, _ in items], [q for _, q in items], weight=weight)
    scores = [chosen.score_of(index) for index in chosen.selected]
    assert np.isfinite(scores).all()
    assert (np.diff(scores) <= 1e-9).all()
    assert sorted(chosen.selected) == list(chosen.candidates)


thousandths = st.integers(-1000, 1000).map(lambda number: number / 1000)


@given(st.lists(st.tuples(thousandths, thousandths), min_size=1))
def test_the_order_of_what_is_given_changes_no_score(items: list[tuple[float, float]]) -> None:
    one = choose([s for s, _ in items], [q for _, q in items])
    other = choose([s for s, _ in reversed(items)], [q for _, q in reversed(items)])
    assert one.scores == pytest.approx(other.scores[::-1], abs=1e-6)


def test_exploration_draws_evenly_from_the_candidates_and_alike_for_equal_seeds() -> None:
    def draw(seed: int) -> tuple[int, ...]:
        return choose(
            [0.9, 0.8, 0.7, 0.1],
            [1.0, 0.5, 0.0, 9.0],
            delta=0.5,
            count=1,
            exploration_rate=1.0,
            rng=random.Random(seed),
        ).selected

    drawn = [draw(seed) for seed in range(300)]
    assert drawn == [draw(seed) for seed in range(300)]
    counts = [drawn.count((index,)) for index in range(4)]
    assert counts[3] == 0, "a memory that is not similar enough is no candidate"
    assert all(70 <= number <= 130 for number in counts[:3])


def test_exploration_happens_at_its_rate() -> None:
    rng = random.Random(5)
    explored = sum(
        choose([0.9, 0.8], [1, 0], count=1, exploration_rate=0.2, rng=rng).selected == (1,)
        for _ in range(1000)
    )
    # Half of the draws draw the best.
    assert 70 <= explored <= 130
