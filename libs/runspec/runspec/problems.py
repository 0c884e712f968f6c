"""What is wrong with a run file, an override or a data row: plain values, gathered and raised together.

One error carries every problem found, so that a person mends a file in one pass.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a run specification."""

    field: str
    """Dotted name, for example train.group_size; empty for the file as a whole."""
    message: str
    """What was found and what would be right."""
    source: str = ""
    """File, or the override's text."""
    line: int = 0
    """From 1; 0 where no line is known."""

    def __str__(self) -> str:
        """Formats as `file:line: field: message`."""
        place = f"{self.source}:{self.line}" if self.line else self.source
        return ": ".join(part for part in (place, self.field, self.message) if part)


class SpecError(ValueError):
    """A run specification is not acceptable; `problems` says why, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Keeps the problems; the text is one line each."""
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def violations(self) -> dict[str, str]:
        """The problems by field, as a gRPC BadRequest wants them."""
        found: dict[str, str] = {}
        for problem in self.problems:
            earlier = found.get(problem.field)
            found[problem.field] = f"{earlier}; {problem.message}" if earlier else problem.message
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One thing that is wrong in a JSONL row."""

    line: int
    """From 1; 0 for the file as a whole."""
    field: str
    """For example messages[1].content; empty for the row as a whole."""
    message: str
    """What was found and what would be right."""
    source: str = ""
    """The file, where the rows came from several; else the errors' own says it."""


class RowErrors(ValueError):
    """A data file is not acceptable; `errors` holds the first problems in the order of the file."""

    def __init__(self, source: str, errors: Iterable[RowError], *, more: bool = False) -> None:
        """Keeps the errors; `more` says that reading stopped before the end of the file."""
        self.source = source
        self.errors: tuple[RowError, ...] = tuple(errors)
        self.more = more
        lines = [_row_line(source, error) for error in self.errors]
        if more:
            lines.append(f"{source}: further rows were not looked at")
        super().__init__("\n".join(lines))

    def violations(self) -> dict[str, str]:
        """The errors by line and field, as a gRPC BadRequest wants them."""
        found: dict[str, str] = {}
        for error in self.errors:
            place = f"line {error.line}" if error.line else "file"
            key = f"{place}: {error.field}" if error.field else place
            found[key] = f"{found[key]}; {error.message}" if key in found else error.message
        return found


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Finds the known word that a typing error most likely meant; `cutoff` is how alike they must be, from 0 to 1."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=cutoff)
    return close[0] if close else None


def described(value: object) -> str:
    """Says what was found, as a person would write it: its kind and the value, shortened."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value!r}"
        case str():
            return f"the text {_short(value)!r}" if value else "an empty text"
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"a mapping with {_short(', '.join(map(str, value))) or 'no keys'}"
        case _:
            return f"a {type(value).__name__}"


def _row_line(source: str, error: RowError) -> str:
    source = error.source or source
    place = f"{source}:{error.line}" if error.line else source
    return ": ".join(part for part in (place, error.field, error.message) if part)


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
