"""Judges one response against one reference: the policy on answers.

No answer stated: wrong, kind format. Several values where one was wanted: wrong, kind format. A definite other value:
wrong, kind reasoning. An answer stated that could not be read: the fallback chain is tried, then the response is
masked, kind extraction, and has no vote.
"""

import re
from dataclasses import dataclass, replace

from grader.answer.compare import (
    Equality,
    Means,
    Tolerance,
    choice_of,
    compare,
    plain_text,
    verdict_of,
)
from grader.answer.extraction import Extractor, extract
from grader.answer.normalize import normalize
from grader.answer.reading import MAX_SPAN, read
from grader.answer.spans import keep_factorial, unwrap_mathematics
from grader.answer.statement import Statement
from grader.answer.symbolic import Symbolic
from grader.answer.values import Expression, Many, Number, Ordered, Text, Value
from trajectory.types import OutcomeKind

_NUMBERS = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d\d")
_HEDGE = re.compile(
    r"\b(?:not|between|or|either|neither|except|at least|at most|more than|less than|over|under|range"
    r"|up to|as many as|no more than|fewer than|greater than|below|above|beyond)\b"
    r"|\u4e0d|\u6216|\u81f3\u5c11|\u81f3\u591a|\u8d85\u8fc7",
    re.IGNORECASE,
)
_INNER = re.compile(r".*\b(?:is|are|equals|total of|be)\s+(.+)$", re.IGNORECASE)


class ReferenceUnreadableError(ValueError):
    """The reference is blank or too long to be an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerJudgement:
    """How a response was judged."""

    correct: bool
    kind: OutcomeKind | None
    """None for a right answer."""
    masked: bool
    extracted: str | None
    """The answer as written; None if none was stated."""
    explanation: str


def judge_answer(
    response: str,
    reference: str,
    symbolic: Symbolic,
    *,
    stated_only: bool = False,
    extractor: Extractor = extract,
    tolerance: Tolerance | None = None,
) -> AnswerJudgement:
    """Judge a response against a reference.

    Args:
        response: text of the agent's last message.
        reference: the right answer in any notation.
        symbolic: compares formulas.
        stated_only: take no unmarked number, because the message was cut off or still calls tools.
        extractor: finds the answer in the response.
        tolerance: how far a stated number may be from the reference; None: not at all.

    Raises:
        ReferenceUnreadableError: the reference is blank or too long.
    """
    if "\\boxed" in reference:
        boxed = extract(reference[:MAX_SPAN]).statement
        reference = boxed.text if boxed is not None else reference
    gold = _read_reference(reference)
    means = Means(symbolic=symbolic, tolerance=tolerance)
    extraction = extractor(response, stated_only=stated_only)
    statement = extraction.statement
    if statement is not None and _is_remark(statement, gold):
        statement = None
    if statement is None:
        explanation = (
            "an answer is announced but none follows" if extraction.blank else "no answer is stated"
        )
        return AnswerJudgement(
            correct=False,
            kind=OutcomeKind.FORMAT,
            masked=False,
            extracted=None,
            explanation=explanation,
        )
    if statement.source == "box percent" and isinstance(gold, Number):
        # The sign is part of the answer or the words around it; the reference tells.
        percent = replace(statement, text=f"{statement.text}%")
        found = _compare_statement(gold, reference, percent, means)
        if found is Equality.EQUAL:
            return _judgement(found, percent, reference)
    found = _compare_statement(gold, reference, statement, means)
    return _judgement(found, statement, reference)


def _read_reference(reference: str) -> Value:
    whole = keep_factorial(unwrap_mathematics(reference.strip()))
    gold = read(normalize(whole), listed=True) if len(whole) <= MAX_SPAN else None
    if gold is None:
        shown = reference if len(reference) <= 60 else f"{reference[:57]}..."
        raise ReferenceUnreadableError(
            f"the reference {shown!r} is no answer: it must hold 1 to {MAX_SPAN} characters of text or mathematics"
        )
    return gold


def _is_remark(statement: Statement, gold: Value) -> bool:
    """Whether a short response without any marker is just words where mathematics is wanted."""
    if statement.source != "whole" or isinstance(gold, Text):
        return False
    return isinstance(read(normalize(statement.text)), Text)


def _compare_statement(gold: Value, reference: str, statement: Statement, means: Means) -> Equality:
    span = statement.text
    if len(span) > MAX_SPAN:
        return Equality.UNREADABLE
    normal = normalize(span)
    if normal and normal == normalize(reference):
        return Equality.EQUAL
    if isinstance(gold, Text):
        # Of a single letter the article before it would be another choice.
        whole = plain_text(normalize(statement.line[:MAX_SPAN]))
        if len(gold.text) > 1 and whole == plain_text(gold.text):
            return Equality.EQUAL
        verdict = verdict_of(normal) if verdict_of(gold.text) else None
        if verdict:
            return Equality.EQUAL if verdict == verdict_of(gold.text) else Equality.DIFFERENT
        if len(gold.text) == 1 and gold.text.isalpha() and choice_of(normal):
            return Equality.EQUAL if choice_of(normal) == gold.text.upper() else Equality.DIFFERENT
    stated = read(normal, listed=isinstance(gold, Many | Ordered))
    if stated is None:
        return Equality.UNREADABLE
    found = compare(gold, stated, means)
    if found is not Equality.EQUAL and _DECIMAL_COMMA.fullmatch(reference.strip()):
        # Two digits after a single comma may be decimals as well as a second number.
        decimal = read(normalize(reference))
        if isinstance(decimal, Number) and isinstance(read(normal), Number):
            found = compare(decimal, stated, means)
    if found is Equality.HEDGED and isinstance(stated, Many) and " or " in normal:
        same = all(compare(gold, item, means) is Equality.EQUAL for item in stated.items)
        return Equality.EQUAL if same else found
    if found is Equality.DIFFERENT and isinstance(gold, Number) and isinstance(stated, Text):
        found = _inside(gold, normal, means) or found
    if found is Equality.UNREADABLE and not isinstance(stated, Expression):
        return _inside(gold, normal, means) or found
    return found


def _inside(gold: Value, span: str, means: Means) -> Equality | None:
    """Fallback for a statement in prose: what follows `is`, or its only number; None if neither decides."""
    inner = _INNER.search(span)
    if inner:
        value = read(inner.group(1))
        if value is not None and not isinstance(value, Text):
            found = compare(gold, value, means)
            return None if found is Equality.UNREADABLE else found
    numbers = list(_NUMBERS.finditer(span))
    if len(numbers) != 1 or _HEDGE.search(span) or not isinstance(gold, Number):
        return None
    value = read(span[numbers[0].start() :])
    if isinstance(value, Number):
        return compare(gold, value, means)
    value = read(numbers[0].group())
    return compare(Number(value=gold.value), value, means) if value is not None else None


def _judgement(found: Equality, statement: Statement, reference: str) -> AnswerJudgement:
    shown = statement.text if len(statement.text) <= 80 else f"{statement.text[:77]}..."
    gold = reference if len(reference) <= 80 else f"{reference[:77]}..."
    kinds = {
        Equality.EQUAL: (None, f"{shown!r} equals {gold!r}"),
        Equality.DIFFERENT: (OutcomeKind.REASONING, f"{shown!r} is not {gold!r}"),
        Equality.HEDGED: (
            OutcomeKind.FORMAT,
            f"{shown!r} names several values where one is wanted",
        ),
        Equality.UNREADABLE: (
            OutcomeKind.EXTRACTION,
            f"the stated answer {shown!r} could not be read",
        ),
    }
    kind, explanation = kinds[found]
    return AnswerJudgement(
        correct=found is Equality.EQUAL,
        kind=kind,
        masked=found is Equality.UNREADABLE,
        extracted=statement.text,
        explanation=explanation,
    )
