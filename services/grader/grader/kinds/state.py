r"""`state`: what the stopped agent's sandbox holds at the end.

    {"type": "state", "checks": [
      {"path": "/work/out.csv", "exists": true},
      {"path": "/work/out.csv", "equals": "{{item.csv}}"},
      {"path": "/work/log.txt", "matches": "^done in \\d+ s$"},
      {"path": "/work/model.bin", "sha256": "{{item.digest}}"},
      {"path": "/work/result.json", "json_path": "rows[0].total", "value": 72},
      {"command": ["git", "-C", "/work", "diff", "--quiet"], "exit_code": 0, "stdout_matches": "^$"}]}

Files are read from outside, in a box from a snapshot of the agent's; then the commands run there, in their order. A
command sees all that the agent left, programs too: where forging pays, check files. The value is 1 if all checks hold;
with `per_check` the share that holds.
"""

import asyncio
import hashlib
import re
from dataclasses import dataclass
from typing import Protocol

from grader.fields import Fields, shown
from grader.instruments.all import Instruments
from grader.instruments.boxes import AgentFilesError, Box, FileTooLargeError
from grader.jsonvalues import is_list, read_json, same_json
from grader.kinds.base import Kinds
from grader.kinds.boxed_fields import BoxFields, box_fields, code_field, path_field, unusable
from grader.patterns import Pattern, pattern_field
from grader.results import Graded
from grader.sample import Sample
from grader.templates import (
    ResponseLacksError,
    Template,
    TemplateError,
    ValueTemplate,
    parse_value_template,
)
from trajectory.types import OutcomeKind

MAX_FILE_BYTES = 3 * 1024 * 1024
"""Of a file that a check reads; a larger one does not hold."""
MAX_CHECKS = 100
_JSON_PATH = re.compile(r"(?:^|\.)([\w-]+)|\[(-?\d{1,9})\]")
_WAYS = ("exists", "equals", "matches", "sha256", "json_path")


class Check(Protocol):
    """One thing that must hold."""

    async def problem(self, box: Box, sample: Sample) -> str:
        """Return what does not hold; empty if it does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exists:
    """Something is at a path, or nothing is."""

    path: str
    wanted: bool

    async def problem(self, box: Box, sample: Sample) -> str:
        """Look."""
        if await box.exists(self.path) == self.wanted:
            return ""
        return f"{self.path} {'is not there' if self.wanted else 'is there'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A file's content is as wanted: one of the fields below."""

    path: str
    equals: Template | None = None
    matches: Pattern | None = None
    sha256: Template | None = None

    async def problem(self, box: Box, sample: Sample) -> str:
        """Read and compare."""
        try:
            content = await box.read(self.path, max_bytes=MAX_FILE_BYTES)
        except FileTooLargeError as err:
            return str(err)
        if content is None:
            return f"{self.path} is no file"
        if self.sha256 is not None:
            digest = hashlib.sha256(content).hexdigest()
            wanted = self.sha256.render(sample).strip().lower()
            return "" if digest == wanted else f"{self.path} has sha256 {digest}"
        if self.equals is not None:
            same = content == self.equals.render(sample).encode("utf-8", "surrogatepass")
            return "" if same else f"{self.path} holds something else"
        assert self.matches is not None
        text = content.decode("utf-8", "replace")
        found = await asyncio.to_thread(self.matches.search, text)
        return "" if found else f"{self.path} does not match {self.matches.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonValue:
    """A JSON file holds a value at a place."""

    path: str
    json_path: str
    value: ValueTemplate

    async def problem(self, box: Box, sample: Sample) -> str:
        """Read, go there and compare."""
        wanted = self.value.value(sample)
        try:
            content = await box.read(self.path, max_bytes=MAX_FILE_BYTES)
            if content is None:
                return f"{self.path} is no file"
            document = await asyncio.to_thread(read_json, content.decode("utf-8"))
            found = _at(document, self.json_path)
        except FileTooLargeError as err:
            return str(err)
        except (ValueError, LookupError) as err:
            return f"{self.path}: {err}"
        return (
            "" if same_json(wanted, found) else f"{self.path}: {self.json_path} is {shown(found)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """A command ends as wanted."""

    command: tuple[str, ...]
    exit_code: int
    stdout_matches: Pattern | None
    timeout_seconds: float

    async def problem(self, box: Box, sample: Sample) -> str:
        """Run it."""
        ran = await box.run(self.command, timeout_seconds=self.timeout_seconds)
        name = " ".join(self.command)[:80]
        if ran.stopped_by:
            return f"{name}: stopped by {ran.stopped_by}"
        if ran.exit_code != self.exit_code:
            return f"{name}: ended with {ran.exit_code}"
        if self.stdout_matches is not None:
            text = ran.stdout.decode("utf-8", "replace")
            if not await asyncio.to_thread(self.stdout_matches.search, text):
                return f"{name}: its output does not match {self.stdout_matches.source}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGrader:
    """Checks the end state."""

    checks: tuple[Check, ...]
    per_check: bool
    box: BoxFields

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return 1 if all checks hold, else 0; with `per_check` the share that holds."""
        try:
            async with instruments.boxes.box(self.box.spec(from_agent=True)) as box:
                problems = [await _problem(check, box, sample) for check in self.checks]
        except AgentFilesError as err:
            return unusable(err, sample)
        wrong = [problem for problem in problems if problem]
        held, total = len(problems) - len(wrong), len(problems)
        return Graded(
            value=held / total if self.per_check else float(not wrong),
            kind=sample.shortfall(OutcomeKind.REASONING) if wrong else None,
            explanation=f"{held} of {total} checks hold" + (f"; {wrong[0]}" if wrong else ""),
            parts={"held": float(held), "checks": float(total)} if self.per_check else {},
        )


async def _problem(check: Check, box: Box, sample: Sample) -> str:
    try:
        return await check.problem(box, sample)
    except ResponseLacksError as lack:
        return lack.detail


def parse(fields: Fields, kinds: Kinds) -> StateGrader:
    """Read the definition."""
    box = box_fields(fields, timeout_seconds=30.0, memory_mb=None)
    children = fields.children("checks")
    if len(children) > MAX_CHECKS:
        fields.problems.add(fields.at("checks"), f"are {len(children)}, at most {MAX_CHECKS}")
    checks = [_parse_check(child, box.timeout_seconds) for child in children[:MAX_CHECKS]]
    return StateGrader(
        # Commands may change what is there: they come last.
        checks=tuple(
            sorted((c for c in checks if c is not None), key=lambda c: isinstance(c, Runs))
        ),
        per_check=fields.flag("per_check", False),
        box=box,
    )


def _parse_check(fields: Fields, timeout_seconds: float) -> Check | None:
    check: Check | None = None
    if fields.has("command"):
        check = Runs(
            command=fields.texts("command"),
            exit_code=fields.whole("exit_code", 0, low=0, high=255),
            stdout_matches=pattern_field(fields, "stdout_matches")
            if fields.has("stdout_matches")
            else None,
            timeout_seconds=timeout_seconds,
        )
    else:
        path = path_field(fields, "path")
        ways = [way for way in _WAYS if fields.has(way)]
        if len(ways) != 1:
            found = ", ".join(ways) or "none"
            fields.problems.add(
                fields.path, f"needs one of {', '.join(_WAYS)}, or a command; found {found}"
            )
        else:
            check = _parse_file_check(fields, path, ways[0])
    fields.finish()
    return check


def _parse_file_check(fields: Fields, path: str, way: str) -> Check | None:
    if way == "exists":
        return Exists(path=path, wanted=fields.flag("exists", True))
    if way == "equals":
        return Content(path=path, equals=code_field(fields, "equals"))
    if way == "sha256":
        return Content(path=path, sha256=code_field(fields, "sha256"))
    if way == "matches":
        return Content(path=path, matches=pattern_field(fields, "matches"))
    try:
        value = parse_value_template(fields.raw("value"))
    except TemplateError as err:
        fields.problems.add(fields.at("value"), str(err))
        return None
    json_path = fields.text("json_path")
    if _JSON_PATH.sub("", json_path):
        fields.problems.add(
            fields.at("json_path"), f"must be like rows[0].total, found {shown(json_path)}"
        )
    return JsonValue(path=path, json_path=json_path, value=value)


def _at(value: object, path: str) -> object:
    """Return what a checked path names.

    Raises:
        LookupError: there is no such thing.
    """
    for key, index in _JSON_PATH.findall(path):
        if key:
            if not isinstance(value, dict) or key not in value:
                raise LookupError(f"has no {path}")
            value = value[key]
        else:
            if not is_list(value) or not -len(value) <= int(index) < len(value):
                raise LookupError(f"has no {path}")
            value = value[int(index)]
    return value
