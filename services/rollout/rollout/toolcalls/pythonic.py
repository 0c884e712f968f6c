"""Pythonic format: a list of Python calls with keyword arguments that are literals."""

import ast
import json
import math
import re
import warnings
from functools import partial
from typing import Any

from rollout.toolcalls.base import (
    CallError,
    CallErrorKind,
    CallProblem,
    ParsedCall,
    ParsedTurn,
    ToolTypes,
    attempt,
    checked_call,
    split_reasoning,
)


class PythonicParser:
    """Parses with Python's own grammar and evaluates nothing."""

    def __init__(self) -> None:
        """Compiles the pattern by which a list of calls begins."""
        self._begins = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")

    def parse(self, text: str, tools: ToolTypes | None) -> ParsedTurn:
        """Takes a turn apart; text that does not begin with a list of calls is content."""
        reasoning, rest = split_reasoning(text)
        source = rest.strip()
        if not self._begins.match(source):
            return ParsedTurn(content=source, reasoning=reasoning)
        end = source.rfind("]") + 1
        tree = _parse_list(source) or _parse_list(source[:end])
        if tree is None:
            kind = CallErrorKind.INVALID_SYNTAX if end else CallErrorKind.INCOMPLETE
            detail = "not a list of calls" if end else "the list of calls is cut off"
            error = CallError(kind=kind, detail=detail, raw=source)
            return ParsedTurn(content=source, reasoning=reasoning, calls=(error,))
        calls = tuple(
            attempt(partial(_read, node, tools), _source_of(source, node)) for node in tree.elts
        )
        failed = " ".join(call.raw for call in calls if isinstance(call, CallError))
        tail = "" if _parse_list(source) else source[end:].strip()
        return ParsedTurn(content=f"{failed} {tail}".strip(), reasoning=reasoning, calls=calls)


def _parse_list(source: str) -> ast.List | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Odd escapes in the model's strings are its own.
            body = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # Foreign text can be anything, also too deep for the parser.
    return body if isinstance(body, ast.List) else None


def _source_of(source: str, node: ast.expr) -> str:
    return ast.get_source_segment(source, node) or source


def _read(node: ast.expr, tools: ToolTypes | None) -> ParsedCall:
    if not isinstance(node, ast.Call):
        raise CallProblem(CallErrorKind.INVALID_SYNTAX, "an element of the list is not a call")
    name = _dotted(node.func)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise CallProblem(
            CallErrorKind.INVALID_SYNTAX, "arguments must be given by name, as in f(a=1)", name
        )
    arguments = {str(k.arg): _literal(k.value, str(k.arg), name) for k in node.keywords}
    return checked_call(name, arguments, tools)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise CallProblem(CallErrorKind.INVALID_SYNTAX, "the called thing is not a name")


def _literal(node: ast.expr, argument: str, name: str) -> Any:
    problem = CallProblem(
        CallErrorKind.NON_LITERAL_ARGUMENT,
        f"argument {argument!r} is not a literal that JSON can hold",
        name,
    )
    try:
        value = ast.literal_eval(node)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError, SyntaxError):
        raise problem from None
    if isinstance(value, float) and not math.isfinite(value):
        raise problem
    return value
