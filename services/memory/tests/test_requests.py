"""Bad input: the field, what was found and what would be right."""

from collections.abc import Callable
from typing import Any

import pytest

from memory.requests import Credit, Recall, Remember
from servicekit.errors import InvalidArgument

REMEMBER = {"namespace": "ns", "intent": "i", "experience": "e"}
RECALL = {"namespace": "ns", "query": "q"}
CREDIT = {
    "credit_id": "c",
    "reward": 1.0,
    "learning_rate": 0.3,
    "namespace": "ns",
    "memory_ids": ("m",),
}


@pytest.mark.parametrize(
    ("make", "given", "changes", "field", "message"),
    [
        (Remember, REMEMBER, {"namespace": ""}, "namespace", "found nothing"),
        (Remember, REMEMBER, {"namespace": "a b"}, "namespace", "found 'a b'"),
        (Remember, REMEMBER, {"namespace": "x" * 129}, "namespace", "1 to 128"),
        (Remember, REMEMBER, {"namespace": "é"}, "namespace", r"found '\xe9'"),
        (Remember, REMEMBER, {"intent": ""}, "intent", "found no text"),
        (Remember, REMEMBER, {"intent": " \n"}, "intent", "found no text"),
        (Remember, REMEMBER, {"intent": "ab\0c"}, "intent", "found NUL at character 2"),
        (Remember, REMEMBER, {"intent": "x" * 2**20}, "intent", "1048576 bytes of UTF-8; at most"),
        (Remember, REMEMBER, {"intent": "é" * 4097}, "intent", "found 8194 bytes"),
        (Remember, REMEMBER, {"experience": "x" * 2**20}, "experience", "at most 65536"),
        (Remember, REMEMBER, {"experience": "a\ud800"}, "experience", r"'\ud800' at character 1"),
        (Remember, REMEMBER, {"utility": float("nan")}, "utility", "found nan"),
        (Remember, REMEMBER, {"utility": float("inf")}, "utility", "found inf"),
        (Remember, REMEMBER, {"utility": 1e7}, "utility", "from -1e+06 to 1e+06"),
        (Remember, REMEMBER, {"utility": 1000000.5}, "utility", "found 1000000.5"),
        (Recall, RECALL, {"query": "\0"}, "query", "found NUL"),
        (Recall, RECALL, {"query": "x" * 2**20}, "query", "at most 8192"),
        (Recall, RECALL, {"max_candidate_count": -1}, "max_candidate_count", "1 to 1000"),
        (Recall, RECALL, {"max_memory_count": 101}, "max_memory_count", "found 101; 1 to 100"),
        (Recall, RECALL, {"min_similarity": float("nan")}, "min_similarity", "from -1 to 1"),
        (Recall, RECALL, {"utility_weight": 1.1}, "utility_weight", "found 1.1"),
        (Recall, RECALL, {"exploration_rate": -0.1}, "exploration.rate", "from 0 to 1"),
        (Recall, RECALL, {"rollout_id": "a/b"}, "rollout_id", "found 'a/b'"),
        (Recall, RECALL, {"rollout_id": "r", "snapshot_name": "s"}, "rollout_id", "one of the two"),
        (Credit, CREDIT, {"credit_id": "\ud800"}, "credit_id", r"found '\ud800'"),
        (Credit, CREDIT, {"reward": float("nan")}, "reward", "found nan"),
        (Credit, CREDIT, {"learning_rate": 0.0}, "learning_rate", "above 0"),
        (Credit, CREDIT, {"learning_rate": 1.5}, "learning_rate", "found 1.5"),
        (Credit, CREDIT, {"discount": 2.0}, "discount", "from 0 to 1"),
        (Credit, CREDIT, {"max_next_utility": float("-inf")}, "max_next_utility", "found -inf"),
        (Credit, CREDIT, {"memory_ids": ()}, "memories.memory_ids", "found 0"),
        (Credit, CREDIT, {"memory_ids": ("m", "m")}, "memories.memory_ids", "found m twice"),
        (Credit, CREDIT, {"namespace": ""}, "memories.namespace", "found nothing"),
    ],
)
def test_bad_input_is_named(
    make: Callable[..., Any],
    given: dict[str, Any],
    changes: dict[str, Any],
    field: str,
    message: str,
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(**{**given, **changes})
    assert set(caught.value.violations) == {field}
    assert message in caught.value.message
    caught.value.message.encode()


def test_the_largest_that_is_right_is_taken() -> None:
    Remember(namespace="x" * 128, intent="é" * 4096, experience="x" * 65536, utility=-1e6)


def test_the_id_depends_on_every_part() -> None:
    ids = {
        Remember(namespace=n, intent=i, experience=e).memory_id
        for n, i, e in (("a", "b", "c"), ("b", "b", "c"), ("a", "bc", "c"), ("a", "b", "cc"))
    }
    assert len(ids) == 4
