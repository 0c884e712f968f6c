r"""`tests`: the response's code, or the agent's files, against tests.

Code of the response (the last complete ``` block; the whole text where it is code), as in HumanEval and MBPP:

    {"type": "tests", "test": "{{item.test}}", "entry_point": "{{item.entry_point}}"}
    {"type": "tests", "test": "{{item.test_setup_code}}", "test_list": "{{item.test_list}}", "per_test": true}

Files that the agent left, as a module for the tests, or under a command of the grader's:

    {"type": "tests", "source": "files", "file": "calc.py", "test": "from calc import add\nassert add(1, 2) == 3"}
    {"type": "tests", "source": "files", "command": ["pytest", "-q", "--junitxml={report}"],
     "assets": {"test_x.py": "..."}}

`test` holds assertions, functions test_*, unittest cases, or check(candidate); each of `test_list` is one more test.
`setup` runs before the code and with it; `assets` are files laid over those in `folder` (/work). The value is 1 if all
pass; with `per_test` the share that passed.

The tests run in a process of their own, which keeps them, the expected values and the verdict to itself; the code runs
in another and is only ever asked for data (`grader.boxed`). A command's tests share a process with what they import:
there the verdict is its exit code and, with `{report}`, what its JUnit report says.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from grader.boxing import JobTooLargeError, Verdict, judge
from grader.code_text import MAX_CODE, find_code
from grader.fields import Fields, shown
from grader.instruments.all import Instruments
from grader.instruments.boxes import AgentFilesError
from grader.kinds.base import Kinds, lacking
from grader.kinds.boxed_fields import (
    DEFAULT_FOLDER,
    BoxFields,
    asset_fields,
    box_fields,
    code_field,
    code_template,
    is_sound_path,
    path_field,
    rendered,
    unusable,
)
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import Template
from trajectory.types import GraderErrorKind, OutcomeKind

SOURCES = ("response", "files")
LANGUAGES = ("python",)
HOSTILE = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.py",
    "_pytest",
    "pytest",
    "unittest.py",
    "unittest",
    "__pycache__",
    "*.pth",
    "*.pyc",
)
"""Of the agent's files, what decides how tests run rather than what they find; a command starts without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """Tests in a process of their own."""

    setup: Template
    entry_point: Template
    test: Template
    test_list: Template | tuple[Template, ...] | None
    file: str
    """Relative to the folder; empty for the response's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTests:
    """A command that tests."""

    command: tuple[str, ...]
    remove: tuple[str, ...]

    @property
    def reports(self) -> bool:
        """Whether the command writes a JUnit report."""
        return any("{report}" in part for part in self.command)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestsGrader:
    """Runs tests."""

    how: CodeTests | CommandTests
    assets: Mapping[str, Template]
    """By path, laid over what is in the folder."""
    folder: str
    per_test: bool
    box: BoxFields

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return 1 if all tests pass, else 0; with `per_test` the share that passed."""
        job = await asyncio.to_thread(self.job, sample)
        if isinstance(job, Graded):
            return job
        folders = (self.folder,) if self.uses_files else ()
        try:
            async with instruments.boxes.box(self.box.spec(agent_folders=folders)) as box:
                verdict = await judge(box, job, timeout_seconds=self.box.timeout_seconds)
        except JobTooLargeError as err:
            return too_large(err, sample)
        except AgentFilesError as err:
            return unusable(err, sample)
        return self._graded(verdict, job, sample)

    @property
    def uses_files(self) -> bool:
        """Whether the agent's files are tested."""
        return isinstance(self.how, CommandTests) or bool(self.how.file)

    def job(self, sample: Sample) -> dict[str, object] | Graded:
        """Return the work for the box, or what is found without one."""
        if isinstance(self.how, CommandTests):
            return {
                "task": "command",
                "command": list(self.how.command),
                "remove": list(self.how.remove),
                "assets": rendered(self.assets, sample),
                "folder": self.folder,
            }
        code = self.code(sample)
        if isinstance(code, Graded):
            return code
        return {
            "task": "tests",
            "folder": self.folder,
            "code": code,
            "tests": _tests(self.how, sample),
            "entry_point": self.how.entry_point.render(sample),
            "module_names": ["solution", *self._module_names()],
            "each": self.per_test,
            "assets": rendered(self.assets, sample),
            "memory_bytes": memory_of_code(self.box),
        }

    def code(self, sample: Sample) -> dict[str, object] | Graded:
        """Return what is tested, or the finding that there is none."""
        assert isinstance(self.how, CodeTests)
        lack = lacking(sample, self.how.setup, self.how.test, self.how.entry_point)
        if lack is not None:
            return lack
        setup = self.how.setup.render(sample)
        code = {"setup": setup, "code": "", "path": "", "folder": self.folder, "imports": True}
        if self.how.file:
            path = f"{self.folder.rstrip('/')}/{self.how.file}"
            return {**code, "path": path, "fenced": True}
        found = find_code(sample.output_text, self.how.entry_point.render(sample))
        if found is None:
            return _short_of(sample, OutcomeKind.FORMAT, "the response has no code")
        if len(found.text) > MAX_CODE:
            size = f"{len(found.text)} characters of code, at most {MAX_CODE} are run"
            return _short_of(sample, OutcomeKind.FORMAT, size)
        return {**code, "code": found.text, "fenced": found.fenced}

    def _graded(self, verdict: Verdict, job: Mapping[str, object], sample: Sample) -> Graded:
        if verdict.said is None:
            return _short_of(sample, OutcomeKind.REASONING, verdict.ended)
        if isinstance(self.how, CommandTests):
            return self._of_command(verdict.said, sample)
        if "broken" in verdict.said:
            broken = str(verdict.said["broken"])
            code = job["code"]
            assert isinstance(code, dict)
            prose = not code["fenced"] and broken.startswith("SyntaxError")
            kind = OutcomeKind.FORMAT if prose else OutcomeKind.REASONING
            return _short_of(sample, kind, f"the code does not load: {broken}")
        passed, total = int(str(verdict.said["passed"])), int(str(verdict.said["tests"]))
        if not total:
            raise _fault("test: holds no test: no assertion, no function test_*, no unittest case")
        return self._share(passed, total, str(verdict.said["failed"]), sample)

    def _of_command(self, said: Mapping[str, object], sample: Sample) -> Graded:
        assert isinstance(self.how, CommandTests)
        if "broken" in said:
            detail = f"the agent's files cannot be tested: {said['broken']}"
            return _short_of(sample, OutcomeKind.REASONING, detail)
        if said.get("unstarted"):
            raise _fault(f"command: cannot be started: {said['detail']}")
        tail = (
            str(said["detail"])[-200:].strip() or f"ended with {said['exit_code']}, without a word"
        )
        if said["exit_code"] is None:
            return _short_of(sample, OutcomeKind.REASONING, "the time limit passed")
        if not self.how.reports:
            passed = int(said["exit_code"] == 0)
            return self._share(passed, 1, "" if passed else tail, sample)
        report = said["report"]
        assert isinstance(report, list)
        passed, total = report
        if total == 0:
            return _short_of(sample, OutcomeKind.REASONING, f"no report of tests: {tail}")
        if said["exit_code"] != 0 and passed == total:
            return _short_of(
                sample, OutcomeKind.REASONING, f"ended with {said['exit_code']}: {tail}"
            )
        return self._share(passed, total, "" if passed == total else tail, sample)

    def _share(self, passed: int, total: int, failed: str, sample: Sample) -> Graded:
        explanation = (
            f"{passed} of {total} tests passed" if self.per_test or passed == total else ""
        )
        if failed:
            explanation = f"{explanation}; {failed}" if explanation else f"failed: {failed}"
        value = passed / total if self.per_test else float(passed == total)
        return Graded(
            value=value,
            kind=None if passed == total else sample.shortfall(OutcomeKind.REASONING),
            explanation=explanation,
            parts={"passed": float(passed), "tests": float(total)} if self.per_test else {},
        )

    def _module_names(self) -> list[str]:
        assert isinstance(self.how, CodeTests)
        return [PurePosixPath(self.how.file).stem] if self.how.file else []


def parse(fields: Fields, kinds: Kinds) -> TestsGrader:
    """Read the definition."""
    source = fields.choice("source", SOURCES, "response")
    fields.choice("language", LANGUAGES, "python")
    folder = path_field(fields, "folder", DEFAULT_FOLDER)
    if source == "files" and fields.has("command"):
        how: CodeTests | CommandTests = _parse_command(fields)
    else:
        how = _parse_code(fields, source)
    return TestsGrader(
        how=how,
        assets=asset_fields(fields, folder),
        folder=folder,
        per_test=fields.flag("per_test", False),
        box=box_fields(fields, timeout_seconds=10.0, memory_mb=1024),
    )


def too_large(err: JobTooLargeError, sample: Sample) -> Graded:
    """Return the finding for code that does not fit."""
    return _short_of(sample, OutcomeKind.FORMAT, f"code and tests are too large: {err}")


def memory_of_code(box: BoxFields) -> int:
    """Return what the code's process may take of the box: the judging process needs some too."""
    return int(0.75 * (box.memory_bytes or 0))


def _parse_command(fields: Fields) -> CommandTests:
    command = fields.texts("command")
    words = " ".join(command)
    if ("pytest" in words or "unittest" in words) and "{report}" not in words:
        fields.problems.add(
            fields.at("command"),
            "runs tests in one process with the agent's code, which could end it early with code 0: let it write a "
            "JUnit report (pytest --junitxml={report}), or give file and test",
        )
    remove = fields.texts("remove") if fields.has("remove") else HOSTILE
    return CommandTests(command=command, remove=remove)


def _parse_code(fields: Fields, source: str) -> CodeTests:
    file = fields.text("file") if source == "files" else ""
    if file and (file.startswith("/") or not is_sound_path(f"/{file}")):
        fields.problems.add(fields.at("file"), f"must be a path in folder, found {shown(file)}")
    listed = fields.has("test_list")
    return CodeTests(
        setup=code_field(fields, "setup", ""),
        entry_point=code_field(fields, "entry_point", ""),
        test=code_field(fields, "test", "" if listed else None),
        test_list=_parse_list(fields) if listed else None,
        file=file,
    )


def _parse_list(fields: Fields) -> Template | tuple[Template, ...]:
    if isinstance(fields.values["test_list"], str):
        template = code_field(fields, "test_list")
        if len(template.pieces) != 3 or template.pieces[0].strip() or template.pieces[2].strip():
            fields.problems.add(
                fields.at("test_list"),
                "must be a list of texts, or one hole such as {{item.test_list}}",
            )
        return template
    return tuple(code_template(fields, "test_list", text) for text in fields.texts("test_list"))


def _tests(how: CodeTests, sample: Sample) -> list[list[str]]:
    """Return tests by name; what comes before a list has none."""
    test = how.test.render(sample)
    if how.test_list is None:
        return [["test", test]]
    if isinstance(how.test_list, tuple):
        listed: object = [template.render(sample) for template in how.test_list]
    else:
        listed = how.test_list.value(sample)
    if (
        not isinstance(listed, list | tuple)
        or not listed
        or not all(isinstance(t, str) for t in listed)
    ):
        raise GradingFaultError(
            f"test_list: must name a list of texts in the task, found {shown(listed)}",
            kind=GraderErrorKind.REFERENCE,
            retryable=False,
            client=True,
        )
    named = [[f"test_list[{index}]", text] for index, text in enumerate(listed)]
    return [["", test], *named] if test.strip() else named


def _short_of(sample: Sample, kind: OutcomeKind, explanation: str) -> Graded:
    return Graded(value=0.0, kind=sample.shortfall(kind), explanation=explanation)


def _fault(detail: str) -> GradingFaultError:
    return GradingFaultError(detail, kind=GraderErrorKind.CODE, retryable=False, client=True)
