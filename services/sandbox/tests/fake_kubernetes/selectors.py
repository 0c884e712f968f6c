"""Label and field selectors."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_SET = re.compile(r"\s*([^\s!=]+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_PART = re.compile(r"(?:[^,(]|\([^)]*\))+")

Matcher = Callable[[Mapping[str, Any]], bool]


def by_labels(text: str) -> Matcher:
    """Return what chooses objects as a labelSelector does."""
    parts = [_part(part.strip()) for part in _PART.findall(text) if part.strip()]

    def matches(found: Mapping[str, Any]) -> bool:
        labels = found["metadata"].get("labels") or {}
        return all(part(labels) for part in parts)

    return matches


def by_fields(text: str) -> Matcher:
    """Return what chooses objects as a fieldSelector does; only equality."""
    wanted = [part.split("=", 1) for part in text.replace("==", "=").split(",") if "=" in part]

    def matches(found: Mapping[str, Any]) -> bool:
        for path, value in wanted:
            here: Any = found
            for name in path.split("."):
                here = here.get(name, "") if isinstance(here, Mapping) else ""
            if str(here) != value:
                return False
        return True

    return matches


def _part(text: str) -> Callable[[Mapping[str, str]], bool]:
    match = _SET.fullmatch(text)
    if match is not None:
        key, operator, values = match[1], match[2], {v.strip() for v in match[3].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if "!=" in text:
        key, _, value = text.partition("!=")
        return lambda labels: labels.get(key) != value
    if "=" in text:
        key, _, value = text.replace("==", "=").partition("=")
        return lambda labels: labels.get(key) == value
    if text.startswith("!"):
        return lambda labels: text[1:] not in labels
    return lambda labels: text in labels
