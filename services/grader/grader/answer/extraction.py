"""Finds the final answer that a response states.

Statements are looked for in every form at once (`Final Answer:`, `####`, a box, an answer tag, a JSON field, "the
answer is", in other languages too); the last one counts, and a correction after it ("wait, no: 14"). Text after an
invented `Question:` or another speaker's turn does not count, nor does thinking between `<think>` tags. Without a
statement the result of the last concluding sentence is taken (see `unmarked`), unless the response was cut off or did
not end the rollout.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from grader.answer.markers import CHOSEN, NOT_AN_ANSWER, RUN_ON, STATED
from grader.answer.spans import clip_span, is_blank, keep_factorial, tail_after
from grader.answer.statement import Statement
from grader.answer.unmarked import unmarked

MAX_RESPONSE = 200_000
"""Of a longer response the end is read."""
MAX_STATEMENTS = 32
"""Of each form, the last so many statements are looked at."""

_THINK_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THINK_START = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
_TAG = re.compile(r"<(answer|final_answer|final)>(.*?)(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
_JSON_FIELD = re.compile(
    r"""(["'])(?:final_answer|finalAnswer|final answer|answer|result)\1\s*:\s*""", re.IGNORECASE
)
_QUOTED = re.compile(r"'([^'\n]*)'")
_PERCENT_AFTER = re.compile(r"\s*\$?\s*(?:\\?%|percent\b|per\s+cent\b|pct\b)", re.IGNORECASE)
_JOINER = re.compile(
    r"(?:\$|\s|\\q?quad|\\[,;! ]|\\text\s*\{\s*(?:and|or)\s*\}|,|;|\band\b|\bor\b)*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What was found."""

    statement: Statement | None
    blank: bool
    """The answer was announced, and then nothing came."""


class Extractor(Protocol):
    """Finds the final answer of a response."""

    def __call__(self, response: str, *, stated_only: bool) -> Extraction:
        """Find it; with `stated_only` an unmarked number is none."""
        ...


def extract(response: str, *, stated_only: bool = False) -> Extraction:
    """Find the final answer of a response.

    Args:
        response: the text of the agent's last message.
        stated_only: take no unmarked number; for a message that was cut off or still calls tools.
    """
    text = own_words(response)
    statements = sorted(statements_in(text), key=lambda s: s.position)
    useful = [s for s in statements if not is_blank(s.text)]
    if useful:
        return Extraction(statement=last_of(useful), blank=False)
    if statements or stated_only:
        return Extraction(statement=None, blank=bool(statements))
    return Extraction(statement=unmarked(text), blank=False)


def own_words(response: str) -> str:
    """Return the response without thinking and without what follows an invented question."""
    text = response[-MAX_RESPONSE:]
    ends = list(_THINK_END.finditer(text))
    if ends and not is_blank(text[ends[-1].end() :]):
        text = text[ends[-1].end() :]
    else:
        start = _THINK_START.search(text)
        if start:
            text = text[: start.start()]
    for match in list(RUN_ON.finditer(text))[:MAX_STATEMENTS]:
        before = text[: match.start()]
        if any(not is_blank(s.text) for s in statements_in(before)) or unmarked(before) is not None:
            return before
    return text


def last_of(statements: list[Statement]) -> Statement:
    """The last statement; a remark such as "the answer is correct" does not replace an answer with digits."""
    for statement in reversed(statements):
        weak = statement.source in ("answer", "foreign", "chinese")
        if weak and (NOT_AN_ANSWER.match(statement.text) or len(statement.text.split()) > 12):
            continue
        if statement.source == "correction" and statement is statements[0]:
            # Nothing was stated before it that it could correct.
            break
        boxed = statement.source.startswith("box")
        return _joined_boxes(statement, statements) if boxed else statement
    return statements[-1]


def _joined_boxes(last: Statement, statements: list[Statement]) -> Statement:
    """Boxes joined by `and` or commas are one answer of several values."""
    group = [last]
    for earlier in reversed(
        [s for s in statements if s.source.startswith("box") and s.position < last.position]
    ):
        joiner = earlier.line.replace("$", " ").strip()
        if not re.search(r"[,;]|and|or", joiner) or not _JOINER.fullmatch(joiner):
            break
        group.insert(0, earlier)
    if len(group) == 1:
        return last
    joined = " or " if all("or" in s.line for s in group[:-1]) else ", "
    text = joined.join(s.text for s in group)
    return Statement(text=text, line=text, source="box", position=last.position)


def statements_in(text: str) -> Iterator[Statement]:
    """Yield the statements of every form, form by form."""
    if "\\" in text:
        yield from _boxes(text)
    if "<" in text:
        for match in list(_TAG.finditer(text))[-MAX_STATEMENTS:]:
            inner = match.group(2).strip()
            line = tail_after(inner, 0) if "\n" in inner and len(inner) > 200 else inner
            span = line if is_blank(line) else clip_span(line)
            yield Statement(text=span, line=line, source="tag", position=match.start(2))
    if "{" in text:
        yield from _json_fields(text)
    yield from _choices(text)
    matches = list(STATED.finditer(text))[-MAX_STATEMENTS:]
    for index, match in enumerate(matches):
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        line = tail_after(text[:end], match.end())
        source = match.lastgroup or "answer"
        if source == "check":
            continue
        yield Statement(text=clip_span(line), line=line, source=source, position=match.start())


def _choices(text: str) -> Iterator[Statement]:
    for match in list(CHOSEN.finditer(text))[-MAX_STATEMENTS:]:
        letter = next(group for group in match.groups() if group)
        yield Statement(text=letter, line=letter, source="choice", position=match.start())


def _boxes(text: str) -> Iterator[Statement]:
    for match in list(_BOX.finditer(text))[-MAX_STATEMENTS:]:
        start = match.end()
        if text[start : start + 1] != "{":
            bare = re.match(r"\s*(\\frac\{[^{}]*\}\{[^{}]*\}|[^\s$.,;]+)", text[start:])
            inner = bare.group(1) if bare else ""
            yield Statement(text=inner, line="", source="box", position=match.start())
            continue
        end = _closing_brace(text, start)
        inner = keep_factorial(text[start + 1 : end].strip())
        percent = _PERCENT_AFTER.match(text, end + 1) is not None
        following = _BOX.search(text, end)
        between = text[end + 1 : following.start()] if following else ""
        source = "box percent" if percent else "box"
        yield Statement(text=inner, line=between, source=source, position=match.start())


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    for position in range(start, min(len(text), start + 4000)):
        character = text[position]
        if character == "\\":
            continue
        escaped = position > 0 and text[position - 1] == "\\"
        if character == "{" and not escaped:
            depth += 1
        elif character == "}" and not escaped:
            depth -= 1
            if depth == 0:
                return position
    newline = text.find("\n", start)
    return newline if newline >= 0 else len(text)


def _json_fields(text: str) -> Iterator[Statement]:
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
    for match in list(_JSON_FIELD.finditer(text))[-MAX_STATEMENTS:]:
        window = text[match.end() : match.end() + 4000]
        quoted = _QUOTED.match(window)
        if quoted:
            window = json.dumps(quoted.group(1))
        try:
            value, _ = decoder.raw_decode(window)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, bool):
            value = str(value).lower()
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = ", ".join(value)
        if isinstance(value, str):
            yield Statement(text=value.strip(), line=value, source="json", position=match.start())
