"""The process of the code under test: loads it, and does with it what the tests ask for, one request at a time.

Whatever this process says is the code's own word: nothing here needs to withstand it.
"""

from __future__ import annotations

import builtins
import collections
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from grader.boxed import wire

NAME = "solution"
_MAX_TEXT = 2000


class Session:
    """Objects by number, and the pipes."""

    def __init__(self, requests: int, replies: int) -> None:
        """Hold nothing yet."""
        self._requests = requests
        self._replies = replies
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._module = types.ModuleType(NAME)
        sys.modules[NAME] = self._module

    def run(self) -> None:
        """Answer requests until the tests are done."""
        while True:
            request = wire.receive(self._requests)
            wire.send(self._replies, self._answer(request))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request["op"] == "setup":
                exec(
                    compile(request["setup"], "<setup>", "exec", dont_inherit=True),
                    self._module.__dict__,
                )
                return {"value": None}
            if request["op"] == "load":
                return self._load(request)
            args = [self._decode(node) for node in request["args"]]
            kwargs = {name: self._decode(node) for name, node in request["kwargs"].items()}
            value = _OPERATIONS[request["op"]](*args, **kwargs)
            reply = {"value": self._encode(value)}
            if request["op"] == "call":
                reply["changed"] = self._changes(request, args)
            return reply
        except wire.Closed:
            os._exit(1)
        except BaseException as error:  # also SystemExit: the tests say what it means
            return {"raised": self._described(error)}

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        module = self._module
        os.chdir(request["folder"])
        sys.path[0] = request["folder"] if request["imports"] else os.devnull
        text = request["code"]
        if request["path"]:
            module.__file__ = request["path"]
            with open(request["path"], "rb") as file:
                text = file.read()
        exec(compile(text, f"<{NAME}>", "exec", dont_inherit=True), module.__dict__)
        names = {
            name: self._exported(module.__dict__[name])
            for name in request["wanted"]
            if name in module.__dict__
        }
        return {"value": None, "names": names, "module": self._encode(module)}

    def _exported(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return {"import": value.__name__}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"exception": [self._number(value), value.__name__, _builtin_base(value)]}
        return self._encode(value)

    def _encode(self, value: Any, deepest: int = wire.FROM_CODE) -> Any:
        return wire.encode(value, lambda other: {"theirs": self._number(other)}, deepest)

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _decode(self, node: Any) -> Any:
        return wire.decode(node, self._known, wire.TO_CODE)

    def _known(self, kind: str, content: Any) -> Any:
        if kind == "theirs":
            return self._objects[content]
        if kind == "mine":
            return lambda *args: self._call_back(content, args)
        raise ValueError(f"no kind of value: {kind}")

    def _call_back(self, number: int, args: tuple[Any, ...]) -> Any:
        """Call a function that the tests handed over."""
        wire.send(self._replies, {"call_back": number, "args": [self._encode(a) for a in args]})
        reply = wire.receive(self._requests)
        while "op" in reply:  # the function itself uses the code under test
            wire.send(self._replies, self._answer(reply))
            reply = wire.receive(self._requests)
        if "raised" in reply:
            raise getattr(builtins, reply["raised"]["base"])(reply["raised"]["text"])
        return self._decode(reply["value"])

    def _changes(self, request: dict[str, Any], args: list[Any]) -> dict[str, Any]:
        """Return the arguments that the call changed, by position."""
        changed: dict[str, Any] = {}
        for index, (before, value) in enumerate(zip(request["args"], args, strict=True)):
            if isinstance(value, (list, dict, set, bytearray, collections.deque)):
                after = self._encode(value, wire.TO_CODE)
                if after != before:
                    changed[str(index)] = self._encode(value)
        return changed

    def _described(self, error: BaseException) -> dict[str, Any]:
        try:
            text = str(error)[:_MAX_TEXT]
            args = [self._encode(value) for value in error.args]
            if len(repr(args)) > _MAX_TEXT:
                args = [text]
        except BaseException:  # its own __str__ may do anything
            text, args = "", []
        return {
            "type": type(error).__name__[:200],
            "base": _builtin_base(type(error)),
            "number": self._numbers.get(id(type(error)), -1),
            "text": text,
            "args": args,
        }


def _builtin_base(kind: type) -> str:
    for base in kind.__mro__:
        if base.__module__ == "builtins" and getattr(builtins, base.__name__, None) is base:
            return str(base.__name__)
    return "Exception"


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": lambda value, key: value[key],
    "setitem": lambda value, key, new: value.__setitem__(key, new),
    "iter": iter,
    "next": next,
    "len": len,
    "str": str,
    "repr": repr,
    "bool": bool,
    "equal": lambda left, right: bool(left == right),
    "less": lambda left, right: bool(left < right),
    "instance": isinstance,
}


def main(job: dict[str, Any]) -> None:
    """Bound this process and serve."""
    import resource

    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, the tests outlive the code
    except OSError:
        pass
    if job["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [NAME]
    session = Session(job["requests"], job["replies"])
    try:
        session.run()
    except (wire.Closed, ValueError):
        os._exit(0)
