"""The utility's rule against the shared cases."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.utility import updated

Case = Callable[[str], dict[str, Any]]
numbers = st.floats(-1e6, 1e6)


def test_each_reward_moves_the_utility_as_in_the_case(case: Case) -> None:
    row = case("memrl_q_update")
    utility = row["inputs"]["Q0"]
    after = []
    for reward in row["inputs"]["rewards"]:
        utility = updated(utility, reward=reward, learning_rate=row["inputs"]["alpha"])
        after.append(utility)
    assert after == pytest.approx(row["expected"]["Q_after_each"], abs=row["tol"])


def test_what_comes_next_counts_discounted_as_in_the_case(case: Case) -> None:
    row = case("memrl_q_next")
    given_ = row["inputs"]
    utility = updated(
        given_["Q0"],
        reward=given_["r"],
        learning_rate=given_["alpha"],
        discount=given_["gamma"],
        max_next_utility=given_["max_next_Q"],
    )
    assert utility == pytest.approx(row["expected"]["Q"], abs=row["tol"])


@given(numbers, numbers, st.floats(0, 1, exclude_min=True))
def test_the_utility_never_passes_the_reward(
    utility: float, reward: float, learning_rate: float
) -> None:
    moved = updated(utility, reward=reward, learning_rate=learning_rate)
    low, high = sorted((utility, reward))
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    assert low - slack <= moved <= high + slack
