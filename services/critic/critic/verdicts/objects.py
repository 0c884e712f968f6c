"""JSON documents in the midst of prose. Bounded in time for any text of bounded length."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_START = re.compile(r"\{\s{0,40}[\"'}]|\[\s{0,40}\{\s{0,40}\"")
_REASONS = (
    "reasoning",
    "reason",
    "explanation",
    "rationale",
    "justification",
    "analysis",
    "feedback",
    "comment",
)
_DECODER = json.JSONDecoder(strict=False)
MAX_BROKEN = 50
"""Documents that cannot be read before the rest is taken for prose."""
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One JSON document and where it stands."""

    start: int
    end: int
    value: object

    @property
    def reasoning(self) -> str:
        """The text of its field for reasons, if it has one."""
        if not isinstance(self.value, Mapping):
            return ""
        named = {str(key).casefold(): value for key, value in self.value.items()}
        texts = (named.get(name) for name in _REASONS)
        return next((text.strip() for text in texts if isinstance(text, str)), "")


def find_objects(text: str) -> Iterator[Document]:
    """Yield the documents in their order; what is inside one, whole or broken, is not a document."""
    at, broken = 0, 0
    while broken < MAX_BROKEN:
        start = _START.search(text, at)
        if start is None:
            return
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            broken += 1
            closed = _balanced_end(text, start.start())
            if closed is None:
                return
            at = closed
        else:
            yield Document(start=start.start(), end=end, value=value)
            at = end


def _balanced_end(text: str, start: int) -> int | None:
    """Return where the brackets that open at `start` are closed, quotes left aside; None if never."""
    depth = 0
    for sign in re.finditer(r'"(?:[^"\\\n]|\\.)*"|[{}\[\]]', text[start:]):
        if sign[0] in "{[":
            depth += 1
        elif sign[0] in "}]":
            depth -= 1
            if depth == 0:
                return start + sign.end()
    return None


def shallowest(value: object, wanted: Callable[[str], bool]) -> list[tuple[str, object]]:
    """Return the wanted fields of the level that is nearest to the top; arrays and objects are no verdicts."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        fields = [
            (str(key), child)
            for item in level
            if isinstance(item, Mapping)
            for key, child in item.items()
            if wanted(str(key)) and not isinstance(child, Mapping)
        ]
        if fields:
            return fields
        level = [child for item in level for child in _children(item)]
    return []


def _children(item: object) -> Sequence[object]:
    if isinstance(item, Mapping):
        return list(item.values())
    return item if isinstance(item, list) else []
