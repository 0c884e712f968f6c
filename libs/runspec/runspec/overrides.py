"""Dotted overrides from a command line: `train.learning_rate=1e-5`, or `learning_rate=1e-5` where that is plain."""

from dataclasses import dataclass

from runspec.explain import unknown_key
from runspec.problems import Problem, SpecError
from runspec.schema import RunSpec, all_fields, sections
from runspec.yamldoc import Path, parse_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override that was read."""

    text: str
    """As it was typed."""
    path: Path
    value: object


def parse_override(text: str) -> Override:
    """Reads `a.b=c`; the value is typed as it would be in the file.

    Raises:
        SpecError: there is no `=`, the field does not exist, or a bare name means more than one field.
    """
    name, equals, value_text = text.partition("=")
    name = name.strip().removeprefix("--")
    source = f"override {text!r}"
    if not equals or not name:
        raise _refused(source, "", "expected field=value, for example train.learning_rate=1e-5")
    path = tuple(name.split("."))
    if "" in path:
        raise _refused(source, name, "has an empty part between its dots")
    path = _resolve(path, source)
    try:
        value = parse_value(value_text)
    except ValueError as error:
        raise _refused(source, ".".join(path), str(error)) from error
    return Override(text=text, path=path, value=value)


def apply_override(data: dict[str, object], override: Override) -> None:
    """Sets the value in the nested data, making sections on the way.

    Raises:
        SpecError: a value that is no mapping stands in the way.
    """
    here = data
    for depth, key in enumerate(override.path[:-1]):
        inner = here.get(key)
        if inner is None:  # also where the file has the section and leaves it empty
            inner = here[key] = {}
        if not isinstance(inner, dict):
            where = ".".join(override.path[: depth + 1])
            raise _refused(f"override {override.text!r}", where, "is a single value in the file")
        here = inner
    here[override.path[-1]] = override.value


def _resolve(path: Path, source: str) -> Path:
    """Completes a bare name that only one section has, and refuses what no section has."""
    if path[0] == "grader":
        return path
    names = all_fields()
    dotted = ".".join(path)
    if dotted in names:
        return path
    if len(path) == 1 and path[0] not in RunSpec.model_fields:
        homes = [name for name in names if name.rpartition(".")[2] == path[0]]
        if len(homes) == 1:
            return tuple(homes[0].split("."))
        if homes:
            raise _refused(source, dotted, f"could mean {' or '.join(homes)}; write it in full")
    known = [key for key in (path[0],) if key in RunSpec.model_fields]
    if not known:
        raise _refused(source, dotted, unknown_key(path[:1]))
    if path[0] not in sections() or len(path) > 2:
        raise _refused(source, dotted, f"{'.'.join(path[:-1])} is a single value, not a section")
    raise _refused(source, dotted, unknown_key(path))


def _refused(source: str, field: str, message: str) -> SpecError:
    return SpecError([Problem(field=field, message=message, source=source)])
