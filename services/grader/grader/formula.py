"""Formulas of `multi`: `calculate_output`, arithmetic over the names of its graders.

Operators + - * / // % ^ (and **), comparisons, `a if c else b`, and, or, not; functions min, max, abs, floor, ceil,
exp, sqrt, log. Read and evaluated by simpleeval: no attribute, no subscript, no name but those of the graders.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import simpleeval  # type: ignore[import-untyped]  # simpleeval ships no types

FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
MAX_CHARACTERS = 2000
_NUM_ARGUMENTS = {
    "min": range(2, MAX_CHARACTERS),
    "max": range(2, MAX_CHARACTERS),
    "log": range(1, 3),
}
"""Of functions that take not exactly one."""
MAX_DEPTH = 200
"""Operations inside operations; a sum of so many terms is as deep."""


class FormulaError(ValueError):
    """The text is no formula, or has no finite value for these numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A checked formula."""

    text: str
    names: tuple[str, ...]
    """The graders that it reads, in the order of the text."""

    def value(self, values: Mapping[str, float]) -> float:
        """Return the formula's value.

        Raises:
            FormulaError: it has none, for example after a division by zero.
        """
        evaluator = simpleeval.SimpleEval(
            operators={**simpleeval.DEFAULT_OPERATORS, ast.Pow: _power},
            functions=dict(FUNCTIONS),
            names={name: values[name] for name in self.names},
        )
        try:
            found = evaluator.eval(_python(self.text))
            number = float(found)
        except (
            ArithmeticError,
            ValueError,
            TypeError,
            RecursionError,
            simpleeval.InvalidExpression,
        ) as err:
            raise FormulaError(f"{self.text} has no value here: {err}") from err
        if not math.isfinite(number):
            raise FormulaError(f"{self.text} is {number} here, which is not a finite number")
        return number


def parse_formula(text: str, known: Mapping[str, object]) -> Formula:
    """Check a formula.

    Args:
        text: the formula.
        known: by the names of graders that it may read.

    Raises:
        FormulaError: it is too long, is no formula, or names something unknown.
    """
    if len(text) > MAX_CHARACTERS:
        raise FormulaError(f"has {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    try:
        tree = ast.parse(_python(text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise FormulaError(f"is no formula: {err}") from err
    depth = _depth(tree)
    if depth > MAX_DEPTH:
        raise FormulaError(f"is {depth} operations deep, at most {MAX_DEPTH} are allowed")
    names: list[str] = []
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise FormulaError(f"may not use {type(node).__name__}; see the list of operators")
        if isinstance(node, ast.Constant) and not isinstance(node.value, int | float):
            raise FormulaError(f"may hold numbers and names of graders, found {node.value!r}")
        if isinstance(node, ast.Call) and (
            not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords
        ):
            raise FormulaError(f"may call {', '.join(FUNCTIONS)} only")
        if isinstance(node, ast.Call) and len(node.args) not in _arguments_of(node.func):
            raise FormulaError(
                f"calls a function with {len(node.args)} numbers: {ast.unparse(node)}"
            )
        if isinstance(node, ast.Name) and node not in called and node.id not in names:
            names.append(node.id)
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        raise FormulaError(f"names {', '.join(unknown)}, and the graders are {listed}")
    if not names:
        raise FormulaError("names no grader")
    return Formula(text=text, names=tuple(names))


def _arguments_of(function: ast.expr) -> range:
    assert isinstance(function, ast.Name)
    return _NUM_ARGUMENTS.get(function.id, range(1, 2))


def _power(base: float, exponent: float) -> float:
    """Raise as floats: a whole number of millions of digits would take seconds and overflow afterwards."""
    raised: float = float(base) ** float(exponent)
    return raised


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def _python(text: str) -> str:
    return text.replace("^", "**")


_ALLOWED = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Constant,
    ast.Load,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Pow,
    ast.UAdd,
    ast.USub,
    ast.Not,
    ast.boolop,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
)
