"""A child process that compares two pieces of mathematics with math-verify and sympy.

Run as `python -m grader.answer.symbolic_worker`. It reads one JSON object per line, {"kind", "left", "right",
"seconds"}, and answers one, {"verdict": "equal" | "different" | "left_unreadable" | "right_unreadable" | "unsure" |
"timeout"}. Each question is worked on by a fork of its own, which is killed when the time is over: that takes
milliseconds, while starting anew would import sympy again. Only this file imports sympy and math-verify.
"""

import gc
import json
import logging
import os
import random
import re
import resource
import select
import signal
import sys
from typing import Any, NoReturn

import sympy  # type: ignore[import-untyped]  # sympy ships no types
from math_verify import LatexExtractionConfig, parse, verify

MEMORY_BYTES = 2 << 30
"""Address space that one comparison may use."""
GRACE_SECONDS = 5.0
"""Beyond the limit, before a fork whose parent is gone ends itself."""
DIGITS = 40
"""Digits of the numerical comparison."""
TOLERANCE = sympy.Float("1e-25")
NUM_POINTS = 4
"""Random points at which two formulas must agree."""
_BASE_NUMERAL = re.compile(r"\d_\{?\d")
_PLAIN_DECIMAL = re.compile(r"(?<![\w.])(\d+\.\d+|\.\d+)(?![\w.])")


def main() -> None:
    """Answer comparisons until standard input ends."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print(json.dumps({"ready": True}), flush=True)
    # What is imported is shared with the forks for good.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"verdict": _answer(request)}), flush=True)


def _answer(request: dict[str, Any]) -> str:
    """Compare in a fork; one that dies, of its memory limit for example, is unsure."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(request, writing)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], request["seconds"])
    verdict = os.read(reading, 100).decode() or "unsure" if ready else "timeout"
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return verdict


def _work(request: dict[str, Any], writing: int) -> NoReturn:
    # Ends this process by the kernel's hand if the one that would kill it is gone.
    signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_SECONDS)
    try:
        verdict = compare(request["kind"], request["left"], request["right"])
    # Third-party parsers raise anything on hostile input; it means "could not be read".
    except Exception:
        verdict = "unsure"
    os.write(writing, verdict.encode())
    os._exit(0)


def compare(kind: str, left: str, right: str) -> str:
    """Compare two formulas (kind `value`), or two left-minus-right sides up to a factor (kind `equation`)."""
    first, second = _read(left), _read(right)
    if first is None:
        return "left_unreadable"
    if second is None:
        return "right_unreadable"
    if kind == "equation":
        return "equal" if _proportional(first, second) else "different"
    if first.free_symbols != second.free_symbols:
        difference = sympy.simplify(first - second)
        return "equal" if difference == 0 else "different"
    if not _agree(first, second):
        return "different"
    if not first.free_symbols:
        return "equal"
    return (
        "equal"
        if verify(first, second, timeout_seconds=None) or _agree(first, second, 8)
        else "different"
    )


def _read(latex: str) -> Any:
    if _BASE_NUMERAL.search(latex):
        return None
    exact = _PLAIN_DECIMAL.sub(lambda m: _fraction(m.group()), latex)
    found = parse(
        f"${exact}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=0,
    )
    if not found or isinstance(found[0], str) or not isinstance(found[0], sympy.Expr):
        return None
    expression = found[0].doit() if hasattr(found[0], "doit") else found[0]
    if not _faithful(latex, expression):
        return None
    return expression.xreplace({f: sympy.Rational(str(f)) for f in expression.atoms(sympy.Float)})


def _fraction(decimal: str) -> str:
    """Write a decimal as a fraction, since the parser would round its roots and powers."""
    whole, _, places = decimal.partition(".")
    return f"\\frac{{{int(whole + places)}}}{{{10 ** len(places)}}}"


def _faithful(latex: str, expression: Any) -> bool:
    """Whether the parser kept what was written: no letter may vanish, or a fragment was parsed."""
    bare = re.sub(r"\\[a-zA-Z]+", " ", latex)
    letters = {c for c in bare if c.isascii() and c.isalpha()} - {"e", "i", "d"}
    names = "".join(str(symbol) for symbol in expression.free_symbols)
    return all(letter in names for letter in letters)


def _points(count: int) -> list[sympy.Rational]:
    rng = random.Random(20260131)
    return [sympy.Rational(rng.randrange(101, 997), rng.randrange(53, 101)) for _ in range(count)]


def _agree(first: Any, second: Any, points: int = NUM_POINTS) -> bool:
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if not symbols:
        return _close(first, second)
    values = _points(points * len(symbols))
    compared = 0
    for index in range(points):
        chosen = values[index * len(symbols) : (index + 1) * len(symbols)]
        at = dict(zip(symbols, chosen, strict=True))
        if not _close(first.subs(at), second.subs(at)):
            return False
        compared += 1
    return compared > 0


def _close(first: Any, second: Any) -> bool:
    a, b = sympy.N(first, DIGITS), sympy.N(second, DIGITS)
    if (
        not (a.is_number and b.is_number)
        or a.has(sympy.nan, sympy.zoo)
        or b.has(sympy.nan, sympy.zoo)
    ):
        return False
    if a.has(sympy.oo, -sympy.oo) or b.has(sympy.oo, -sympy.oo):
        return bool(a == b)
    difference, size = abs(a - b), max(abs(a), abs(b))
    return bool(difference <= TOLERANCE * size)


def _proportional(first: Any, second: Any) -> bool:
    if first.free_symbols != second.free_symbols or not first.free_symbols:
        return False
    ratio = sympy.simplify(first / second)
    return bool(ratio.is_number and ratio != 0 and ratio.is_finite)


if __name__ == "__main__":
    main()
