"""Finds the final answer that a response states.

Statements are looked for in every form at once (`Final Answer:`, `####`, a box, an answer tag, a JSON field, "the
answer is"); the last one counts. Text after an invented `Question:` does not count, nor does thinking between
`<think>` tags. Without a statement the result of the last concluding sentence is taken, unless the response was cut
off or did not end the rollout.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from grader.answer.normalize import normalize, unify_characters
from grader.answer.numerals import read_number
from grader.answer.spans import clip_span, is_blank, tail_after, unwrap_mathematics

MAX_RESPONSE = 200_000
"""Of a longer response the end is read."""
MAX_STATEMENTS = 32
"""Of each form, the last so many statements are looked at."""

_QUESTION = re.compile(
    r"^[ \t>*#]*(?:Question|Q|Problem|\u95ee\u9898|\u95ee)\s*\d*\s*[:\uff1a]", re.MULTILINE
)
_THINK_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THINK_START = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_STATED = re.compile(
    r"(?P<final>\bfinal[\s_]+(?:answer|result)[*_`]*\s*(?:is|was|equals)?[*_`]*\s*"
    r"(?:[:=\uff1a]|-(?=\s)|(?<=is)|(?<=was)|(?<=equals)|(?=[$\\*]?\d))[*_`]*)"
    r"|(?P<hash>#{4}(?!#))"
    r"|(?P<chinese>\u6545\u9009[:\uff1a]?|(?:\u6700\u7ec8|\u6700\u540e|\u6b63\u786e)?(?:\u7b54\u6848|\u7b54)"
    r"(?:\u662f|\u4e3a|\u70ba|[*_`]*\s*[:\uff1a])[*_`]*\s*[:\uff1a]?)"
    r"|(?P<answer>\b(?:answer|solution|(?:correct|right)\s+(?:option|choice))[*_`]*\s*"
    r"(?:to\s+[^.:\n]{1,60}\s+)?(?:is(?!\w)|was(?!\w)|equals|would\s+be|should\s+be|[:=\uff1a])[*_`]*\s*[:\uff1a]?)",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\b\s*")
_TAG = re.compile(r"<(answer|final_answer|final)>(.*?)(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
_JSON_FIELD = re.compile(
    r"""(["'])(?:final_answer|finalAnswer|final answer|answer|result)\1\s*:\s*"""
)
_QUOTED = re.compile(r"'([^'\n]*)'")
_NOT_AN_ANSWER = re.compile(
    r"(?:not|correct|right|wrong|incorrect|clear|obvious|reasonable|confirmed|verified|unknown|that"
    r"|as follows|below|above|given|whatever|in|therefore|thus)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """An answer as the response states it."""

    text: str
    """The answer's own span."""
    line: str
    """What the span was cut from."""
    source: str
    """final, hash, box, tag, json, answer, chinese, whole or result."""
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What was found."""

    statement: Statement | None
    blank: bool
    """The answer was announced, and then nothing came."""


def extract(response: str, *, stated_only: bool = False) -> Extraction:
    """Find the final answer of a response.

    Args:
        response: the text of the agent's last message.
        stated_only: take no unmarked number; for a message that was cut off or still calls tools.
    """
    text = _own_words(response)
    statements = sorted(_statements(text), key=lambda s: s.position)
    useful = [s for s in statements if not is_blank(s.text)]
    if useful:
        return Extraction(statement=_last(useful), blank=False)
    if statements or stated_only:
        return Extraction(statement=None, blank=bool(statements))
    return Extraction(statement=_unmarked(text), blank=False)


def _own_words(response: str) -> str:
    """Return the response without thinking and without what follows an invented question."""
    text = response[-MAX_RESPONSE:]
    ends = list(_THINK_END.finditer(text))
    if ends and not is_blank(text[ends[-1].end() :]):
        text = text[ends[-1].end() :]
    else:
        start = _THINK_START.search(text)
        if start:
            text = text[: start.start()]
    for match in list(_QUESTION.finditer(text))[:MAX_STATEMENTS]:
        before = text[: match.start()]
        if any(not is_blank(s.text) for s in _statements(before)) or _unmarked(before) is not None:
            return before
    return text


def _last(statements: list[Statement]) -> Statement:
    """The last statement; a remark such as "the answer is correct" does not replace an answer with digits."""
    for statement in reversed(statements):
        weak = statement.source in ("answer", "chinese")
        if weak and (_NOT_AN_ANSWER.match(statement.text) or len(statement.text.split()) > 12):
            continue
        return _joined_boxes(statement, statements) if statement.source == "box" else statement
    return statements[-1]


def _joined_boxes(last: Statement, statements: list[Statement]) -> Statement:
    """Boxes joined by `and` or commas are one answer of several values."""
    group = [last]
    for earlier in reversed(
        [s for s in statements if s.source == "box" and s.position < last.position]
    ):
        if not re.fullmatch(r"\$*\s*(?:,|;|and|or|,\s*and)\s*\$*", earlier.line.strip()):
            break
        group.insert(0, earlier)
    if len(group) == 1:
        return last
    text = ", ".join(s.text for s in group)
    return Statement(text=text, line=text, source="box", position=last.position)


def _statements(text: str) -> Iterator[Statement]:
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
    matches = list(_STATED.finditer(text))[-MAX_STATEMENTS:]
    for index, match in enumerate(matches):
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        line = tail_after(text[:end], match.end())
        source = match.lastgroup or "answer"
        yield Statement(text=clip_span(line), line=line, source=source, position=match.start())


def _boxes(text: str) -> Iterator[Statement]:
    for match in list(_BOX.finditer(text))[-MAX_STATEMENTS:]:
        start = match.end()
        if text[start : start + 1] != "{":
            bare = re.match(r"\s*(\\frac\{[^{}]*\}\{[^{}]*\}|[^\s$.,;]+)", text[start:])
            inner = bare.group(1) if bare else ""
            yield Statement(text=inner, line="", source="box", position=match.start())
            continue
        end = _closing_brace(text, start)
        inner = text[start + 1 : end].strip()
        following = _BOX.search(text, end)
        between = text[end + 1 : following.start()] if following else ""
        yield Statement(text=inner, line=between, source="box", position=match.start())


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


_STEP = re.compile(
    r"^\s*(?:(?:step|part|case)\s*\d+|\d+)\s*[.:)]\s*|^\u7b2c.{1,3}\u6b65[:\uff1a,\uff0c]?",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_CUE = re.compile(
    r"=|\b(?:is|are|was|were|so|thus|therefore|hence|total|altogether|makes?|gives?|gets?"
    r"|equals?|leaves?|has|have|be|costs?|earns?|needs?|takes?|which)\b"
    r"|\u6240\u4ee5|\u5171|\u662f|\u4e3a|\u7b49\u4e8e",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:cannot|can't|could not|couldn't|unable|don't know|do not know|not enough"
    r"|no (?:valid )?answer|insufficient|impossible to)\b",
    re.IGNORECASE,
)
_NUMBER_IN_PROSE = re.compile(
    r"(?:(?<![\w)])[-+]\s?)?[$\u20ac\u00a3\u00a5]?\s?(?:(?<![\w)])[-+])?(?<![\d.,^])"
    r"(?:\d{1,3}(?:,\d{2,3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?(?:[eE][-+]?\d+)?\s?(?:%|\\%|percent\b)?"
)


_UNFINISHED = re.compile(
    r"[\d)]\s*[+*/x\u00d7]\s*[$\u20ac\u00a3]?[\d.,]+\s*$|\d\s+-\s+[$\u20ac\u00a3]?[\d.,]+\s*$"
)

_FORMULA = re.compile(r"\d[a-zA-Z]\b|[a-zA-Z]\s*[+^*/-]\s*\d|\\[a-zA-Z]")
_DENIED = re.compile(r"(?:\bnot|n't)(?:\s+[a-z]+){0,2}\s*$", re.IGNORECASE)


def _unmarked(text: str) -> Statement | None:
    """Take a short response as a whole, else the result of its last concluding sentence."""
    whole = text.strip()
    if not whole or _REFUSAL.search(whole):
        return None
    if "\n" not in whole and _is_answer_alone(whole):
        text = unwrap_mathematics(whole.removesuffix("."))
        return Statement(text=text, line=whole, source="whole", position=0)
    position = len(whole)
    sentences = [s for s in _SENTENCE.split(unify_characters(whole[-4000:])) if s and s.strip()]
    for index, sentence in enumerate(reversed(sentences)):
        label = _STEP.match(sentence)
        body = sentence[label.end() :] if label else sentence
        if re.search(r"[=+*/-]\s*$", body):
            return None
        numbers = list(_NUMBER_IN_PROSE.finditer(body))
        cued = "=" in body if label else bool(_CUE.search(body))
        if not numbers or not (cued or (index == 0 and not label)):
            if index == 0 and label:
                return None
            continue
        if "=" not in body and _UNFINISHED.search(body[: numbers[-1].end()]):
            # The sentence ends in a sum that was not worked out.
            return None
        after_equals = body.rpartition("=")[2]
        result = _NUMBER_IN_PROSE.search(after_equals) if "=" in body else numbers[-1]
        if result is None or _DENIED.search(body[: result.start()]):
            return None
        if "=" in body and _FORMULA.search(after_equals):
            text = after_equals.strip()
            return Statement(text=text, line=text, source="result", position=position)
        return Statement(text=result.group().strip(), line=body, source="result", position=position)
    return None


def _is_answer_alone(text: str) -> bool:
    if len(text) > 200:
        return False
    math = re.fullmatch(r"\$+[^$]+\$+\.?", text) or text.startswith("\\")
    if math or re.fullmatch(r"\(?[A-Za-z]\)?[.:)]?(?:\s.{0,60})?", text):
        return bool(math) or len(text.split()) == 1 or text[1:2] in ".):" or text[2:3] in ".):"
    words = text.split()
    if len(words) <= 3:
        if any(c.isdigit() for c in text):
            return read_number(normalize(text)) is not None
        return "=" not in text
    return bool(re.match(r"\$[^$]+\$\s+\w+$", text))
