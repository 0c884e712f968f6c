"""Reward functions by entry point.

A package offers one in its pyproject.toml:

    [project.entry-points."hone.reward_functions"]
    brevity = "my_rewards.text:brevity"

Whoever operates the grader installs the package, so its code is trusted like the grader's own.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

GROUP = "hone.reward_functions"


def known_functions() -> list[str]:
    """Return the names of all installed functions; nothing is imported."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_function(name: str) -> Callable[..., Any]:
    """Import a function.

    Raises:
        LookupError: there is none of that name, or several packages offer one.
        TypeError: what the entry point names cannot be called.
    """
    # A package that lies twice on the path shows twice, and is one.
    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if len(found) != 1:
        offered = ", ".join(sorted(found)) or "nothing"
        raise LookupError(f"one reward function {name!r} is wanted, {offered} offers it")
    (point,) = found.values()
    function = point.load()
    if not callable(function):
        raise TypeError(f"{point.value} is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]  # checked to be callable just above
