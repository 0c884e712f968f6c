"""The process that judges: it holds the tests, asks the code under test in another process, and writes the verdict.

The code under test cannot reach it: this process is not dumpable, so its memory and descriptors are closed to others
of the same user; tests, expected values and the nonce that marks the verdict never leave it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from grader.boxed import commands, wire
from grader.boxed.remote import Deadline, Link, Unfit, Unloadable
from grader.boxed.stopwatch import Stopwatch

_MAX_DETAIL = 300
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_ALARM_AGAIN_SECONDS = 0.25
"""Tests may catch everything, also the end of their time."""


def main(job: dict[str, Any]) -> None:
    """Judge, and write the verdict as the only output of this process."""
    verdict = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    _close_to_others()
    nonce = job["nonce"]
    verdict.write(nonce + " begun\n")
    verdict.flush()
    import json

    try:
        found = _laid(job) or _TASKS[job["task"]](job)
    except Unfit as err:
        found = {"fault": str(err)}
    except (OSError, MemoryError) as err:  # others of the same user may set this process's limits
        found = {"broken": _short(f"{type(err).__name__}: {err}")}
    except Exception as err:  # a defect of ours must come out as a fault, not as a missing verdict
        found = {"fault": f"the judging process broke: {type(err).__name__}: {err}"}
    signal.setitimer(signal.ITIMER_REAL, 0)
    verdict.write(nonce + " " + json.dumps(found) + "\n")
    verdict.flush()
    os._exit(0)


def _close_to_others() -> None:
    """Let nobody look into this process, and have what the code leaves behind become its children."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot be closed to others")


class Bench:
    """The time that the tests have, and the process with the code.

    The limit is one of the clock, but a machine that is busy with other work makes nobody's code wrong: a process that
    could run and was not let has longer, up to `patience` times the limit, until it has had that much processor time.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        """Start the clock."""
        self.job = job
        self.link: Link | None = None
        self.over = False
        self._begun = time.monotonic()
        self.interruptible = False
        signal.signal(signal.SIGALRM, self._time_is_over)
        signal.setitimer(signal.ITIMER_REAL, job["timeout_seconds"], _ALARM_AGAIN_SECONDS)

    def _time_is_over(self, number: int, frame: Any) -> None:
        if not self.over and self._starved():
            return  # the alarm comes again
        self.over = True
        if self.link is not None:
            self.link.over = True
        if self.interruptible:
            raise Deadline

    def _starved(self) -> bool:
        limit = self.job["timeout_seconds"]
        patient = time.monotonic() - self._begun < self.job["patience"] * limit
        if self.link is None or not patient:
            return False
        used = self.link.processor_seconds_if_runnable()
        return used is not None and used + time.process_time() < limit

    def attempt(self, run: Callable[[], Any]) -> Any:
        """Do something until time is up.

        Raises:
            Deadline: time is up.
            Closed: the code's process has ended.
        """
        try:
            self.interruptible = True
            if self.over:
                raise Deadline
            found = run()
            # Tests may have caught either, as they do where they expect an error.
            if self.over:
                raise Deadline
            if self.link is not None and self.link.gone:
                raise wire.Closed
            return found
        finally:
            self.interruptible = False

    def close(self) -> None:
        """Stop the clock and end the process with the code."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self.link is not None:
            self.link.close()

    def load(self, code: dict[str, Any], wanted: list[Any]) -> tuple[dict[str, Any], Any]:
        """Load code in a new process; return what tests see of it, and its module."""
        self.link = Link(self.job)
        return self.link.load(code, wanted)


def _tests(job: dict[str, Any]) -> dict[str, Any]:
    """Run tests one after the other; unless each counts, the first that fails is the last."""
    programs = [(name, _compiled(name, text)) for name, text in job["tests"]]
    trees = [ast.parse(text) for _, text in job["tests"]]
    _import_ahead(trees, job["module_names"])
    bench = Bench(job)
    try:
        seen = bench.attempt(lambda: bench.load(job["code"], _wanted(trees, job["entry_point"])))
    except Unfit:
        raise
    except Unloadable as err:
        return {"broken": _short(str(err))}
    except Deadline:
        return {"broken": "the time limit passed while it was loaded"}
    except Exception:  # whatever the code's process may have answered
        return {"broken": "its process ended itself while it was loaded"}
    namespace = _namespace(seen, job)
    results: list[dict[str, Any]] = []
    for name, program in programs:
        before = dict(namespace)
        result = _attempt(name or "test", partial(exec, program, namespace), bench)
        tests = _found(before, namespace, job) if result["passed"] else []
        # What comes before a list of tests, and holds none itself, counts only where it fails.
        if not result["passed"] or (name and not tests):
            results.append(result)
        for test_name, run in tests:
            if not _enough(results, job):
                results.append(_attempt(test_name, run, bench))
        if _enough(results, job) or not (name or result["passed"]):
            break
    failed = [f"{result['name']}: {result['detail']}" for result in results if not result["passed"]]
    return {
        "passed": len(results) - len(failed),
        "tests": len(results),
        "failed": _short(failed[0]) if failed else "",
    }


def _enough(results: list[Any], job: dict[str, Any]) -> bool:
    return not job["each"] and any(not result["passed"] for result in results)


def _compiled(name: str, text: str) -> Any:
    try:
        return compile(text, "<test>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as err:
        raise Unfit(f"{name or 'test'}: is no Python: {err}") from err


def _import_ahead(trees: list[Any], module_names: list[str]) -> None:
    """Import what tests import, before there is any code that might change it on the disk."""
    for tree in trees:
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if name and name not in module_names:
                    with contextlib.suppress(Exception):  # the tests say it themselves
                        __import__(name)


def _wanted(trees: list[Any], entry_point: str) -> list[Any]:
    """Return the names of the code's that tests may mean; builtins stay what they are."""
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.update(alias.name for alias in node.names)
    found = {name for name in found if not hasattr(builtins, name)}
    return sorted(found | ({entry_point} if entry_point else set()))


def _namespace(seen: tuple[Any, ...], job: dict[str, Any]) -> dict[str, Any]:
    """Return what tests start with: the code's names, and a module of them to import."""
    names, code = seen
    for name in job["module_names"]:
        module = _Module(name)
        module.__dict__.update(names, _hone_code=code)
        sys.modules[name] = module
    return {**names, "__name__": "__tests__", "__builtins__": builtins}


class _Module(types.ModuleType):
    """The code's module in the tests' process; what is not known yet is asked of the code."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_hone_code"], name)


def _found(before: dict[str, Any], namespace: dict[str, Any], job: dict[str, Any]) -> list[Any]:
    """Return the tests that test code has defined: functions, unittest cases, and HumanEval's check(candidate)."""
    tests: list[tuple[str, Callable[..., Any]]] = []
    for name, value in list(namespace.items()):
        if before.get(name) is value:
            continue
        if isinstance(value, types.FunctionType):
            if name == "check":
                tests.append((name, _checking(value, namespace, job["entry_point"])))
            elif name.startswith("test"):
                if value.__code__.co_argcount > len(value.__defaults__ or ()):
                    raise Unfit(f"{name} takes arguments, and there are no fixtures")
                tests.append((name, value))
        elif isinstance(value, type) and "unittest" in sys.modules:
            unittest = sys.modules["unittest"]
            if issubclass(value, unittest.TestCase):
                names = unittest.TestLoader().getTestCaseNames(value)
                tests += [(f"{name}.{each}", _case(value, each)) for each in names]
    return tests


def _checking(
    check: Callable[..., Any], namespace: dict[str, Any], entry_point: str
) -> Callable[..., Any]:
    if not entry_point:
        raise Unfit("the tests define check(candidate), and entry_point does not say what that is")

    def run() -> None:
        if entry_point not in namespace:
            raise NameError(f"the code defines no {entry_point}")
        check(namespace[entry_point])

    return run


def _case(kind: Any, name: str) -> Callable[..., Any]:
    def run() -> None:
        unittest = sys.modules["unittest"]
        result = unittest.TestResult()
        unittest.TestSuite([kind(name)]).run(result)
        failed = [text for _, text in result.errors + result.failures]
        if failed or result.unexpectedSuccesses:
            raise AssertionError(failed[0].strip().splitlines()[-1] if failed else name)

    return run


def _attempt(name: str, run: Callable[..., Any], bench: Bench) -> dict[str, Any]:
    """Run one test; whatever it raises means that it failed."""
    detail = ""
    try:
        bench.attempt(run)
    except Unfit:
        raise
    except BaseException as err:
        detail = _told(err, bench)
    return {"name": name, "passed": not detail, "detail": detail}


def _told(error: BaseException, bench: Bench) -> str:
    """Return what an error says; a part of it may be an object of the code's, which says it in its process."""
    try:
        if not isinstance(error, Deadline | wire.Closed):
            told: str = bench.attempt(lambda: _short(f"{type(error).__name__}: {error}"))
            return told
    except BaseException as another:
        error = another
    if isinstance(error, Deadline):
        return "the time limit passed"
    if isinstance(error, wire.Closed):
        return "the code's process ended itself"
    return "an error that cannot say what it is"


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode(
        "utf-8"
    )  # half a surrogate pair is no text for others
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 3] + "..."


def _timing(job: dict[str, Any]) -> dict[str, Any]:
    """Time a statement with the reference, if there is one, then with the code, each in a new process.

    What is timed is loading the code and running the statement, by this process's clock (`Stopwatch`). The code has not
    run in this box before the reference has, so it cannot have done anything to it.
    """
    job = {**job, "timeout_seconds": job["timeout_seconds"] / 2}  # for each of the two
    program = _compiled("call", job["statement"])
    wanted = _wanted([ast.parse(job["statement"])], job["entry_point"])
    seconds: dict[str, float] = {}
    for side in ("reference", "code"):
        if not job[side]:
            continue
        bench = Bench(job)
        try:
            seconds[side] = bench.attempt(partial(_timed, bench, job, side, program, wanted))
        except Unfit:
            raise
        except BaseException as err:
            text = _told(err, bench)
            if side == "reference":
                raise Unfit(f"reference: {text}") from err
            return {"seconds": seconds, "broken": text}
        bench.close()
    return {"seconds": seconds}


def _timed(bench: Bench, job: dict[str, Any], side: str, program: Any, wanted: list[str]) -> float:
    # What loads first is nothing, so that the start of the process is not timed.
    bench.load({**job[side], "code": "", "path": ""}, [])
    assert bench.link is not None
    watch = Stopwatch(bench.link.pid)
    namespace = _namespace(bench.link.load({**job[side], "setup": ""}, wanted), job)
    exec(program, namespace)
    return watch.seconds()


def _laid(job: dict[str, Any]) -> dict[str, Any] | None:
    """Lay the grader's files over the folder; return the verdict if that cannot be done."""
    try:
        commands.lay(job["folder"], job.get("remove", []), job["assets"])
    except Exception as err:  # a full disk, or a tree that nobody can walk: the agent left it so
        return {"broken": _short(f"{type(err).__name__}: {err}")}
    return None


def _command(job: dict[str, Any]) -> dict[str, Any]:
    """Run a command of the grader's over the agent's files."""
    try:
        return commands.run(job)
    except OSError as err:  # as above
        return {"broken": _short(f"{type(err).__name__}: {err}")}


_TASKS = {"tests": _tests, "timing": _timing, "command": _command}
