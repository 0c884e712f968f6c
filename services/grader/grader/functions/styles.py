"""How reward functions are called, and what they may return."""

import asyncio
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grader.results import MAX_NAME, MAX_PARTS

STYLES = ("trl", "verl")
"""trl: f(prompts, completions, completion_ids=None, **columns) -> list[float | None], for one sample at a time.
verl: f(data_source, solution_str, ground_truth, extra_info=None) -> float | dict with score."""


def call(
    function: Callable[..., Any], style: str, arguments: Mapping[str, Any]
) -> tuple[float | None, dict[str, float]]:
    """Call a function and read its score, None for no opinion, and its parts.

    Raises:
        Exception: whatever the function raises.
        ValueError: what it returned is no score.
    """
    result = function(**_taken(function, arguments))
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    return _of_trl(result) if style == "trl" else _of_verl(result)


def _taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out what a function without ** does not name."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}


async def _awaited(result: Any) -> Any:
    return await result


def _of_trl(result: Any) -> tuple[float | None, dict[str, float]]:
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, Sequence) or isinstance(result, str) or len(result) != 1:
        raise ValueError(
            f"must return a list of one reward per completion (1), found {result!r:.200}"
        )
    return None if result[0] is None else _number("the reward", result[0]), {}


def _of_verl(result: Any) -> tuple[float | None, dict[str, float]]:
    if not isinstance(result, Mapping):
        return None if result is None else _number("the score", result), {}
    if "score" not in result:
        raise ValueError(
            f"must return a number or a dict with score, found keys {list(result)!r:.200}"
        )
    score = result["score"]
    parts = {
        str(name): float(value)
        for name, value in result.items()
        if name != "score" and isinstance(value, int | float) and abs(value) <= sys.float_info.max
    }
    if len(parts) > MAX_PARTS or any(len(name) > MAX_NAME for name in parts):
        raise ValueError(
            f"must return at most {MAX_PARTS} figures with names of at most {MAX_NAME} characters, found "
            f"{len(parts)}, the longest name of {max(map(len, parts))}"
        )
    return None if score is None else _number("score", score), parts


def _number(what: str, value: Any) -> float:
    if isinstance(value, str | bytes):
        raise ValueError(f"{what} must be a number, found {value!r:.200}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as err:
        raise ValueError(f"{what} must be a number, found {value!r:.200}") from err
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, found {number}")
    return number
