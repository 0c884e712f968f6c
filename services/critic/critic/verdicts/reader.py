"""Reads one verdict out of a judge's text, or says why there is none. Never guesses, never falls back to a value.

The order: what is structured (a JSON field, a tag, [[ ]], a statement called final) before what is said ("Verdict: B"),
that before a box, and that before a closing sentence or a line of its own; in each, the last one stands. A place that
is meant as a verdict and cannot be read as one (out of range, "partially correct") ends the search: nothing before it
counts.
"""

import re
from dataclasses import dataclass
from typing import Generic

from critic.verdicts.candidates import Candidate, boxed, statements, structured
from critic.verdicts.grammar import Grammar, UnclearError, V
from critic.verdicts.thinking import split_thinking

_CODE = re.compile(
    r"^[ \t]*```[ \t]*(?:python|py|javascript|js|typescript|ts|java|c|cpp|c\+\+|cs|csharp|go|rust|ruby|php|sql|r|bash"
    r"|sh|shell|html|css)[ \t]*\n.*?(?:^[ \t]*```|\Z)",
    re.I | re.M | re.S,
)
"""A program that is quoted; other fences may hold the verdict."""
_OBJECT = re.compile(r"(?:```\w*\s*)?\{")
MAX_BODY = 65_536
"""Characters of a judge's text, its thinking aside; a longer one is no reply to a question."""


class UnreadableError(ValueError):
    """A judge's text holds no verdict that counts; the message says what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[V]):
    """A verdict with what led to it."""

    verdict: V
    reasoning: str
    contradicted: bool
    """The prose speaks for other verdicts only."""


def read(text: str, grammar: Grammar[V]) -> Reading[V]:
    """Read a judge's text.

    Raises:
        UnreadableError: it holds no verdict that counts.
    """
    split = split_thinking(text)
    body = split.body
    if not body:
        raise UnreadableError("found only thinking" if split.thinking else "found an empty reply")
    if len(body) > MAX_BODY:
        raise UnreadableError(f"found {len(body)} characters, at most {MAX_BODY} are read")
    # As long as the body, so that places in one are places in the other.
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), body)
    chosen = _chosen(prose, grammar)
    if chosen.value is None:
        raise UnreadableError(chosen.unclear)
    claims = grammar.claims(prose)
    before = chosen.reasoning or body[: chosen.start].strip()
    return Reading(
        verdict=chosen.value,
        reasoning="\n\n".join(part for part in (split.thinking, before) if part),
        contradicted=bool(claims) and chosen.value not in claims,
    )


def _chosen(body: str, grammar: Grammar[V]) -> Candidate[V]:
    fields = structured(body, grammar)
    if fields:
        return fields[-1]
    said = statements(body, grammar)
    if said:
        return _weightiest(said)
    boxes = boxed(body, grammar)
    if boxes:
        return boxes[-1]
    if _OBJECT.match(body):
        raise UnreadableError("found an object without a verdict")
    try:
        value = grammar.closing(body)
    except UnclearError as err:
        raise UnreadableError(str(err)) from err
    if value is None:
        raise UnreadableError("found no verdict")
    return Candidate(start=len(body), end=len(body), value=value)


def _weightiest(said: list[Candidate[V]]) -> Candidate[V]:
    """Return the last of those with the most weight; statements about single criteria must agree."""
    top = max(candidate.rank for candidate in said)
    best = [candidate for candidate in said if candidate.rank == top]
    if top == 0 and any(candidate.value != best[0].value for candidate in best):
        raise UnreadableError("found verdicts on single criteria, none on the whole")
    firm = [candidate for candidate in best if not candidate.loose]
    if firm and best[-1].loose and best[-1].value != firm[-1].value:
        raise UnreadableError("found a verdict, and prose after it that names another")
    return best[-1]
