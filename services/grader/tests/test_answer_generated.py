"""Rows made from templates of every kind of notation, statement and slip, with numbers drawn anew."""

import random
import re
from fractions import Fraction

import pytest
from answer_templates import TEMPLATES
from test_answer_unequal import chinese, english

from grader.answer.judge import judge_answer
from grader.answer.symbolic import SymbolicProcess

TOKEN = re.compile(r"@(?:t[gsautlbd]|tt|n1|dc|[a-zA-Z])")
FINANCIAL = str.maketrans(
    "\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341",
    "\u58f9\u8d30\u53c1\u8086\u4f0d\u9646\u67d2\u634c\u7396\u62fe",
)
DRAWS = 3
"""Rows per template that has a token."""


def tokens(rng: random.Random) -> dict[str, str]:
    """Draw the numbers that templates name."""
    n, m = rng.sample([v for v in range(21, 99) if v % 10 and v % 10 != v // 10], 2)
    thousands = rng.randrange(1_200_000, 9_876_543)
    grouped = f"{thousands:,}"
    q = rng.choice((3, 6, 7, 9))
    p = rng.choice([v for v in range(1, q) if Fraction(v, q).denominator == q])
    whole, k = rng.randrange(2, 10), rng.randrange(3, 10)
    return {
        "n": str(n), "m": str(m), "n1": f"{n}1", "t": str(thousands), "tg": grouped,
        "ts": grouped.replace(",", " "), "ta": grouped.replace(",", "'"), "tu": grouped.replace(",", "_"),
        "td": grouped.replace(",", "."), "tl": grouped.replace(",", "{,}"), "tb": grouped.replace(",", "\\,"),
        "tt": grouped.replace(",", ",\\!"), "d": f"{n}.{m}", "dc": f"{n},{m}", "w": english(n),
        "W": english(n).replace("-", " ").title(), "h": chinese(n), "f": chinese(n).translate(FINANCIAL),
        "p": str(p), "q": str(q), "i": str(whole), "x": str(whole * q + p), "k": str(k), "s": str(k * k),
    }  # fmt: skip


def _filled(text: str, drawn: dict[str, str]) -> str:
    return TOKEN.sub(lambda token: drawn[token.group()[1:]], text)


def rows(category: str) -> list[tuple[str, str, bool]]:
    """Fill in the templates of one category."""
    rng = random.Random(category)
    made = []
    for response, reference, equal in TEMPLATES[category]:
        for _ in range(DRAWS if TOKEN.search(response + reference) else 1):
            drawn = tokens(rng)
            made.append((_filled(response, drawn), _filled(reference, drawn), equal))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("category", TEMPLATES)
def test_generated_rows_are_judged_right(category: str, symbolic: SymbolicProcess) -> None:
    wrong = [
        row for row in rows(category) if judge_answer(row[0], row[1], symbolic).correct != row[2]
    ]
    assert wrong == []
