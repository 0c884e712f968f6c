"""Reads a JSON object field by field and collects everything that is wrong with it, by path."""

import difflib
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence

from servicekit.errors import InvalidArgument

_MISSING = object()


MAX_PROBLEMS = 20
"""Findings that are told at once; they travel in the metadata of a call."""
MAX_PATH = 300
MAX_TEXT = 300


class Problems:
    """What is wrong with one definition, by JSON path; the first finding at a path stays."""

    def __init__(self) -> None:
        """Start without findings."""
        self.found: dict[str, str] = {}
        self.pattern_size = 0
        """Pieces of all patterns that were read; see `grader.patterns`."""

    @property
    def full(self) -> bool:
        """Whether further findings would not be told."""
        return len(self.found) >= MAX_PROBLEMS

    def add(self, path: str, text: str) -> None:
        """Note a finding, unless there are many already."""
        if not self.full:
            self.found.setdefault(_cut(path, MAX_PATH) or "$", _cut(text, MAX_TEXT))

    def raise_if_any(self, what: str) -> None:
        """Raise InvalidArgument that names every finding, if there is one."""
        if self.found:
            listed = "; ".join(f"{path}: {text}" for path, text in self.found.items())
            listed += "; and perhaps more" if self.full else ""
            raise InvalidArgument(
                f"{what}: {listed}", reason="GRADER_INVALID", violations=self.found
            )


def shown(value: object) -> str:
    """Return a value as short JSON, for messages."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        text = "a value that is nested too deep"
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(word: str, known: Collection[str]) -> str:
    """Return a hint that names the nearest known word, or all of them."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(sorted(known))}"


class Fields:
    """One JSON object; each reader takes a key, `finish` reports the keys that nobody took."""

    def __init__(self, values: Mapping[str, object], path: str, problems: Problems) -> None:
        """Wrap an object that lies at `path`."""
        self.values = values
        self.path = path
        self.problems = problems
        self._taken: set[str] = set()

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether the key is there; it counts as known from then on."""
        self._taken.add(key)
        return key in self.values

    def text(self, key: str, default: str | None = None) -> str:
        """Read a non-empty text; without a default it is required."""
        value = self._take(key, default)
        if isinstance(value, str) and value:
            return value
        if value is not _MISSING:
            self.problems.add(self.at(key), f"must be a non-empty text, found {shown(value)}")
        return ""

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        """Read one of a few words."""
        value = self._take(key, default)
        if isinstance(value, str) and value in known:
            return value
        if value is not _MISSING:
            hint = nearest(value if isinstance(value, str) else "", known)
            self.problems.add(self.at(key), f"{shown(value)} is not known; {hint}")
        return known[0]

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> float:
        """Read a finite number between `low` and `high`."""
        value = self._take(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if abs(value) <= sys.float_info.max and low <= value <= high:
                return float(value)
            limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
            if not math.isfinite(low) and not math.isfinite(high):
                limits = "finite"
            self.problems.add(self.at(key), f"must be a number {limits}, found {shown(value)}")
        elif value is not _MISSING:
            self.problems.add(self.at(key), f"must be a number, found {shown(value)}")
        return default if default is not None else 0.0

    def whole(self, key: str, default: int | None = None, *, low: int, high: int) -> int:
        """Read a whole number between `low` and `high`, both included."""
        number = self.number(key, default, low=low, high=high)
        if number != int(number):
            self.problems.add(self.at(key), f"must be a whole number, found {number}")
        value = self.values.get(key)
        return value if isinstance(value, int) else int(number)

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.problems.add(self.at(key), f"must be true or false, found {shown(value)}")
        return value is True

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a non-empty list of non-empty texts."""
        value = self._take(key, None)
        if isinstance(value, list) and value and all(isinstance(v, str) and v for v in value):
            return tuple(value)
        if value is not _MISSING:
            self.problems.add(
                self.at(key), f"must be a non-empty list of texts, found {shown(value)}"
            )
        return ()

    def pair(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """Read two finite numbers [low, high] with low < high."""
        value = self._take(key, default)
        if (
            isinstance(value, list | tuple)
            and len(value) == 2
            and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
            and all(abs(v) <= sys.float_info.max for v in value)
            and 0 < value[1] - value[0] <= sys.float_info.max
        ):
            return float(value[0]), float(value[1])
        self.problems.add(
            self.at(key), f"must be two numbers [low, high] with low < high, found {shown(value)}"
        )
        return default

    def raw(self, key: str) -> object:
        """Read any value; missing ones are reported."""
        value = self._take(key, None)
        return None if value is _MISSING else value

    def child(self, key: str) -> "Fields | None":
        """Read an object."""
        value = self._take(key, None)
        if isinstance(value, dict):
            return Fields(value, self.at(key), self.problems)
        if value is not _MISSING:
            self.problems.add(self.at(key), f"must be an object, found {shown(value)}")
        return None

    def children(self, key: str) -> list["Fields"]:
        """Read a non-empty list of objects."""
        value = self._take(key, None)
        if value is _MISSING:
            return []
        if not isinstance(value, list) or not value:
            self.problems.add(self.at(key), f"must be a non-empty list, found {shown(value)}")
            return []
        found = []
        for index, element in enumerate(value):
            path = f"{self.at(key)}[{index}]"
            if isinstance(element, dict):
                found.append(Fields(element, path, self.problems))
            else:
                self.problems.add(path, f"must be an object, found {shown(element)}")
        return found

    def finish(self) -> None:
        """Report every key that was not read."""
        for key in self.values:
            if key not in self._taken and not self.problems.full:
                hint = nearest(key, self._taken)
                self.problems.add(self.at(key), f"unknown key {key!r}; {hint}")

    def _take(self, key: str, default: object) -> object:
        self._taken.add(key)
        if key in self.values:
            return self.values[key]
        if default is not None:
            return default
        self.problems.add(self.at(key), "is required")
        return _MISSING


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
