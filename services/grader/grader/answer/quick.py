"""Decides most comparisons of formulas within a millisecond, or not at all.

Equal is only said of equal normal forms, different only where the normal forms leave no doubt or the formulas differ
clearly at sample points. Everything else is left to the checker in its child process.
"""

import cmath
import hashlib
import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from grader.answer.formula import DeclinedError, Node, UndefinedError, parse_formula
from grader.answer.normal_form import normal_form, proportional, same

NUM_POINTS = 2
"""Points at which formulas with opaque parts are compared."""
CLEAR = 1e-6
"""Relative difference at a point that is no rounding."""
_CONSTANTS: Mapping[str, complex] = {"\\pi": math.pi, "e": math.e}
_CALLS: Mapping[str, Callable[[complex], complex]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "arcsin": cmath.asin, "arccos": cmath.acos,
    "arctan": cmath.atan, "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh, "ln": cmath.log,
    "exp": cmath.exp, "cot": lambda z: 1 / cmath.tan(z), "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z),
}  # fmt: skip


def compare_quickly(kind: str, left: str, right: str) -> bool | None:
    """Compare two formulas (kind `value`) or two left-minus-right sides (kind `equation`); None if undecided."""
    try:
        first, second = parse_formula(left), parse_formula(right)
        one, other = normal_form(first), normal_form(second)
        opaque = one.opaque or other.opaque
        if kind == "equation":
            found = proportional(one, other)
            return None if opaque and not found else found
        if same(one, other):
            return True
        if not opaque:
            return False
        return False if _differ(first, second) else None
    except UndefinedError:
        # Nothing equals what has no value.
        return False
    except (DeclinedError, ArithmeticError):
        return None


def approximate(latex: str) -> Fraction | None:
    """Return the real value of a formula without variables, to 12 digits; None if it has none."""
    try:
        node = parse_formula(latex)
        value = _value(node, _CONSTANTS, None)
    except (DeclinedError, ArithmeticError):
        return None
    return Fraction(f"{value.real:.12g}") if abs(value.imag) <= 1e-9 * abs(value) else None


def _differ(first: Node, second: Node) -> bool:
    """Whether two formulas have clearly different real values at some point."""
    for point in range(NUM_POINTS):
        left, right = _value(first, _CONSTANTS, point), _value(second, _CONSTANTS, point)
        size = max(abs(left), abs(right))
        if not 1e-6 < size < 1e9 or max(abs(left.imag), abs(right.imag)) > 1e-9 * size:
            return False
        if abs(left - right) > CLEAR * size:
            return True
    return False


def _value(node: Node, known: Mapping[str, complex], point: int | None) -> complex:
    """Evaluate a formula; no intermediate value may be so large that rounding matters.

    Raises:
        DeclinedError: there is no sound value.
    """
    if node.kind == "num":
        value: complex = float(node.value)
    elif node.kind == "sym":
        if node.name == "i" or (point is None and node.name not in known):
            raise DeclinedError("no real value")
        value = known[node.name] if node.name in known else _sampled(node.name, point)
    else:
        value = _operation(node, [_value(part, known, point) for part in node.parts])
    if abs(value) > 1e9 or value != value:
        raise DeclinedError("values too large to compare")
    return value


def _operation(node: Node, parts: list[complex]) -> complex:
    if node.kind == "add":
        return sum(parts)
    if node.kind == "mul":
        return math.prod(parts)
    if node.kind == "div":
        return parts[0] / parts[1]
    if node.kind == "pow":
        return parts[0] ** parts[1]
    if node.kind == "root":
        return parts[1] ** (1 / parts[0])
    if node.kind == "call" and node.name in _CALLS:
        return _CALLS[node.name](parts[0])
    raise DeclinedError(f"{node.kind} {node.name} is not evaluated here")


def _sampled(name: str, point: int | None) -> float:
    """A value between 1.2 and 3.2 that depends on nothing but the name and the point."""
    digest = hashlib.sha256(f"{name} {point}".encode()).digest()
    return 1.2 + 2 * int.from_bytes(digest[:4], "big") / 2**32
