"""Regular expressions of definitions: searched within a time limit, so that none can hang the grader.

By the package `regex`, which releases the interpreter while it searches. Their size is limited with all fixed repeats
written out, as the package writes them out when it compiles: `(?:(?:[ab]{1000}){1000}){1000}` would take all memory.
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import regex  # type: ignore[import-untyped]  # regex ships no types

from grader.fields import Fields
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

MAX_CHARACTERS = 2000
MAX_SIZE = 20_000
"""Characters, classes and groups of a pattern, `a{3}` counted as three."""
MAX_TOTAL_SIZE = 100_000
"""Of all patterns of a definition together: about 15 MB, and half a second to compile."""
TIMEOUT_SECONDS = 0.5
"""Of processor time of the searching thread, for one search; at least half of it where other threads are busy."""

_Found = TypeVar("_Found")

_PIECE = re.compile(
    r"""\\.                                # an escaped character
    | \[ \^? \]? (?: \\. | [^\]\\] )* \]    # a class
    | \{ \s* (?P<count>\d+) [^}]* \}        # a repeat
    | .""",
    re.DOTALL | re.VERBOSE,
)


class PatternError(ValueError):
    """The text is no regular expression, or one that is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A checked regular expression."""

    source: str
    compiled: "regex.Pattern[str]"

    def search(self, text: str) -> bool:
        """Whether a part of the text matches.

        Raises:
            GradingFaultError: the search took longer than the limit, kind timeout.
        """
        return self._limited(
            lambda limit: self.compiled.search(text, timeout=limit, concurrent=True) is not None
        )

    def matches_all(self, text: str) -> bool:
        """Whether the whole text matches.

        Raises:
            GradingFaultError: the search took longer than the limit, kind timeout.
        """
        return self._limited(
            lambda limit: self.compiled.fullmatch(text, timeout=limit, concurrent=True) is not None
        )

    def found_in(self, text: str) -> list[str]:
        """Return what matches, in order: the first group where the pattern has groups, else the whole match.

        Raises:
            GradingFaultError: the search took longer than the limit, kind timeout.
        """
        group = 1 if self.compiled.groups else 0
        return self._limited(
            lambda limit: [
                match.group(group) or ""
                for match in self.compiled.finditer(text, timeout=limit, concurrent=True)
            ]
        )

    def pick(self, text: str, group: int | str, *, last: bool) -> str | None:
        """Return a group of the first or last match, None without a match or if the group took no part in it.

        Raises:
            GradingFaultError: the search took longer than the limit, kind timeout.
        """

        def picked(limit: float) -> str | None:
            found: str | None = None
            for match in self.compiled.finditer(text, timeout=limit, concurrent=True):
                found = match.group(group)
                if not last:
                    break
            return found

        return self._limited(picked)

    def _limited(self, search: Callable[[float], _Found]) -> _Found:
        """Search within the limit of this thread's own time.

        The package counts the time of the whole process: where other threads spent most of it, the search is done again
        with four times as much, or a busy grader would judge otherwise than one that has nothing else to do.
        """
        limit = TIMEOUT_SECONDS
        while True:
            start = time.thread_time()
            try:
                return search(limit)
            except TimeoutError as err:
                if time.thread_time() - start >= TIMEOUT_SECONDS / 2:
                    raise GradingFaultError(
                        f"the pattern {self.source!r} searched for more than {TIMEOUT_SECONDS:g} s; "
                        "write it without repeats inside repeats, such as (a+)+",
                        kind=GraderErrorKind.TIMEOUT,
                        retryable=False,
                        client=True,
                    ) from err
            limit *= 4


def compile_pattern(text: str) -> Pattern:
    """Check a regular expression.

    Raises:
        PatternError: it is none, or too large.
    """
    if len(text) > MAX_CHARACTERS:
        raise PatternError(f"has {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    if _written_out(text) > MAX_SIZE:
        raise PatternError(f"is larger than {MAX_SIZE} pieces with its repeats {{n}} written out")
    try:
        return Pattern(source=text, compiled=regex.compile(text, cache_pattern=False))
    except (regex.error, RecursionError, ValueError) as err:
        raise PatternError(f"is no regular expression: {err}") from err


def _written_out(text: str) -> int:
    """Return about how many pieces a pattern has with its fixed repeats written out."""
    sizes = [0]
    last = 0
    for piece in _PIECE.finditer(text):
        if piece.group() == "(":
            sizes.append(0)
            last = 0
            continue
        if piece["count"] is not None:
            added = last * (max(1, int(piece["count"][:9])) - 1)
            last += added
        elif piece.group() == ")" and len(sizes) > 1:
            added = last = sizes.pop() + 1
        else:
            added = last = 1
        sizes[-1] += added
    return sum(sizes)


def has_room(fields: Fields, key: str, patterns: Iterable[str]) -> bool:
    """Whether a definition may have these patterns besides those that were read; if not, the fields are told."""
    fields.problems.pattern_size += sum(map(_written_out, patterns))
    if fields.problems.pattern_size <= MAX_TOTAL_SIZE:
        return True
    fields.problems.add(
        fields.at(key),
        f"the patterns of a definition may have {MAX_TOTAL_SIZE} pieces together, with their repeats "
        "{n} written out, and these are more",
    )
    return False


def pattern_field(fields: Fields, key: str) -> Pattern:
    """Read a regular expression; what is wrong with it goes to the fields."""
    text = fields.text(key)
    if not has_room(fields, key, [text]):
        return compile_pattern("")
    try:
        return compile_pattern(text)
    except PatternError as err:
        fields.problems.add(fields.at(key), str(err))
        return compile_pattern("")
