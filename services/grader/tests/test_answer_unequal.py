"""Generated pairs that differ, in random notations: none may be accepted; and pairs that are equal: all must be."""

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from grader.answer.judge import judge_answer
from grader.answer.symbolic import SymbolicProcess

ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
HAN = "\u96f6\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d"


def english(n: int) -> str:
    if n < 0:
        return f"minus {english(-n)}"
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{ONES[n // 100]} hundred" + (f" and {english(n % 100)}" if n % 100 else "")
    for scale, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand")):
        if n >= scale:
            return f"{english(n // scale)} {name}" + (f" {english(n % scale)}" if n % scale else "")
    raise AssertionError(n)


def chinese(n: int) -> str:
    if n >= 10**8:
        high, rest = divmod(n, 10**8)
        gap = HAN[0] if rest and rest < 10**7 else ""
        return chinese(high) + "\u4ebf" + (gap + chinese(rest) if rest else "")
    if n >= 10**4:
        high, rest = divmod(n, 10**4)
        gap = HAN[0] if rest and rest < 1000 else ""
        return chinese(high) + "\u4e07" + (gap + chinese(rest) if rest else "")
    text, gap = "", False
    for unit, name in ((1000, "\u5343"), (100, "\u767e"), (10, "\u5341"), (1, "")):
        digit = n // unit % 10
        if digit:
            text += (HAN[0] if gap and text else "") + HAN[digit] + name
            gap = False
        else:
            gap = bool(text)
    return text or HAN[0]


def decimal(n: int) -> str:
    return f"{n}.0"


def grouped(n: int) -> str:
    return f"{n:,}"


def money(n: int) -> str:
    return f"${n:,}.00" if n >= 0 else f"-${-n:,}.00"


def latex(n: int) -> str:
    return f"$\\frac{{{2 * n}}}{{2}}$"


def scientific(n: int) -> str:
    return f"{n * 1000}e-3"


def percent(n: int) -> str:
    return f"{n * 100}%"


def boxed(n: int) -> str:
    return f"\\boxed{{{n}}}"


def clips(n: int) -> str:
    return f"{n} clips"


def thousands(n: int) -> str:
    return f"{Fraction(n, 1000).limit_denominator()}" if n % 1000 else f"{n // 1000}k"


FORMS: tuple[Callable[[int], str], ...] = (
    str, decimal, grouped, money, latex, scientific, percent, boxed, clips, english, chinese,
)  # fmt: skip
MARKERS = (
    "Final Answer: {}",
    "#### {}",
    "The answer is {}.",
    "<answer>{}</answer>",
    "**Answer:** {}",
)


def _number(rng: random.Random) -> int:
    return rng.randrange(0, 10 ** rng.randrange(1, 10))


def _near(n: int, rng: random.Random) -> int:
    """A number that a careless grader could take for n."""
    text = str(n)
    other = rng.choice(
        (
            n + 1,
            n * 10,
            n * 1000,
            int(text[1:] or 0),
            int(text + text[-1]),
            int(text[::-1]),
            n + 100,
            n // 10,
        )
    )
    return other if other != n else n + 7


def _number_pair(rng: random.Random) -> tuple[str, str]:
    gold = _number(rng)
    stated = _near(gold, rng) if rng.random() < 0.7 else _number(rng) + 10**10
    form = rng.choice(FORMS)
    if form in (chinese, english) and stated >= 10**12:
        form = str
    return form(stated), str(gold)


def _two(rng: random.Random, low: int = 2, high: int = 99) -> tuple[int, int]:
    first, second = rng.sample(range(low, high), 2)
    return first, second


def _fraction_pair(rng: random.Random) -> tuple[str, str]:
    p, q = _two(rng)
    value = Fraction(p, q)
    wrong = rng.choice(
        [v for v in (1 / value, -value, value + 1, value / 10, value * q) if v != value]
    )
    form = rng.choice(("{n}/{d}", "\\frac{{{n}}}{{{d}}}", "$\\dfrac{{{n}}}{{{d}}}$"))
    return form.format(n=wrong.numerator, d=wrong.denominator), f"{p}/{q}"


def _mixed_pair(rng: random.Random) -> tuple[str, str]:
    whole, q = rng.randrange(1, 20), rng.randrange(3, 10)
    p = rng.randrange(1, q)
    wrong = rng.choice(
        (f"{whole + 1} {p}/{q}", f"{whole}", f"{p}/{q}", f"{whole}{p}/{q}", f"-{whole} {p}/{q}")
    )
    return wrong, f"{whole * q + p}/{q}"


def _percent_pair(rng: random.Random) -> tuple[str, str]:
    n, m = _two(rng)
    return rng.choice((f"{m}%", f"0.{n:02d}%", f"{n}.5%", f"-{n}%", f"{n}0%", f"{n}")), f"{n}%"


def _scale_pair(rng: random.Random) -> tuple[str, str]:
    n, m = _two(rng)
    scales = ["", " thousand", " million", " billion"]
    gold, wrong = rng.sample(scales, 2)
    return rng.choice((f"{n}{wrong}", f"{m}{gold}")), f"{n}{gold}"


def _unit_pair(rng: random.Random) -> tuple[str, str]:
    n, m = _two(rng)
    gold, wrong = rng.sample(
        ["km", "miles", "kg", "g", "hours", "minutes", "cm^2", "cm^3", "apples", "$"], 2
    )
    return rng.choice((f"{n} {wrong}", f"{m} {gold}")), f"{n} {gold}"


def _sign_pair(rng: random.Random) -> tuple[str, str]:
    n, m = _two(rng)
    gold = rng.choice((n, -n))
    return rng.choice((str(-gold), f"\\pm {n}", f"\u2212{m}", f"{gold} or {-gold}")), str(gold)


def _polynomial_pair(rng: random.Random) -> tuple[str, str]:
    a, b = _two(rng, 2, 12)
    gold = f"x^2+{a + b}x+{a * b}"
    wrong = rng.choice(
        (
            f"(x-{a})(x+{b})", f"(x+{a})(x+{b + 1})", f"x^2+{a * b}x+{a + b}", f"(y+{a})(y+{b})",
            f"x^2+{a + b}x", f"{a + b}x+{a * b}", f"\\frac{{(x+{a})(x+{b})}}{{{a}}}", f"x^3+{a + b}x+{a * b}",
        )
    )  # fmt: skip
    return f"${wrong}$", gold


def _root_pair(rng: random.Random) -> tuple[str, str]:
    a, b = _two(rng, 2, 12)
    wrong = rng.choice(
        (
            f"\\sqrt{{{a * b}}}",
            f"{a}",
            f"{a * a * 7}",
            f"{b}\\sqrt{{7}}",
            f"{a}\\sqrt{{5}}",
            f"-{a}\\sqrt{{7}}",
            f"\\frac{{\\sqrt{{7}}}}{{{a}}}",
            f"{a}+\\sqrt{{7}}",
            f"{a * 2.6457:.3f}",
        )
    )
    return f"\\boxed{{{wrong}}}", f"{a}\\sqrt{{7}}"


def _constant_pair(rng: random.Random) -> tuple[str, str]:
    a, b = _two(rng, 2, 30)
    wrong = rng.choice(
        (
            f"{a}",
            f"{b}\\pi",
            f"{a * 3.14159:.2f}",
            f"\\frac{{\\pi}}{{{a}}}",
            f"{a}\\pi^2",
            f"{a}e",
            f"{a}+\\pi",
        )
    )
    return f"\\boxed{{{wrong}}}", f"{a}\\pi"


def _equation_pair(rng: random.Random) -> tuple[str, str]:
    a, b = _two(rng, 2, 30)
    wrong = rng.choice(
        (
            f"y = {b}x + {a}",
            f"y = {a}x - {b}",
            f"y = -{a}x + {b}",
            f"x = {a}y + {b}",
            f"{a}x + y = {b}",
            f"y = {a}",
        )
    )
    return wrong, f"y = {a}x + {b}"


def _tuple_pair(rng: random.Random) -> tuple[str, str]:
    a, b = _two(rng)
    wrong = rng.choice(
        (
            f"({b}, {a})",
            f"({a}, {b + 1})",
            f"({a}, {b}, 0)",
            f"[{a}, {b}]",
            f"{{{a}, {b}}}",
            f"({a}, -{b})",
            f"{a}",
        )
    )
    return wrong, f"({a}, {b})"


def _set_pair(rng: random.Random) -> tuple[str, str]:
    values = rng.sample(range(1, 60), 4)
    rng.shuffle(values)
    some = ", ".join(map(str, values[:3]))
    wrong = rng.choice(
        (values[:2], values, [*values[:2], values[3]], [-values[0], *values[1:3]], values[:1])
    )
    shape = rng.choice(("{}", "\\{{{}\\}}", "{{{}}}"))
    return shape.format(", ".join(map(str, wrong))), f"{{{some}}}"


def _interval_pair(rng: random.Random) -> tuple[str, str]:
    a, b = sorted(_two(rng))
    wrong = rng.choice(
        (
            f"({a}, {b})",
            f"[{a}, {b}]",
            f"({a}, {b}]",
            f"[{a}, {b + 1})",
            f"[-{a}, {b})",
            f"{a} < x < {b}",
            f"x >= {a}",
            f"[{a}, \\infty)",
            f"[{a}, {b}) \\cup ({b}, 200)",
            f"{a}",
            f"{a}-{b}",
        )
    )
    return f"${wrong}$" if "\\" in wrong else wrong, f"[{a}, {b})"


def _range_pair(rng: random.Random) -> tuple[str, str]:
    a, b = sorted(_two(rng))
    return rng.choice(
        (f"{a}", f"{b}", f"{a}-{b + 1}", f"{a + 100} to {b + 100}", f"{b - a}", f"({a}, {b})")
    ), f"{a}-{b}"


def _matrix_pair(rng: random.Random) -> tuple[str, str]:
    a, b = _two(rng)
    gold = f"\\begin{{pmatrix}} {a} & {b} \\\\ 1 & 0 \\end{{pmatrix}}"
    wrong = rng.choice(
        (
            f"{b} & {a} \\\\ 1 & 0",
            f"{a} & 1 \\\\ {b} & 0",
            f"{a} & {b} \\\\ 1 & 1",
            f"{a} & {b} & 1 & 0",
            f"{a} \\\\ {b}",
        )
    )
    return f"\\boxed{{\\begin{{pmatrix}}{wrong}\\end{{pmatrix}}}}", gold


def _time_pair(rng: random.Random) -> tuple[str, str]:
    hour, minute = rng.randrange(1, 12), rng.randrange(10, 59)
    wrong = rng.choice(
        (
            f"{hour}:{minute} am",
            f"{hour}:{minute + 1} pm",
            f"{hour + 1}:{minute} pm",
            f"{hour}",
            f"{hour}:{minute}",
            f"{minute}:{hour}",
        )
    )
    return wrong, f"{hour}:{minute} pm"


def _date_pair(rng: random.Random) -> tuple[str, str]:
    day, other = _two(rng, 1, 29)
    wrong = rng.choice(
        (
            f"March {other}",
            f"April {day}",
            f"{day}",
            f"March {day}, 2023" if day != 1 else "May 1",
            "March",
        )
    )
    return wrong, f"{day} March 2024"


def _choice_pair(rng: random.Random) -> tuple[str, str]:
    gold, wrong, third = rng.sample("ABCDE", 3)
    stated = rng.choice(
        (
            wrong,
            f"({wrong})",
            f"{wrong}. {gold} is wrong",
            f"{gold} or {wrong}",
            f"{wrong}, {gold}",
            f"{gold}{third}",
            f"not {gold}",
        )
    )
    return stated, gold


def _text_pair(rng: random.Random) -> tuple[str, str]:
    names = [
        "African wild dog",
        "New York",
        "even",
        "correct",
        "Anna Lee",
        "prime",
        "true",
        "carbon dioxide",
    ]
    gold, other = rng.sample(names, 2)
    return rng.choice(
        (
            other,
            f"not {gold}",
            gold[:-1],
            f"{gold} or {other}",
            f"in{gold}",
            f"un{gold}",
            f"{gold}, {other}",
            gold[1:],
        )
    ), gold


def _list_pair(rng: random.Random) -> tuple[str, str]:
    a, b = _two(rng)
    return rng.choice(
        (
            f"{a} or {b}",
            f"{a}, {b}",
            f"{a} and {b}",
            f"{b}, {a}",
            f"{a} {b}",
            f"{a}/{b}",
            f"{a}-{b}",
            f"between {a} and {b}",
            f"at least {a}",
            f"more than {a}",
            f"{a} + {b}",
            f"not {a}",
            f"{a}, maybe {b}",
        )
    ), str(a)


KINDS: tuple[Callable[[random.Random], tuple[str, str]], ...] = (
    _fraction_pair, _mixed_pair, _percent_pair, _scale_pair, _unit_pair, _sign_pair, _polynomial_pair, _root_pair,
    _constant_pair, _equation_pair, _tuple_pair, _set_pair, _interval_pair, _range_pair, _matrix_pair, _time_pair,
    _date_pair, _choice_pair, _text_pair, _list_pair,
)  # fmt: skip


@pytest.mark.slow
def test_unequal_pairs_are_never_accepted(symbolic: SymbolicProcess) -> None:
    rng = random.Random(7)
    pairs = [_number_pair(rng) for _ in range(5_000)]
    pairs += [kind(rng) for kind in KINDS for _ in range(5_000 // len(KINDS))]
    assert len(pairs) == 10_000
    accepted = []
    for stated, gold in pairs:
        response = rng.choice(MARKERS).format(stated)
        if judge_answer(response, gold, symbolic).correct:
            accepted.append((response, gold))
    assert accepted == []


@pytest.mark.slow
def test_equal_numbers_are_accepted_in_every_form(symbolic: SymbolicProcess) -> None:
    rng = random.Random(11)
    refused = []
    for _ in range(500):
        gold = _number(rng)
        for form in FORMS:
            response = rng.choice(MARKERS).format(form(gold))
            if not judge_answer(response, str(gold), symbolic).correct:
                refused.append((response, gold))
    assert refused == []
