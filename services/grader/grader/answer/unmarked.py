"""Finds the answer of a response that announces none: a short response as a whole, else its last result."""

import re

from grader.answer.normalize import normalize, unify_characters
from grader.answer.numerals import read_number
from grader.answer.spans import keep_factorial, unwrap_mathematics
from grader.answer.statement import Statement
from grader.answer.words import NUMBER_WORDS

_LABEL = re.compile(
    r"^\s*(?:(?:step|part|case)\s*\d+|\d+)\s*[.:)]\s*|^\u7b2c.{1,3}\u6b65[:\uff1a,\uff0c]?",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"[\s*_#(\[]*(?:verification|check|proof|note|remark|p\.?s\.?)\b[*_]*\s*:", re.IGNORECASE
)
_INTENT = re.compile(
    r"\s*(?:let(?:'s|\s+me|\s+us)|i\s+will|i'll|(?:we|i)\s+(?:need\s+to|must|should|have\s+to|will))\b",
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
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+]\s?)?[$\u20ac\u00a3\u00a5]?\s?(?:(?<![\w)])[-+])?(?<![\d.,^A-Za-z])"
    r"(?:\d+\s\d+/\d+|\d{1,3}(?:,\d{2,3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?(?:[eE][-+]?\d+)?\s?(?:%|\\%|percent\b)?"
)
_UNFINISHED = re.compile(
    r"[\d)]\s*[+*x\u00d7]\s*[$\u20ac\u00a3]?[\d.,]+\s*$|\d\s+[-/]\s+[$\u20ac\u00a3]?[\d.,]+\s*$"
)
_FORMULA = re.compile(r"\d[a-zA-Z]\b|[a-zA-Z]\s*[+^*/-]\s*\d|\\[a-zA-Z]")
_DENIED = re.compile(r"(?:\bnot|n't)(?:\s+[a-z]+){0,2}\s*$", re.IGNORECASE)
_YEAR = re.compile(
    r",?\s+(?:(?:reported|stated)\s+)?(?:in|of|for|during|since|by)\s+(?:(?:fiscal|the\s+year|year|fy)\s+)?(?:19|20)\d\d\b",
    re.IGNORECASE,
)
_SEGMENT = re.compile(
    r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]|(\\[dtc]?frac\{[^{}]*\}\{[^{}]*\})"
)
_TUPLE = re.compile(r"\((?:\s*-?[\d./]+\s*,)+\s*-?[\d./]+\s*\)")
_PROSE = re.compile(r"(?<!\\)\b[a-zA-Z]{3,}")
_MATHS_ALONE = re.compile(r"(?:\$+[^$]+\$+\.?\s*(?:(?:,|;|and|or)\s*)*)+")
_FORMULA_ALONE = re.compile(
    r"[\d(.+\u2212\u221a\u03c0-][\w+*/^().\u2212\u221a\u03c0\u00b2\u00b3-]*"
)
_LETTERS = re.compile(r"[a-zA-Z]{3,}")
_WORDS = "|".join(sorted(NUMBER_WORDS, key=len, reverse=True))
_WRITTEN = re.compile(
    rf"(?<![\w-])(?:(?:minus|negative)\s+)?(?:{_WORDS})(?:(?:\s*-\s*|,?\s+|\s+and\s+)(?:{_WORDS}))*(?:\s+and\s+a\s+half)?(?![\w-])",
    re.IGNORECASE,
)
_CHINESE_RESULT = re.compile(
    r"(?:\u5171|\u662f|\u4e3a|\u7b49\u4e8e|\u5269|\u8981|\u5f97|\u6709|\u51fa|\u4e86|\u5230|\u82b1|\u7528|\u4e70|\u5356)\u4e0b?(?P<rest>[\u8d1f\u96f6\u4e00\u4e8c\u4e24\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341\u767e\u5343\u4e07\u4ebf\u534a].*)"
)
_VERDICT = re.compile(
    r"(?:so|hence|thus|therefore|is)[,:]?\s+(yes|no|true|false)\s*[.!]?$", re.IGNORECASE
)
_VERDICT_FIRST = re.compile(r"(yes|no|true|false)\s*[.,;:!]", re.IGNORECASE)


def unmarked(text: str) -> Statement | None:
    """Take a short response as a whole, else the result of its last concluding sentence."""
    whole = text.strip()
    if not whole or _REFUSAL.search(whole):
        return None
    if "\n" not in whole and _is_answer_alone(whole) and not _concludes(whole):
        text = unwrap_mathematics(whole.removesuffix("."))
        return Statement(text=text, line=whole, source="whole", position=0)
    sentences = [s for s in _SENTENCE.split(unify_characters(whole[-4000:])) if s and s.strip()]
    sentences = [s for s in sentences if not _ASIDE.match(s)]
    for index, sentence in enumerate(reversed(sentences)):
        found, ended = _conclusion(sentence, last=index == 0)
        if found is not None:
            text, line = found
            return Statement(text=text, line=line, source="result", position=len(whole))
        if ended:
            break
    first = _VERDICT_FIRST.match(whole)
    if first and not any(c.isdigit() for c in whole):
        return Statement(text=first.group(1), line=whole, source="result", position=0)
    return None


def last_number(text: str) -> Statement | None:
    """Take the last number that stands anywhere in a response."""
    numbers = list(_NUMBER.finditer(unify_characters(text)))
    if not numbers:
        return None
    found = numbers[-1]
    return Statement(
        text=found.group().strip(), line=found.group(), source="last", position=found.start()
    )


def _conclusion(sentence: str, *, last: bool) -> tuple[tuple[str, str] | None, bool]:
    """Return a sentence's result with its line, or whether the search ends without one."""
    label = _LABEL.match(sentence)
    body = sentence[label.end() :] if label else sentence
    if re.search(r"[=+*/-]\s*$", body) or (last and "=" not in body and _INTENT.match(body)):
        return None, True
    cued = "=" in body if label else bool(_CUE.search(body))
    if cued or (last and not label):
        formula = _formula(body)
        if formula:
            return (formula, body), False
    numbers = list(_NUMBER.finditer(body))
    if len(numbers) > 1 and "=" not in body:
        body = _YEAR.sub("", body)
        numbers = list(_NUMBER.finditer(body)) or numbers
    if not numbers and last and not label:
        written = _written(body, cued=cued)
        if written:
            return (written, written), False
    if not numbers or not (cued or (last and not label)):
        return None, last and label is not None
    if "=" not in body and _UNFINISHED.search(body[: numbers[-1].end()]):
        # The sentence ends in a sum that was not worked out.
        return None, True
    after_equals = body.rpartition("=")[2]
    result = _NUMBER.search(after_equals) if "=" in body else numbers[-1]
    if result is None or _DENIED.search(body[: result.start()]):
        return None, True
    if "=" in body and _FORMULA.search(after_equals):
        formula = after_equals.strip()
        return (formula, formula), False
    return (result.group().strip(), body), False


def _formula(body: str) -> str | None:
    """Return the last piece of mathematics of a sentence, if no number comes after it."""
    found = [m for m in _SEGMENT.finditer(body)] if body.count("$") % 2 == 0 else []
    found += list(_TUPLE.finditer(body))
    if not found:
        return None
    last = max(found, key=lambda m: m.end())
    inner = next((group for group in last.groups() if group), last.group())
    if _PROSE.search(re.sub(r"\\(?:text|begin|end)\{[^{}]*\}", "", inner)) or _NUMBER.search(
        _YEAR.sub("", body[last.end() :])
    ):
        return None
    if _DENIED.search(body[: last.start()]):
        return None
    return keep_factorial(inner.strip())


def _written(body: str, *, cued: bool) -> str | None:
    """Return a number in words, or a yes or no, that a sentence without digits ends with."""
    verdict = _VERDICT.search(body.strip())
    if verdict:
        return verdict.group(1)
    if not cued:
        return None
    chinese = _CHINESE_RESULT.search(body)
    if chinese and read_number(normalize(chinese.group("rest"))) is not None:
        return chinese.group("rest")
    words = [m.group() for m in _WRITTEN.finditer(body)]
    words = [w for w in words if w.lower() != "one"]
    if not words or _DENIED.search(body[: body.rindex(words[-1])]):
        return None
    return words[-1]


def _concludes(text: str) -> bool:
    """Whether a few words without digits are a sentence that ends in a number."""
    if any(c.isdigit() for c in text) or not _CUE.search(text):
        return False
    written = _written(text, cued=True)
    return written is not None and written.lower() not in ("yes", "no", "true", "false")


def _is_answer_alone(text: str) -> bool:
    if len(text) > 200:
        return False
    math = _MATHS_ALONE.fullmatch(text) or text.startswith("\\")
    if math or re.fullmatch(r"\(?[A-Za-z]\)?[.:)]?(?:\s.{0,60})?", text):
        return bool(math) or len(text.split()) == 1 or text[1:2] in ".):" or text[2:3] in ".):"
    words = text.split()
    if len(words) <= 3:
        if any(c.isdigit() for c in text):
            if _FORMULA_ALONE.fullmatch(text) and not _LETTERS.search(text):
                return True
            return read_number(normalize(text)) is not None
        return "=" not in text
    return bool(re.match(r"\$[^$]+\$\s+\w+$", text))
