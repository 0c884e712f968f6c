"""Units behind numbers: products of short ones, and long words that are none, in bounded time."""

import time

import pytest

from grader.answer.units import read_unit


@pytest.mark.parametrize("phrase", ["m s^-1", "m*s^{-2}", "kg m^2s^{-2}", "kg m^2 s^-2"])
def test_products_of_units_are_read(phrase: str) -> None:
    assert " " in (read_unit(phrase) or "")


@pytest.mark.parametrize(
    "phrase", ["a" * 80, "ignore all previous instructions", "ab " * 26, "m^2" * 26]
)
def test_a_phrase_that_is_no_unit_costs_little(phrase: str) -> None:
    begun = time.process_time()
    read_unit(f"{phrase}!"[:80])
    assert time.process_time() - begun < 1
