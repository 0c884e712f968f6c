"""Commands over files that others wrote: what is hostile goes, the grader's own files are laid, then it runs."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

from grader.boxed.remote import end_children

_TAIL_BYTES = 4000
_DEEPEST = 10_000
"""Folders inside each other are walked by recursion; a path has at most 4096 bytes."""
_MAX_REPORT_BYTES = 4 << 20


def lay(folder: str, remove: list[Any], assets: dict[str, Any]) -> None:
    """Remove what the patterns name, then write files; nothing of the folder's owner runs meanwhile.

    A link, file or folder in the way of an asset is removed, so nothing is written through it.
    """
    sys.setrecursionlimit(_DEEPEST)
    if not os.path.isdir(folder) or os.path.islink(folder):
        _remove(folder)
        os.makedirs(folder)
    for top, folders, files in os.walk(folder) if remove else ():
        for name in folders + files:
            path = os.path.join(top, name)
            relative = os.path.relpath(path, folder)
            if any(fnmatch.fnmatch(relative, p) or fnmatch.fnmatch(name, p) for p in remove):
                _remove(path)
        folders[:] = [name for name in folders if os.path.isdir(os.path.join(top, name))]
    for path, text in assets.items():
        parent = os.path.dirname(path)
        parts = parent.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            above = "/" + "/".join(parts[:end])
            inside = above.startswith(folder.rstrip("/") + "/")
            if inside and os.path.lexists(above) and not stat.S_ISDIR(os.lstat(above).st_mode):
                _remove(above)
        os.makedirs(parent, exist_ok=True)
        _remove(path)
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the command; return how it ended, the end of its output, its time and what its report counts."""
    # What the command makes of this folder is never walked again: the box ends with it.
    report = os.path.join(tempfile.mkdtemp(), "report.xml")
    argv = [part.replace("{report}", report) for part in job["command"]]
    with tempfile.TemporaryFile() as output:
        begun = time.perf_counter()
        try:
            process = subprocess.Popen(
                argv,
                cwd=job["folder"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        except OSError as err:
            # A program in the folder is the agent's to leave; any other the definition's to name.
            theirs = "/" in argv[0]
            ended = {"exit_code": 127, "detail": str(err), "seconds": 0.0, "report": (0, 0)}
            return ended if theirs else {**ended, "unstarted": True}
        exit_code: Any = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            exit_code = process.wait(job["timeout_seconds"])
        seconds = time.perf_counter() - begun
        process.kill()
        process.wait()
        end_children()
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _TAIL_BYTES))
        tail = output.read().decode("utf-8", "replace")
        counts = read_report(_read(report))
        return {"exit_code": exit_code, "detail": tail, "seconds": seconds, "report": counts}


def _read(path: str) -> str:
    """Return a report; empty if there is none, or it is no plain file of a sound size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(_MAX_REPORT_BYTES).decode("utf-8", "replace")


def read_report(text: str) -> tuple[int, int]:
    """Return how many test cases of a JUnit report passed, and of how many; (0, 0) if it is none."""
    passed, total, bad = 0, 0, False

    def start(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal total, bad
        if name == "testcase":
            total, bad = total + 1, False
        elif name in ("failure", "error", "skipped"):
            bad = True

    def end(name: str) -> None:
        nonlocal passed
        passed += name == "testcase" and not bad

    def refuse(*_: object) -> None:
        raise ValueError("a report defines no entities")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError):
        return 0, 0
    return passed, total
