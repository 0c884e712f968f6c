"""Grader definitions: JSON in, checked graders with weights out.

A definition is one grader, or `multi` with several:

    {"type": "multi",
     "graders": [{"name": "reward", "type": "efficiency", "weight": 1, ...},
                 {"name": "accuracy", "type": "answer", "reference": "{{item.answer}}", "weight": 0}],
     "range": [0, 1], "rule": "clip"}

How the values become one is `grader.combination`. The rule says what becomes of a combined score outside the range:
clip it, map it into the range from `from` (affine), or refuse. `guards` (`grader.guards.guarding`) look for responses
that are paid without having done the task.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from grader.combination import MAX_WEIGHT, Combination, Member, parse_members
from grader.fields import MAX_PROBLEMS, Fields, Problems, shown
from grader.guards.guarding import Posted, parse_guards
from grader.guards.table import GUARDS
from grader.jsonvalues import finite, is_unicode
from grader.kinds.base import KindTable
from grader.kinds.table import KINDS

RULES = ("clip", "affine", "refuse")
MAX_JSON = 256 * 1024
"""Characters that a definition may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The declared range of the combined score and what to do outside it."""

    low: float
    high: float
    rule: str
    source_low: float
    source_high: float
    """For affine: the range that is mapped onto [low, high]."""

    def mapped(self, score: float) -> float:
        """Return the score as the rule maps it, before it is held in the range."""
        if self.rule != "affine":
            return score
        share = (score - self.source_low) / (self.source_high - self.source_low)
        return self.low + share * (self.high - self.low)

    def apply(self, score: float) -> float | None:
        """Return the score inside the range; None if the rule refuses it."""
        score = self.mapped(score)
        if self.rule == "refuse" and not self.low <= score <= self.high:
            return None
        return min(self.high, max(self.low, score))


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A checked grader definition."""

    combination: Combination
    bounds: Bounds
    guards: tuple[Posted, ...] = ()
    version: str
    """Of this package and this definition: the same text of keys and values gives the same version."""


class Definitions:
    """Parses definitions and stamps them with a version."""

    def __init__(self, *, package_version: str) -> None:
        """Use the shipped kinds.

        Args:
            package_version: version of the grader; part of every grader version.
        """
        self._kinds = KindTable(KINDS)
        self._package_version = package_version

    def parse(self, text: str) -> Definition:
        """Check a definition.

        Raises:
            InvalidArgument: with one violation per wrong field, by JSON path.
        """
        problems = Problems()
        values = _load(text, problems)
        combination = Combination(members=())
        bounds = None
        guards: tuple[Posted, ...] = ()
        if values is not None:
            fields = Fields(values, "", problems)
            combination = self._combination(fields)
            bounds = _bounds(fields)
            guards = parse_guards(fields, GUARDS, values)
            if combination.members or values.get("type") == "multi":
                fields.finish()  # a type that nobody knows has no known keys
        problems.raise_if_any("grader definition")
        assert values is not None and bounds is not None
        return Definition(
            combination=combination, bounds=bounds, guards=guards, version=self._version(values)
        )

    def _combination(self, fields: Fields) -> Combination:
        if fields.values.get("type") == "multi":
            fields.has("type")
            fields.has("name")
            return parse_members(fields, self._kinds)
        grader = self._kinds.parse(fields)
        kind = fields.values.get("type")
        weight = fields.number("weight", 1.0, low=0.0, high=MAX_WEIGHT)
        name = fields.text("name", kind if isinstance(kind, str) and kind else "grader")
        if grader is None:
            return Combination(members=())
        if weight == 0:
            fields.problems.add("weight", "must be above 0 for the only grader, found 0")
        return Combination(
            members=(Member(name=name, type=str(kind), weight=weight, grader=grader),)
        )

    def version_of_text(self, text: str) -> str:
        """Return the version of a definition that is not sound: of its very text."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{self._package_version}+unsound.{digest}"

    def _version(self, values: dict[str, object]) -> str:
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:12]
        return f"{self._package_version}+{digest}"


def _load(text: str, problems: Problems) -> dict[str, object] | None:
    if len(text) > MAX_JSON:
        problems.add("", f"must be at most {MAX_JSON} characters, found {len(text)}")
        return None
    doubled: list[tuple[dict[str, object], str]] = []
    try:
        values = json.loads(
            text,
            parse_constant=_refuse_constant(problems),
            parse_float=finite,
            object_pairs_hook=_refuse_doubles(doubled),
        )
        if "\\u" in text and not is_unicode(values):
            raise ValueError("holds half of a surrogate pair")
    except (ValueError, RecursionError) as err:
        problems.add("", f"is not JSON: {err}; found {shown(text)}")
        return None
    if not isinstance(values, dict):
        problems.add("", f"must be a JSON object, found {shown(values)}")
        return None
    paths = _paths(values) if doubled else {}
    for holder, key in doubled[:MAX_PROBLEMS]:
        # One that a double hides has no path of its own.
        path = paths.get(id(holder), "")
        problems.add(f"{path}.{key}" if path else key, "is there more than once; keep one")
    return values


def _refuse_doubles(
    doubled: list[tuple[dict[str, object], str]],
) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """Note keys that an object holds twice, of which JSON would keep the last without a word."""

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            doubled.extend((values, key) for key, count in counts.items() if count > 1)
        return values

    return collect


def _paths(root: object) -> dict[int, str]:
    """Return the path of each object, by its identity."""
    paths: dict[int, str] = {}
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            paths[id(value)] = path
            todo.extend((f"{path}.{key}" if path else key, held) for key, held in value.items())
        elif isinstance(value, list):
            todo.extend((f"{path}[{index}]", held) for index, held in enumerate(value))
    return paths


def _refuse_constant(problems: Problems) -> Callable[[str], float]:
    def refuse(name: str) -> float:
        problems.add("", f"{name} is not a finite number")
        return 0.0

    return refuse


def _bounds(fields: Fields) -> Bounds:
    low, high = fields.pair("range", (0.0, 1.0))
    rule = fields.choice("rule", RULES, "clip")
    source = (low, high)
    if fields.has("from"):
        source = fields.pair("from", (low, high))
        if rule != "affine":
            fields.problems.add(fields.at("from"), f"is for rule affine, and the rule is {rule}")
    elif rule == "affine":
        fields.problems.add(fields.at("from"), "is required for rule affine: the range to map")
    return Bounds(low=low, high=high, rule=rule, source_low=source[0], source_high=source[1])
