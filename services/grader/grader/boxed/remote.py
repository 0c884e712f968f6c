"""The code under test as the tests see it: names that behave like its functions and classes, in another process.

Data comes by value. What is no data stays with the code, and a `Remote` stands for it; its operations return data or
further remotes. There is no arithmetic and no comparison of a remote with data, so nothing of the code's own making
can pass for a right value.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from grader.boxed import wire
from grader.boxed.start import BOOT

IMPORTABLE = frozenset(
    """bisect cmath collections copy datetime decimal fractions functools heapq itertools json math numbers operator
    random re statistics string sys textwrap time typing""".split()  # noqa: SIM905  # a list of 22 quoted words reads worse
)
"""Modules that tests may use because the code imported them; the tests get their own."""


MODULES = ("grader", "grader.boxed", "grader.boxed.wire", "grader.boxed.candidate")
"""What the code's process is made of."""


_ENDING_SECONDS = 3.0


class Deadline(BaseException):
    """The time for the tests is over."""


class Unfit(Exception):
    """The tests themselves ask for what cannot be done."""


class Unloadable(Exception):
    """The code could not be loaded."""


class Link:
    """A process with the code under test."""

    def __init__(self, job: dict[str, Any]) -> None:
        """Start the process; `job` has `modules` and `memory_bytes`."""
        requests, self._send_to = os.pipe()
        self._receive_from, replies = os.pipe()
        self.over = False
        """Set when time is up: nothing is asked any more."""
        self.gone = False
        """Whether the process was found to have ended."""
        self._locals: list[Callable[..., Any]] = []
        self._exceptions: dict[int, type] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-c", BOOT, str(requests)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(requests, replies),
            cwd="/",
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        os.close(requests)
        os.close(replies)
        start = {
            "main": "grader.boxed.candidate",
            "modules": {name: text for name, text in job["modules"].items() if name in MODULES},
            "memory_bytes": job["memory_bytes"],
            "requests": requests,
            "replies": replies,
        }
        wire.send(self._send_to, start)

    def load(self, code: dict[str, Any], wanted: list[str]) -> tuple[dict[str, Any], Remote]:
        """Load code and return what the tests may see of it, by name, and its module.

        `code` has setup, code, path, folder, and whether it imports modules from the folder (imports).

        Raises:
            Unfit: the setup broke.
            Unloadable: the code did.
            Closed: the process is gone.
            Exception: the process answered what cannot be an answer.
        """
        # The setup's process has seen nothing of the code yet, so what it says of the setup is true.
        if code["setup"]:
            reply = self._ask({"op": "setup", "setup": code["setup"]})
            if "raised" in reply:
                raise Unfit(f"setup: {reply['raised']['type']}: {reply['raised']['text']}")
        request = {key: code[key] for key in ("code", "path", "folder", "imports")}
        reply = self._ask({"op": "load", "wanted": wanted, **request})
        if "raised" in reply:
            raise Unloadable(f"{reply['raised']['type']}: {reply['raised']['text']}")
        names = {}
        for name, node in reply["names"].items():
            if name not in wanted:
                continue  # the code names no other things for the tests
            if isinstance(node, dict) and "import" in node:
                if node["import"] == name and name in IMPORTABLE:
                    names[name] = __import__(name)
            else:
                names[name] = self._exported(node)
        return names, self._decode(reply["module"])

    def do(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """Have something done and return its value.

        Raises:
            Closed: the process is gone.
            Exception: what the code raised, as the nearest builtin exception.
        """
        request = {
            "op": op,
            "args": [self._encode(value) for value in args],
            "kwargs": {name: self._encode(value) for name, value in kwargs.items()},
        }
        reply = self._ask(request)
        if "raised" in reply:
            raise self._exception(reply["raised"])
        for index, node in reply.get("changed", {}).items():
            _replace(args[int(index)], self._decode(node))
        return self._decode(reply["value"])

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def close(self) -> None:
        """End the process and all that it has started."""
        for descriptor in (self._send_to, self._receive_from):
            os.close(descriptor)
        self._process.kill()
        self._process.wait()
        end_children()

    def processor_seconds_if_runnable(self) -> float | None:
        """Return the processor time that the process has had if it could use more; None if it waits or is gone."""
        try:
            with open(f"/proc/{self._process.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        if fields[0] != b"R":
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        while True:
            if self.over:
                raise Deadline
            try:
                wire.send(self._send_to, request)
                reply = wire.receive(self._receive_from)
            except wire.Closed:
                self.gone = True
                raise
            if not isinstance(reply, dict):
                raise ValueError("the code's process answered something else")
            if "call_back" not in reply:
                return reply
            request = self._called_back(reply)

    def _called_back(self, reply: dict[str, Any]) -> dict[str, Any]:
        function = self._locals[reply["call_back"]]
        try:
            value = function(*(self._decode(node) for node in reply["args"]))
            return {"value": self._encode(value)}
        except (
            Exception
        ) as error:  # what the tests' own function raises goes to the code that called it
            base = type(error).__name__
            base = base if isinstance(getattr(builtins, base, None), type) else "Exception"
            return {"raised": {"base": base, "text": str(error)}}

    def _exported(self, node: Any) -> Any:
        if isinstance(node, dict) and "exception" in node:
            number, name, base = node["exception"]
            made = type(str(name), (_exception_class(base),), {})
            self._exceptions[int(number)] = made
            return made
        return self._decode(node)

    def _exception(self, raised: dict[str, Any]) -> BaseException:
        try:
            args = [self._decode(node) for node in raised["args"]]
            kind = self._exceptions.get(raised["number"]) or _exception_class(raised["base"])
            made = kind(*args)
        except (KeyError, ValueError, TypeError):
            made = None
        return made if isinstance(made, BaseException) else Exception(str(raised))

    def _encode(self, value: Any) -> Any:
        return wire.encode(value, self._named, wire.TO_CODE)

    def _named(self, value: Any) -> dict[str, Any]:
        if type(value) is Remote:
            return {"theirs": object.__getattribute__(value, "_number")}
        for number, kind in self._exceptions.items():
            if value is kind:
                return {"theirs": number}
        if isinstance(value, BaseException):
            raise TypeError("an exception cannot be handed to the code")
        if callable(value) and not isinstance(value, type):
            self._locals.append(value)
            return {"mine": len(self._locals) - 1}
        raise Unfit(f"a {type(value).__name__} of the tests cannot be handed to the code")

    def _decode(self, node: Any) -> Any:
        return wire.decode(node, self._known, wire.FROM_CODE)

    def _known(self, kind: str, content: Any) -> Remote:
        if kind != "theirs" or type(content) is not int:
            raise ValueError(f"no kind of value: {kind}")
        return Remote(self, content)


class Remote:
    """Something of the code's that is no data."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        """Stand for an object of the link's process."""
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        return self._link.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.do("setattr", self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self._link.do("call", self, *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._link.do("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._link.do("setitem", self, key, value)

    def __iter__(self) -> Any:
        return self._link.do("iter", self)

    def __next__(self) -> Any:
        return self._link.do("next", self)

    def __len__(self) -> int:
        found = self._link.do("len", self)
        if type(found) is not int:
            raise TypeError("a length must be an integer")
        return found

    def __bool__(self) -> bool:
        return self._link.do("bool", self) is True

    def __str__(self) -> str:
        return _text(self._link.do("str", self))

    def __repr__(self) -> str:
        return _text(self._link.do("repr", self))

    def __eq__(self, other: object) -> bool:
        if type(other) is not Remote:
            return False
        return self._number == other._number or self._link.do("equal", self, other) is True

    def __lt__(self, other: object) -> bool:
        if type(other) is not Remote:
            raise TypeError("an object of the code can be ordered among its own kind only")
        return self._link.do("less", self, other) is True

    def __hash__(self) -> int:
        return hash(self._number)

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Remote and self._link.do("instance", value, self) is True


def end_children() -> None:
    """Kill all children, and theirs, which become children as their parents die; gives up after a few seconds."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while time.monotonic() < deadline:
        children = list(_children())
        if not children:
            return
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _children() -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = file.read().rpartition(b")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == os.getpid():
            yield int(name)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not a text")
    return value


def _exception_class(name: Any) -> type:
    found = getattr(builtins, str(name), None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else Exception


def _replace(target: Any, value: Any) -> None:
    """Make a list, dict, set or similar hold what another of its kind holds."""
    if type(value) is not type(target):
        raise ValueError("a call changed an argument into something else")
    target.clear()
    if isinstance(target, (list, bytearray)) or hasattr(target, "extend"):
        target.extend(value)
    else:
        target.update(value)
