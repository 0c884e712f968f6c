"""Generated pairs that differ, in random notations: none may be accepted; and pairs that are equal: all must be."""

import random
from collections.abc import Callable
from fractions import Fraction

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


def test_unequal_numbers_are_never_accepted(symbolic: SymbolicProcess) -> None:
    rng = random.Random(7)
    accepted = []
    for _ in range(10_000):
        gold = _number(rng)
        stated = _near(gold, rng) if rng.random() < 0.7 else _number(rng) + 10**10
        form = rng.choice(FORMS)
        if (form is chinese and stated >= 10**12) or (form is english and stated >= 10**12):
            form = str
        response = rng.choice(MARKERS).format(form(stated))
        if judge_answer(response, str(gold), symbolic).correct:
            accepted.append((response, gold))
    assert accepted == []


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
