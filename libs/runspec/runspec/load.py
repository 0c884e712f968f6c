"""Loads run.yaml: YAML, overrides, schema and rules, each problem with its file and line."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from runspec.explain import problems_of
from runspec.overrides import Override, apply_override, parse_override
from runspec.problems import Problem, SpecError, described
from runspec.rules import check_no_effect, check_rules
from runspec.schema import RunSpec
from runspec.yamldoc import Document, parse_yaml

_FILE_FIELDS = (
    ("data", "train"),
    ("data", "eval"),
    ("agreement", "labels"),
    ("health", "off_task"),
)
_PACKAGE_PREFIX = "package:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A run file that passed every check, with what is needed to say where a field stands."""

    path: Path
    """The run file, absolute."""
    spec: RunSpec
    """What it says; paths are absolute."""
    document: Document
    overrides: tuple[Override, ...] = field(default=())

    def problem(self, name: str, message: str) -> Problem:
        """A problem of one field, with its file and line, or with the override that caused it."""
        places = _Places(str(self.path), self.document, self.overrides)
        return places.placed(Problem(field=name, message=message))


def load_run_file(
    path: str | Path, overrides: Sequence[str] = (), *, algorithm: str | None = None
) -> LoadedRun:
    """Reads and checks a run file.

    Paths in the file are relative to the file, paths in overrides to the current folder; both become absolute.

    Args:
        path: the run.yaml.
        overrides: texts like train.learning_rate=1e-5.
        algorithm: takes the place of the file's, so that a grpo file can be evaluated.

    Raises:
        SpecError: everything that is wrong, with file and line, or with the override's text.
    """
    file = Path(path).absolute()
    document = parse_yaml(_text_of(file), str(path))
    if not isinstance(document.value, dict):
        message = (
            f"found {described(document.value)}, expected a mapping with algorithm, model, data"
        )
        raise SpecError([Problem(field="", message=message, source=str(path), line=1)])
    data: dict[str, object] = dict(document.value)
    _anchor_paths(data, file.parent)
    _read_grader(data, file.parent, _Places(str(path), document, ()))
    parsed = _parse_overrides(overrides)
    places = _Places(str(path), document, parsed)
    for override in parsed:
        apply_override(data, _anchored(override, Path.cwd()))
        if override.path == ("grader",):
            _read_grader(data, Path.cwd(), places)
    if algorithm is not None:
        data["algorithm"] = algorithm
    if data.get("name") is None:
        data["name"] = _name_from(file)
    spec = _validated(data, places)
    problems = [*check_rules(spec), *check_no_effect(spec, _said(data))]
    if problems:
        raise SpecError([places.placed(problem) for problem in problems])
    return LoadedRun(path=file, spec=spec, document=document, overrides=parsed)


def check_files(run: LoadedRun, *, model: bool = True) -> list[Problem]:
    """Finds data files and, where the learner is on this machine, model folders that do not exist."""
    spec = run.spec
    problems = []
    files = (
        ("data.train", spec.data.train),
        ("data.eval", spec.data.eval),
        ("agreement.labels", spec.agreement.labels),
        ("health.off_task", spec.health.off_task),
    )
    for name, value in files:
        needed = not (name == "data.train" and spec.algorithm == "evaluate")
        # A folder may hold rows, and no labels.
        there = Path(value).exists() if name.startswith("data.") else Path(value).is_file()
        if value and needed and not there:
            problems.append(run.problem(name, f"there is no file {value}"))
    if model and not spec.model.path.startswith(_PACKAGE_PREFIX):
        folder = Path(spec.model.path)
        if not folder.exists():
            message = f"there is no folder {folder}; give a model folder or package:NAME"
            problems.append(run.problem("model.path", message))
    return problems


@dataclass(frozen=True, slots=True)
class _Places:
    """Knows where fields stand while the run is not yet whole."""

    source: str
    document: Document
    overrides: tuple[Override, ...]

    def placed(self, problem: Problem) -> Problem:
        """The problem with its file and line, or with the override that caused it."""
        for override in reversed(self.overrides):
            name = ".".join(override.path)
            if problem.field == name or problem.field.startswith((f"{name}.", f"{name}[")):
                return replace(problem, source=f"override {override.text!r}", line=0)
        line = self.document.line_of(_path_of(problem.field))
        return replace(problem, source=self.source, line=line)


def _validated(data: dict[str, object], places: _Places) -> RunSpec:
    try:
        return RunSpec.model_validate(_without_nulls(data))
    except ValidationError as error:
        found = [places.placed(problem) for problem in problems_of(error)]
        raise SpecError(sorted(found, key=lambda p: (p.line == 0, p.line))) from error


def _without_nulls(data: dict[str, object]) -> dict[str, object]:
    """Drops sections and fields that are left empty, as in `lora:` alone on its line."""
    kept: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, dict) and key != "grader":
            kept[key] = {k: v for k, v in value.items() if v is not None}
        elif value is not None:
            kept[key] = value
    return kept


def _said(data: dict[str, object]) -> frozenset[str]:
    """Returns the dotted names of the fields that are given, overrides in force; null takes one back."""
    return frozenset(
        f"{section}.{key}"
        for section, fields in _without_nulls(data).items()
        if isinstance(fields, dict)
        for key in fields
    )


def _parse_overrides(texts: Sequence[str]) -> tuple[Override, ...]:
    parsed: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            parsed.append(parse_override(text))
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return tuple(parsed)


def _read_grader(data: dict[str, object], folder: Path, places: _Places) -> None:
    """Replaces the path of a JSON file by the definition in it."""
    grader = data.get("grader")
    if not isinstance(grader, str):
        return
    file = folder / grader
    try:
        definition = json.loads(file.read_text("utf-8"))
    except OSError as error:
        message = f"cannot read {file}: {error.strerror or error}"
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        message = f"{file} is not JSON: {error}"
    else:
        if isinstance(definition, dict):
            data["grader"] = definition
            return
        message = f"{file} holds {described(definition)}, expected a JSON object"
    raise SpecError([places.placed(Problem(field="grader", message=message))])


def _anchor_paths(data: dict[str, object], folder: Path) -> None:
    """Makes the paths of the file absolute."""
    for section, key in (
        *_FILE_FIELDS,
        ("model", "path"),
        ("model", "adapter"),
        ("model", "reference"),
    ):
        inner = data.get(section)
        if isinstance(inner, dict) and isinstance(inner.get(key), str):
            data[section] = {**inner, key: _anchor(f"{section}.{key}", inner[key], folder)}
            inner = data[section]


def _anchored(override: Override, folder: Path) -> Override:
    name, value = ".".join(override.path), override.value
    if isinstance(value, str):
        return replace(override, value=_anchor(name, value, folder))
    if isinstance(value, dict):
        inner = {
            key: _anchor(f"{name}.{key}", text, folder) if isinstance(text, str) else text
            for key, text in value.items()
        }
        return replace(override, value=inner)
    return override


def _anchor(name: str, value: str, folder: Path) -> str:
    """Makes a path absolute; ids, packages and words stay."""
    if name in {".".join(field) for field in _FILE_FIELDS}:
        is_path = bool(value)
    elif name == "model.path":
        is_path = bool(value) and not value.startswith(_PACKAGE_PREFIX)
    elif name in ("model.adapter", "model.reference"):
        is_path = "/" in value
    else:
        is_path = False
    return str((folder / Path(value).expanduser()).resolve()) if is_path else value


def _name_from(file: Path) -> str:
    """A run name made of the file's name."""
    stem = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")[:40].strip("-")
    return stem or "run"


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except OSError as error:
        message = f"cannot read the run file: {error.strerror or error}"
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start})"
    raise SpecError([Problem(field="", message=message, source=str(file))])


def _path_of(name: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[.\[\]]+", name) if part)
