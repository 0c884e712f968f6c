"""Exact arithmetic on formulas: quotients of polynomials in symbols, pi, e, i and square roots of whole numbers.

A polynomial maps monomials to rational coefficients; a monomial is a square-free radicand and powers of atoms. Since
square roots of different square-free numbers are linearly independent over the rationals, two quotients without other
atoms are equal exactly if their cross products are the same. Functions, other roots and other powers become opaque
atoms named by their own normal form: the same name means equal, different names mean nothing.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial, gcd

from grader.answer.formula import DeclinedError, Node, UndefinedError

MAX_TERMS = 48
"""Polynomials with more terms are declined."""
MAX_PRODUCTS = 600
"""Products of polynomials with more pairs of terms are declined."""
MAX_DEGREE = 16
"""Higher powers of sums are declined."""
MAX_BITS = 8192
"""Longer coefficients are declined."""
MAX_BITS_OF_MANY = 256
"""Longer coefficients of polynomials with more than four terms are declined."""
MAX_RADICAND = 10**9
"""Square roots of larger numbers are declined."""
IMAGINARY = "i"
Monomial = tuple[int, tuple[tuple[str, int], ...]]
Polynomial = dict[Monomial, Fraction]
_ONE: Monomial = (1, ())


@dataclass(frozen=True, slots=True)
class Quotient:
    """One polynomial over another, which is not zero."""

    upper: Polynomial
    lower: Polynomial
    opaque: bool = False
    """Whether there are atoms whose difference means nothing."""


def normal_form(node: Node) -> Quotient:
    """Work out a formula.

    Raises:
        DeclinedError: it is too large, divides by zero or has no value.
    """
    if node.kind == "num":
        return _constant(node.value)
    if node.kind == "sym":
        return _atom(node.name)
    parts = [normal_form(part) for part in node.parts]
    if node.kind == "add":
        total = parts[0]
        for part in parts[1:]:
            total = _add(total, part)
        return total
    if node.kind == "mul":
        product = parts[0]
        for part in parts[1:]:
            product = _times(product, part)
        return product
    if node.kind == "div":
        return _times(parts[0], _inverse(parts[1]))
    if node.kind == "pow":
        return _power(parts[0], parts[1])
    if node.kind == "root":
        return _root(parts[0], parts[1])
    if node.kind in ("fact", "binom"):
        return _counted(node.kind, parts)
    return _opaque(f"{node.name}({_name(parts[0])})")


def same(first: Quotient, second: Quotient) -> bool:
    """Whether the cross products agree."""
    return _multiply(first.upper, second.lower) == _multiply(second.upper, first.lower)


def proportional(first: Quotient, second: Quotient) -> bool | None:
    """Whether one is a rational multiple of the other; None if that would take roots, or both are constant."""
    left, right = _multiply(first.upper, second.lower), _multiply(second.upper, first.lower)
    if not left or not right or not _symbols(left) or not _symbols(right):
        return None
    key = max(left)
    if key in right and left.keys() == right.keys():
        factor = left[key] / right[key]
        if all(left[m] == factor * right[m] for m in left):
            return True
    return None if any(radicand != 1 for radicand, _ in (*left, *right)) else False


def _symbols(polynomial: Polynomial) -> set[str]:
    names = {atom for _, atoms in polynomial for atom, _ in atoms}
    return names - {"\\pi", "e", IMAGINARY}


def _constant(value: Fraction) -> Quotient:
    return Quotient({_ONE: value} if value else {}, {_ONE: Fraction(1)})


def _atom(name: str) -> Quotient:
    return Quotient({(1, ((name, 1),)): Fraction(1)}, {_ONE: Fraction(1)})


def _opaque(name: str) -> Quotient:
    return Quotient({(1, ((name, 1),)): Fraction(1)}, {_ONE: Fraction(1)}, opaque=True)


def _name(value: Quotient) -> str:
    """A name that only equal values share."""
    return f"{sorted(value.upper.items())}/{sorted(value.lower.items())}"


def _rational(value: Quotient) -> Fraction | None:
    """The value, if it is a rational number."""
    if value.lower.keys() == {_ONE} and value.upper.keys() <= {_ONE}:
        return value.upper.get(_ONE, Fraction(0)) / value.lower[_ONE]
    return None


def _add(first: Quotient, second: Quotient) -> Quotient:
    if first.lower == second.lower:
        upper, lower = _sum(first.upper, second.upper), first.lower
    else:
        upper = _sum(_multiply(first.upper, second.lower), _multiply(second.upper, first.lower))
        lower = _multiply(first.lower, second.lower)
    return _reduced(upper, lower, first.opaque or second.opaque)


def _times(first: Quotient, second: Quotient) -> Quotient:
    upper = _multiply(first.upper, second.upper)
    lower = _multiply(first.lower, second.lower)
    return _reduced(upper, lower, first.opaque or second.opaque)


def _inverse(value: Quotient) -> Quotient:
    if not value.upper:
        raise UndefinedError("a division by zero")
    return _reduced(value.lower, value.upper, value.opaque)


def _reduced(upper: Polynomial, lower: Polynomial, opaque: bool) -> Quotient:
    """Divide by a rational denominator."""
    if lower.keys() == {_ONE} and lower[_ONE] != 1:
        factor = lower[_ONE]
        upper = {monomial: value / factor for monomial, value in upper.items()}
        lower = {_ONE: Fraction(1)}
    return Quotient(upper, lower, opaque)


def _sum(first: Polynomial, second: Polynomial) -> Polynomial:
    total = dict(first)
    for monomial, value in second.items():
        total[monomial] = total.get(monomial, Fraction(0)) + value
    return _checked(total)


def _multiply(first: Polynomial, second: Polynomial) -> Polynomial:
    if len(first) * len(second) > MAX_PRODUCTS:
        raise DeclinedError("too many products")
    product: Polynomial = {}
    for one, left in first.items():
        for other, right in second.items():
            monomial, factor = _joined(one, other)
            product[monomial] = product.get(monomial, Fraction(0)) + left * right * factor
    return _checked(product)


def _checked(polynomial: Polynomial) -> Polynomial:
    kept = {monomial: value for monomial, value in polynomial.items() if value}
    if len(kept) > MAX_TERMS:
        raise DeclinedError("too many terms")
    limit = MAX_BITS if len(kept) <= 4 else MAX_BITS_OF_MANY
    if any(
        max(v.numerator.bit_length(), v.denominator.bit_length()) > limit for v in kept.values()
    ):
        raise DeclinedError("numbers too long")
    return kept


def _joined(one: Monomial, other: Monomial) -> tuple[Monomial, int]:
    """Multiply two monomials: the square part of the radicands and the squares of i become a factor."""
    if one == _ONE:
        return other, 1
    if other == _ONE:
        return one, 1
    shared = gcd(one[0], other[0])
    radicand = one[0] // shared * (other[0] // shared)
    powers = dict(one[1])
    for atom, power in other[1]:
        powers[atom] = powers.get(atom, 0) + power
    factor = shared
    if powers.get(IMAGINARY, 0) > 1:
        factor *= (-1) ** (powers[IMAGINARY] // 2)
        powers[IMAGINARY] %= 2
    if radicand > MAX_RADICAND or any(power > 999 for power in powers.values()):
        raise DeclinedError("powers too high")
    return (radicand, tuple(sorted((a, p) for a, p in powers.items() if p))), factor


def _power(base: Quotient, exponent: Quotient) -> Quotient:
    power = _rational(exponent)
    if power is None:
        return _opaque(f"pow({_name(base)},{_name(exponent)})")
    if power.denominator != 1:
        if power.denominator == 2 and _rational(base) is not None and abs(power) < MAX_DEGREE:
            return _power(_root(_constant(Fraction(2)), base), _constant(power * 2))
        return _opaque(f"pow({_name(base)},{power})")
    count = abs(power.numerator)
    single = len(base.upper) == 1 and len(base.lower) == 1
    bits = max(
        (abs(v.numerator) * v.denominator).bit_length()
        for v in (*base.upper.values(), *base.lower.values())
    )
    if bits * count > MAX_BITS or count > (MAX_BITS if single else MAX_DEGREE):
        raise DeclinedError("a power too high")
    if power < 0:
        base = _inverse(base)
    if count == 0 and not base.upper:
        raise DeclinedError("zero to the power of zero")
    result = _constant(Fraction(1))
    square = base
    while count:
        if count & 1:
            result = _times(result, square)
        count >>= 1
        if count:
            square = _times(square, square)
    return Quotient(result.upper, result.lower, base.opaque)


def _root(degree: Quotient, radicand: Quotient) -> Quotient:
    order, value = _rational(degree), _rational(radicand)
    if order != 2 or value is None:
        return _opaque(f"root({_name(degree)},{_name(radicand)})")
    if value == 0:
        return _constant(Fraction(0))
    whole = abs(value.numerator) * value.denominator
    if whole > MAX_RADICAND:
        raise DeclinedError("a root of a large number")
    outside, inside = 1, whole
    divisor = 2
    while divisor * divisor <= inside:
        while inside % (divisor * divisor) == 0:
            inside //= divisor * divisor
            outside *= divisor
        divisor += 1
    atoms = ((IMAGINARY, 1),) if value < 0 else ()
    return Quotient({(inside, atoms): Fraction(outside, value.denominator)}, {_ONE: Fraction(1)})


def _counted(kind: str, parts: list[Quotient]) -> Quotient:
    numbers = [_rational(part) for part in parts]
    if any(n is None or n.denominator != 1 or not 0 <= n <= 400 for n in numbers):
        return _opaque(f"{kind}({','.join(_name(part) for part in parts)})")
    whole = [n.numerator for n in numbers if n is not None]
    return _constant(Fraction(factorial(whole[0]) if kind == "fact" else comb(whole[0], whole[1])))
