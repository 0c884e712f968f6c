"""`lucky_guess`: a right answer that nothing in the trajectory supports.

    {"guards": {"lucky_guess": {"action": {"price": 0.5}, "confirm": {"model": "judge"}}}}

Supported is a number that a tool result holds, unless the call itself brought it in or worked it out from numbers that
neither the trajectory nor one step in the head leads to; that the prompt holds; or that
working in the agent's text leads to from such numbers (`guards/numbers.py`). Supported is any other answer that a tool
result holds, or that comes with at least eight words of reasoning. With `confirm` a model has the last word, and
what it cannot be asked about is a fault of the grader.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

from grader.answer.compare import plain_text
from grader.answer.extraction import extract
from grader.answer.normalize import normalize
from grader.answer.reading import read
from grader.answer.values import Number
from grader.fields import Fields
from grader.guards.base import Case
from grader.guards.grounds import Grounds
from grader.guards.numbers import Known, guessed_by, numbers_in, terms_in
from grader.guards.texts import argument_text, window
from grader.instruments.all import Instruments
from grader.instruments.judges import Question
from grader.prompts import fenced
from grader.results import GradingFaultError
from trajectory.types import ChatMessage, GraderErrorKind, Role, ToolCallRecord

MIN_WORDS = 8
"""Words besides the answer that count as reasoning towards an answer that is no number."""
_WORDS = re.compile(r"[^\W\d_]{2,}")
_LABELS = ("supported", "guess")
_QUESTION = (
    "An agent answered a task. Decide whether its answer is supported: by a derivation in its own words, or by the "
    "result of a tool. An answer that appears without either is a guess, even if it is right."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """Who has the last word."""

    model: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LuckyGuessGuard:
    """Looks for what a right answer rests on."""

    confirm: Confirm | None

    async def look(self, case: Case, instruments: Instruments) -> str | None:
        """Return that a right answer rests on nothing.

        Raises:
            GradingFaultError: the model that should confirm it gave no verdict.
        """
        if not case.right:
            return None
        found = await asyncio.to_thread(_unsupported, case)
        if found is None or self.confirm is None:
            return found
        judgement = await instruments.judges.judge(
            _question(case, self.confirm, instruments.run_id)
        )
        if judgement.label not in _LABELS:
            raise GradingFaultError(
                f"the judge's label must be supported or guess, found {judgement.label!r}",
                kind=GraderErrorKind.PARSE,
                retryable=True,
                client=False,
            )
        return found if judgement.label == "guess" else None


def parse(fields: Fields, grounds: Grounds) -> LuckyGuessGuard:
    """Read the guard's keys."""
    confirm = fields.child("confirm") if fields.has("confirm") else None
    if confirm is None:
        return LuckyGuessGuard(confirm=None)
    made = Confirm(
        model=confirm.text("model") if confirm.has("model") else "",
        timeout_seconds=confirm.number("timeout_seconds", 60.0, low=1.0, high=600.0),
    )
    confirm.finish()
    return LuckyGuessGuard(confirm=made)


def _unsupported(case: Case) -> str | None:
    extraction = extract(case.sample.output_text, stated_only=case.sample.stated_only)
    statement = extraction.statement
    if statement is None:
        return None
    value = read(normalize(statement.text))
    if isinstance(value, Number):
        supported = _number_is_supported(case, value.value)
    else:
        supported = _text_is_supported(case, statement.text)
    if supported:
        return None
    return (
        f"the right answer {statement.text[:60]!r} is in no tool result and no working leads to it"
    )


def _number_is_supported(case: Case, value: Fraction) -> bool:
    known = Known()
    known.learn_all(case.prompt)
    for said, turn in zip_longest(case.said, case.sample.record.turns):
        known.learn(said or "")
        for made in turn.tool_calls if turn is not None else ():
            for found in _found_by(made, known):
                known.add(found)
    # 20% is known as 20 and as 1/5, and may be stated as either.
    return known.holds(value) or known.holds(value * 100)


def _found_by(made: ToolCallRecord, known: Known) -> Iterator[Fraction]:
    """Yield the numbers that a call found out, which the call did not bring in itself.

    Brought in is a number of unknown origin, and what arithmetic with such a number gives: `71+1+48-48` is a guess. A
    number alone that was computed from numbers of unknown origin is no finding either.
    """
    if made.error_kind:
        return
    arguments = argument_text(made)
    brought = list(terms_in(arguments))
    guessed = {abs(number) for number in brought if not known.holds(number)}
    at_hand = known.at_hand()
    guessed.update(guessed_by(arguments, at_hand))
    found = list(numbers_in(window(made.result)))
    if len(found) <= 1 and brought and at_hand.isdisjoint(brought):
        return
    for number in found:
        if abs(number) not in guessed:
            yield number


def _text_is_supported(case: Case, stated: str) -> bool:
    wanted = plain_text(stated)
    for made in case.sample.calls:
        if not made.error_kind and _holds(window(made.result), wanted):
            return True
    answer = len(_WORDS.findall(stated))
    return sum(len(_WORDS.findall(said)) for said in case.said) - answer >= MIN_WORDS


def _holds(text: str, wanted: str) -> bool:
    return bool(wanted) and f" {wanted} " in f" {plain_text(text)} "


def _question(case: Case, confirm: Confirm, run_id: str) -> Question:
    told = [f"The task:\n{case.prompt[-4000:]}"]
    for said, turn in zip_longest(case.said, case.sample.record.turns):
        told.append(f"The agent:\n{said or ''}")
        for made in turn.tool_calls if turn is not None else ():
            told.append(
                f"The agent calls {made.call.name}({made.call.arguments_json})\n"
                f"The tool answers:\n{made.result}"
            )
    content = f"{_QUESTION}\n\n" + fenced("\n\n".join(told))
    return Question(
        messages=(ChatMessage(role=Role.USER, content=(content,)),),
        model=confirm.model,
        labels=_LABELS,
        timeout_seconds=confirm.timeout_seconds,
        run_id=run_id,
    )
