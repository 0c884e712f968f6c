"""Patterns of definitions: which are refused, and that none hangs."""

import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from grader.patterns import TIMEOUT_SECONDS, PatternError, compile_pattern
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (f"{UUID} {UUID} {UUID}", " ".join(["01a227cc-4738-7596-9351-3eaa3a127522"] * 3)),
        ("(?:ab){1000}", "ab" * 1000),
        ("a{2000}b{2000}c{2000}", "a" * 2000 + "b" * 2000 + "c" * 2000),
        ("[](){1000}]", "("),
        (r"\(x\){3}", "(x)))"),
        ("(?i)[^]a]{2}", "xy"),
        (".{1,5000}", "x"),
    ],
)
def test_patterns_of_a_sensible_size_match(pattern: str, text: str) -> None:
    assert compile_pattern(pattern).search(text)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:(?:[ab]{1000}){1000}){1000}",
        "(?:(?:a|b){200}){200}",
        "(a{1000}){21}",
        "(?:a{1000}b){20,}",
        "a{99999999999999999999}",
        "(",
        "[",
        "a{2}{3}{4}(?P<n>",
        "(" * 900 + ")" * 900,
        "a" * 2001,
        r"\L<words>",
    ],
)
def test_what_is_no_pattern_or_too_large_is_refused_at_no_cost(pattern: str) -> None:
    tracemalloc.start()
    with pytest.raises(PatternError):
        compile_pattern(pattern)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_the_first_group_is_what_is_found() -> None:
    assert compile_pattern(r"\[(\w+)\]").found_in("[a] b [c]") == ["a", "c"]
    assert compile_pattern(r"\w").found_in("[a] b") == ["a", "b"]
    assert compile_pattern(r"(x)?y").found_in("y xy") == ["", "x"]


@pytest.mark.slow
def test_a_search_without_end_is_a_fault_of_the_definition() -> None:
    pattern = compile_pattern("(a|aa)+$")
    for search in (pattern.search, pattern.matches_all, pattern.found_in):
        with pytest.raises(GradingFaultError, match="searched for more than") as caught:
            search("a" * 100 + "b")
        assert caught.value.kind is GraderErrorKind.TIMEOUT
        assert caught.value.client and not caught.value.retryable


@pytest.mark.slow
def test_what_other_searches_take_does_not_count() -> None:
    quadratic = compile_pattern(r"\s+$")
    text = "x" + " " * 6000 + "y"
    start = time.thread_time()
    assert not quadratic.search(text)
    assert time.thread_time() - start < TIMEOUT_SECONDS
    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(quadratic.search, [text] * 8))
