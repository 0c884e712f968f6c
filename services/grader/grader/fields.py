"""Reads a JSON object field by field and collects everything that is wrong with it, by path."""

import difflib
import json
import math
from collections.abc import Collection, Mapping, Sequence

from servicekit.errors import InvalidArgument

_MISSING = object()


class Problems:
    """What is wrong with one definition, by JSON path; the first finding at a path stays."""

    def __init__(self) -> None:
        """Start without findings."""
        self.found: dict[str, str] = {}

    def add(self, path: str, text: str) -> None:
        """Note a finding."""
        self.found.setdefault(path or "$", text)

    def raise_if_any(self, what: str) -> None:
        """Raise InvalidArgument that names every finding, if there is one."""
        if self.found:
            listed = "; ".join(f"{path}: {text}" for path, text in self.found.items())
            raise InvalidArgument(
                f"{what}: {listed}", reason="GRADER_INVALID", violations=self.found
            )


def shown(value: object) -> str:
    """Return a value as short JSON, for messages."""
    text = json.dumps(value, ensure_ascii=False, default=str)
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
            if math.isfinite(value) and low <= value <= high:
                return float(value)
            limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
            if not math.isfinite(low) and not math.isfinite(high):
                limits = "finite"
            self.problems.add(self.at(key), f"must be a number {limits}, found {shown(value)}")
        elif value is not _MISSING:
            self.problems.add(self.at(key), f"must be a number, found {shown(value)}")
        return default if default is not None else 0.0

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
            if key not in self._taken:
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
