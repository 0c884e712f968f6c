"""A grader definition in a file, and what can be known of it before anything is graded."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hone_cli.errors import USAGE, CliError
from runspec.graderfields import required_fields
from runspec.load import load_run_file
from runspec.problems import SpecError

READ_WHOLE_ITEM = frozenset(("python", "endpoint", "function"))
"""Types whose code gets all reference fields of the task; an endpoint with a payload gets what that names."""

TRIES = frozenset(("tests", "state", "performance"))
"""Types that try what was done, and need no reference for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderFile:
    """A definition as it was written."""

    source: str
    """The file, for errors."""
    text: str
    """JSON."""
    values: Mapping[str, object]

    @property
    def required(self) -> set[str]:
        """Dotted names of the reference fields that it reads."""
        return required_fields(self.values)

    @property
    def read_fields(self) -> set[str] | None:
        """Top-level names of the reference fields that it reads; None if it gets the whole item."""
        for part in _objects(self.values):
            if part.get("type") in READ_WHOLE_ITEM and "payload" not in part:
                return None
        return {name.split(".")[0].split("[")[0] for name in self.required}

    @property
    def result_names(self) -> set[str]:
        """Names of the graders that say whether the task was done: they read its reference, or try what was done."""
        graders = self.values.get("graders")
        if isinstance(graders, Mapping):
            named = [(name, part) for name, part in graders.items() if isinstance(part, Mapping)]
        else:
            parts = graders if isinstance(graders, list) else []
            found = [part for part in parts if isinstance(part, Mapping)]
            named = [(part.get("name", part.get("type")), part) for part in found]
        return {
            str(name)
            for name, part in named
            if part.get("type") in TRIES or required_fields({"": part.get("reference")})
        }

    @property
    def counts_tokens(self) -> bool:
        """Whether it needs token counts, which rows of a file do not have."""
        return any(part.get("unit") == "policy_tokens" for part in _objects(self.values))

    def fields_at(self, *keys: str) -> list[str]:
        """Dotted names of the reference fields that some keys read, for example reference, in order."""
        found: list[str] = []
        for part in _objects(self.values):
            for key in keys:
                found += [n for n in required_fields({key: part.get(key)}) if n not in found]
        return found


def grader_of(text: str, source: str) -> GraderFile:
    """Takes a definition's JSON apart; whether it is sound is for the grader to say.

    Raises:
        CliError: it is no JSON object.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{source}: is not JSON: {error}", USAGE) from error
    if not isinstance(values, dict):
        raise CliError(f"{source}: found {type(values).__name__}, expected a JSON object", USAGE)
    return GraderFile(source=source, text=text, values=values)


def read_grader_file(path: Path) -> GraderFile:
    """Reads a JSON file, or the `grader` of a run file.

    Raises:
        CliError: it cannot be read, or holds no definition.
    """
    if path.suffix in (".yaml", ".yml"):
        try:
            grader = load_run_file(path, []).spec.grader
        except SpecError as error:
            raise CliError(str(error), USAGE) from error
        if grader is None:
            raise CliError(f"{path}: grader: missing; expected a grader definition", USAGE)
        return grader_of(json.dumps(grader), str(path))
    if path.suffix == ".jsonl":
        raise CliError(
            f"{path}: found a data file, expected a definition; GRADER.json comes before FILE.jsonl",
            USAGE,
        )
    try:
        # Some editors write a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}", USAGE) from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path}: is not UTF-8 (byte {error.start})", USAGE) from error
    return grader_of(text, str(path))


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, Mapping):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _objects(inner)
