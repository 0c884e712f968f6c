"""Evaluates arithmetic exactly and within bounds: numbers, operators, a few functions, nothing else.

Integers, decimals and fractions are exact; only roots, powers with fractional exponents and the constants are floating
point. Sizes of expressions, exponents and results are bounded, so no expression costs more than milliseconds.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction

MAX_CHARACTERS = 1000
MAX_NODES = 300
MAX_BITS = 4096
"""Of numerator and of denominator of any value on the way."""
EXACT_DECIMALS = 12
"""A terminating decimal with more places is rounded."""
SIGNIFICANT_DIGITS = 10
"""Digits of a rounded result."""

Value = Fraction | float


class ArithmeticProblem(ValueError):
    """An expression that cannot be evaluated; the message is for its author."""


_SIGNS = {
    ord("\u00d7"): "*", ord("\u22c5"): "*", ord("\u00f7"): "/", ord("\u2212"): "-", ord("\u2013"): "-",
    ord("\u2014"): "-", ord("$"): " ", ord("\u20ac"): " ", ord("\u00a3"): " ",
}  # fmt: skip
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_PERCENT = re.compile(r"(?<=[\d)])%(?=\s*(?:[-+*/)]|$))")
# 12x3 is a product; 0x10 is a hexadecimal number.
_TIMES = re.compile(r"(?<=[\d)])(?!(?<=(?<![\w.])0)[xX]\d)\s*[xX]\s*(?=[\d(])")


def evaluate(expression: str) -> Value:
    """Evaluate an expression.

    Raises:
        ArithmeticProblem: it is no arithmetic, divides by zero or is too large.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ArithmeticProblem(
            f"the expression has {len(expression)} characters; at most {MAX_CHARACTERS} are allowed"
        )
    source = _prepare(expression)
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as err:
        raise ArithmeticProblem(f"{expression.strip()!r} is not an arithmetic expression") from err
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise ArithmeticProblem(f"the expression has more than {MAX_NODES} parts")
    return _Evaluation(source).value(tree.body)


def show(value: Value) -> str:
    """Return a value as plainly as possible: 72 and not 72.0, 0.125, 0.3333333333."""
    if isinstance(value, float):
        if value == int(value) and abs(value) < 1e15:
            return str(int(value))
        return f"{value:.{SIGNIFICANT_DIGITS}g}"
    if value.denominator == 1:
        return str(value.numerator)
    decimals = _decimal_places(value.denominator)
    if decimals is not None and decimals <= EXACT_DECIMALS:
        return _with_point(value.numerator * 10**decimals // value.denominator, decimals)
    if 1e-4 <= abs(value) < 1e15:
        places = max(1, SIGNIFICANT_DIGITS - len(str(abs(int(value)))) * (abs(value) >= 1))
        return _with_point(round(value * 10**places), places)
    if value == 0 or 1e-300 < abs(value) < 1e300:
        return f"{float(value):.{SIGNIFICANT_DIGITS}g}"
    return _beyond_float(value)


def _beyond_float(value: Fraction) -> str:
    with localcontext() as context:
        context.prec = SIGNIFICANT_DIGITS
        rounded = Decimal(value.numerator) / Decimal(value.denominator)
        return f"{rounded.normalize():e}"


def _prepare(expression: str) -> str:
    source = expression.translate(_SIGNS).strip().rstrip("=").strip()
    if not re.search(r"[a-wyzA-WYZ]", source):
        source = _THOUSANDS.sub(lambda m: m.group().replace(",", ""), source)
    source = _TIMES.sub("*", source).replace("^", "**")
    return _PERCENT.sub("/100", source).replace("\n", " ")


def _decimal_places(denominator: int) -> int | None:
    """Return how many decimals a fraction needs, None if no number of them is enough."""
    twos = fives = 0
    while denominator % 2 == 0:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0:
        denominator, fives = denominator // 5, fives + 1
    return max(twos, fives) if denominator == 1 else None


def _with_point(digits: int, places: int) -> str:
    text = str(abs(digits)).rjust(places + 1, "0")
    whole, decimals = text[:-places], text[-places:].rstrip("0")
    return f"{'-' if digits < 0 else ''}{whole}{'.' if decimals else ''}{decimals}"


class _Evaluation:
    """Walks one parsed expression."""

    def __init__(self, source: str) -> None:
        self._source = source

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand = self.value(node.operand)
            return -operand if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp):
            return _operate(node.op, self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Name) and node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if isinstance(node, ast.Call):
            return self._call(node)
        what = ast.get_source_segment(self._source, node) or type(node).__name__
        raise ArithmeticProblem(
            f"{what!r} is not allowed; use numbers, + - * / // % **, brackets and "
            f"{', '.join(sorted(_FUNCTIONS))}"
        )

    def _constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise ArithmeticProblem(f"{node.value!r} is not a number")
        if isinstance(node.value, int):
            return _bounded(Fraction(node.value))
        written = ast.get_source_segment(self._source, node) or repr(node.value)
        mantissa, _, exponent = written.replace("_", "").lower().partition("e")
        if len(exponent) > 5 or abs(int(exponent or 0)) > 1000:
            raise ArithmeticProblem(f"{written} has too large an exponent")
        return _bounded(Fraction(mantissa) * Fraction(10) ** int(exponent or 0))

    def _call(self, node: ast.Call) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        function = _FUNCTIONS.get(name)
        if function is None or node.keywords:
            known = ", ".join(sorted(_FUNCTIONS))
            raise ArithmeticProblem(f"{name or 'this'!r} is no function here; known are {known}")
        arguments = [self.value(argument) for argument in node.args]
        if not arguments:
            raise ArithmeticProblem(f"{name} needs a number")
        try:
            return _bounded(function(arguments))
        except (TypeError, IndexError, ValueError, ArithmeticError) as err:
            raise ArithmeticProblem(f"{name} cannot take these arguments: {err}") from err


def _operate(operator: ast.operator, left: Value, right: Value) -> Value:
    if isinstance(operator, ast.Pow):
        return _power(left, right)
    if isinstance(operator, ast.Div | ast.FloorDiv | ast.Mod) and right == 0:
        raise ArithmeticProblem("division by zero")
    operation = _OPERATIONS.get(type(operator))
    if operation is None:
        raise ArithmeticProblem("only + - * / // % and ** are allowed")
    try:
        if isinstance(left, float) is isinstance(right, float):
            return _bounded(operation(left, right))
        # A fraction may lie beyond what a float holds, so only the result becomes one.
        exact = operation(Fraction(left), Fraction(right))
        return _bounded(exact if isinstance(operator, ast.FloorDiv) else float(exact))
    except ArithmeticError as err:
        raise ArithmeticProblem("the result is too large") from err


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        power = exponent.numerator
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base == 0 and power < 0:
            raise ArithmeticProblem("division by zero")
        if abs(power) > MAX_BITS or bits * abs(power) > 2 * MAX_BITS:
            raise ArithmeticProblem("the power is too large")
        return _bounded(Fraction(base**power))
    root = _exact_root(base, exponent)
    if root is not None:
        return root
    try:
        result = float(base) ** float(exponent)
    except (OverflowError, ZeroDivisionError) as err:
        raise ArithmeticProblem("the power is too large or divides by zero") from err
    if isinstance(result, complex):
        raise ArithmeticProblem("a root of a negative number")
    return _bounded(result)


def _exact_root(base: Value, exponent: Value) -> Fraction | None:
    """The square root of a square, exactly."""
    if exponent != Fraction(1, 2) or not isinstance(base, Fraction) or base < 0:
        return None
    upper, lower = math.isqrt(base.numerator), math.isqrt(base.denominator)
    if upper * upper == base.numerator and lower * lower == base.denominator:
        return Fraction(upper, lower)
    return None


def _bounded(value: Value) -> Value:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ArithmeticProblem("the result is too large")
        return value
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ArithmeticProblem("the result has too many digits")
    return value


def _round(arguments: list[Value]) -> Value:
    places = int(arguments[1]) if len(arguments) > 1 else 0
    if abs(places) > 100:
        raise ValueError("more than 100 places")
    value = arguments[0]
    scaled = (value if isinstance(value, Fraction) else Fraction(value)) * Fraction(10) ** places
    # Halves go away from zero, as people round, not to even.
    whole = math.floor(abs(scaled) + Fraction(1, 2))
    return Fraction(whole if scaled >= 0 else -whole) / Fraction(10) ** places


_OPERATIONS: Mapping[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
_FUNCTIONS: Mapping[str, Callable[[list[Value]], Value]] = {
    "abs": lambda a: a[0] if a[0] >= 0 else -a[0],
    "ceil": lambda a: Fraction(math.ceil(a[0])),
    "floor": lambda a: Fraction(math.floor(a[0])),
    "max": max,
    "min": min,
    "round": _round,
    "sqrt": lambda a: _power(a[0], Fraction(1, 2)),
    "sum": lambda a: sum(a, Fraction(0)),
}
