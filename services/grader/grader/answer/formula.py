r"""Parses the LaTeX of common answers into a small tree, or declines.

Numbers, letters, Greek letters, `\frac`, `\sqrt`, powers, products, sums, factorials, binomials and elementary
functions. Whatever has more than one reading (1/2x, \sin xy, 2\frac13\pi, f(x), words) is declined, as are formulas
that are long or deeply nested: the caller asks a heavier parser then.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_TOKENS = 300
"""Longer formulas are declined."""
MAX_DEPTH = 24
"""Deeper nested formulas are declined."""
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|(\\[a-zA-Z]+)|(\*\*|[a-zA-Z+*/^_(){}\[\]!,-]))")
_WORD = re.compile(
    r"(?<![\\a-zA-Z])(?:[a-zA-Z]{4,}|sin|cos|tan|cot|sec|csc|log|exp|ln|sqrt|lim|max|min|mod|gcd|lcm)(?![a-zA-Z])"
)
_GREEK = frozenset(
    "\\" + name
    for name in (
        "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta",
        "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi",
        "omega",
    )
)  # fmt: skip
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "exp")
)  # fmt: skip
_APPLIED = frozenset("fghFGHPTW")
"""Letters that before a bracket are more likely functions than factors."""


class DeclinedError(Exception):
    """The formula has several readings, or is none of the shapes that are read here."""


class UndefinedError(DeclinedError):
    """The formula divides by zero, so it has no value."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: num, sym, add, mul, div, pow, root, call, fact or binom, and what it works on."""

    kind: str
    parts: "tuple[Node, ...]" = ()
    name: str = ""
    """Of a symbol or function."""
    value: Fraction = Fraction(0)
    """Of a number."""


def parse_formula(latex: str) -> Node:
    """Parse a formula.

    Raises:
        DeclinedError: it is not one of the common shapes.
    """
    if _WORD.search(latex):
        raise DeclinedError("words")
    return _Parser(_tokens(latex)).whole()


def _tokens(latex: str) -> list[str]:
    tokens: list[str] = []
    position, end = 0, len(latex.rstrip())
    while position < end:
        match = _TOKEN.match(latex, position)
        if match is None or len(tokens) >= MAX_TOKENS:
            raise DeclinedError("a character that is no mathematics, or too many of them")
        token = next(group for group in match.groups() if group)
        tokens.append({"**": "^", "\\cdot": "*", "\\times": "*"}.get(token, token))
        position = match.end()
    return tokens


def _number(value: int) -> Node:
    return Node("num", value=Fraction(value))


class _Parser:
    """Recursive descent over a list of tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._sum()
        if self._peek():
            raise DeclinedError("a bracket that was not opened")
        return node

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._position += 1
        return token

    def _take(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._position += 1
        return True

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DeclinedError("nested too deeply")
        terms = [self._signed_product()]
        while self._peek() in ("+", "-"):
            terms.append(self._signed_product())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def _signed_product(self) -> Node:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._next() == "-"
        product = self._product()
        return Node("mul", (_number(-1), product)) if negative else product

    def _product(self) -> Node:
        node = self._power()
        divided = False
        while True:
            token = self._peek()
            if token == "*":
                self._next()
                node = Node("mul", (node, self._signed_power()))
            elif token == "/":
                self._next()
                node = Node("div", (node, self._signed_power()))
                divided = True
            elif token and token not in "+-)]},!":
                if divided or token[0].isdigit() or token[0] == ".":
                    raise DeclinedError("a product without a sign that has two readings")
                if token == "\\frac" and self._tokens[self._position - 1][-1].isdigit():
                    raise DeclinedError("a mixed number or a product")
                node = Node("mul", (node, self._power()))
            else:
                return node

    def _signed_power(self) -> Node:
        if self._take("-"):
            return Node("mul", (_number(-1), self._power()))
        return self._power()

    def _power(self) -> Node:
        base = self._base()
        while self._take("!"):
            base = Node("fact", (base,))
        if not self._take("^"):
            return base
        raised = Node("pow", (base, self._exponent()))
        if self._peek() in ("^", "!"):
            raise DeclinedError("a tower of powers")
        return raised

    def _exponent(self) -> Node:
        if self._peek() in ("{", "("):
            return self._group()
        if self._take("-"):
            return Node("mul", (_number(-1), self._base()))
        return self._base()

    def _group(self) -> Node:
        closing = {"{": "}", "(": ")", "[": "]"}[self._next()]
        node = self._sum()
        if self._next() != closing:
            raise DeclinedError("brackets that do not match")
        return node

    def _base(self) -> Node:
        token = self._peek()
        if token in ("(", "{", "["):
            return self._group()
        self._next()
        if token[:1].isdigit() or token[:1] == ".":
            if self._peek() == "_":
                raise DeclinedError("a numeral in another base")
            return Node("num", value=Fraction(token))
        if token in ("\\pi", "e", "i"):
            return self._symbol(token)
        if token in _GREEK or (len(token) == 1 and token.isalpha()):
            if token in _APPLIED and self._peek() == "(":
                raise DeclinedError("a function or a factor")
            return self._symbol(token)
        if token == "\\frac":
            return Node("div", (self._braced(), self._braced()))
        if token == "\\binom":
            return Node("binom", (self._braced(), self._braced()))
        if token == "\\sqrt":
            return self._root()
        if token[1:] in _FUNCTIONS:
            return self._call(token[1:])
        raise DeclinedError(f"{token or 'the end'} is not known here")

    def _braced(self) -> Node:
        if self._peek() != "{":
            raise DeclinedError("braces are missing")
        return self._group()

    def _symbol(self, token: str) -> Node:
        if not self._take("_"):
            return Node("sym", name=token)
        index = self._next()
        if index == "{":
            inner = []
            while self._peek() not in ("}", ""):
                inner.append(self._next())
            self._next()
            index = "".join(inner)
        if not re.fullmatch(r"[0-9a-zA-Z,]{1,8}", index):
            raise DeclinedError("an index that is a formula")
        return Node("sym", name=f"{token}_{index}")

    def _root(self) -> Node:
        degree = _number(2)
        if self._peek() == "[":
            degree = self._group()
        if self._peek() == "{":
            return Node("root", (degree, self._group()))
        radicand = self._next()
        if len(radicand) == 1 and radicand.isalpha():
            return Node("root", (degree, Node("sym", name=radicand)))
        if not radicand.isdigit():
            raise DeclinedError("a root of what is not clear")
        # Without braces LaTeX takes one digit; people mean the whole number.
        if len(radicand) > 1:
            raise DeclinedError("a root of one digit or of all")
        return Node("root", (degree, Node("num", value=Fraction(radicand))))

    def _call(self, name: str) -> Node:
        power, base = None, None
        if self._take("_"):
            base = self._exponent()
        if self._take("^"):
            power = self._exponent()
        argument = self._group() if self._peek() in ("(", "{") else self._bare_argument()
        node = Node("call", (argument,), name=name)
        if base is not None:
            if name != "log":
                raise DeclinedError("a function with an index")
            node = Node(
                "div", (Node("call", (argument,), name="ln"), Node("call", (base,), name="ln"))
            )
        if power is not None:
            if power.kind != "num" or power.value < 1:
                raise DeclinedError("a power of a function, or its inverse")
            node = Node("pow", (node, power))
        return node

    def _bare_argument(self) -> Node:
        factors = []
        if self._peek()[:1].isdigit():
            factors.append(self._base())
        if not factors or (
            self._peek() and self._peek() not in "+-*/^)]},!" and self._peek()[1:] not in _FUNCTIONS
        ):
            factors.append(self._base())
        following = self._peek()
        if following and following not in "+-)]}*," and following[1:] not in _FUNCTIONS:
            raise DeclinedError("where the argument of a function ends is not clear")
        return factors[0] if len(factors) == 1 else Node("mul", tuple(factors))
