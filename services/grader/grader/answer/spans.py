"""Cuts the span of an answer out of the line that states it."""

import re

from grader.answer.normalize import normalize
from grader.answer.numerals import read_number

MAX_LINE = 4000
"""Characters of a line that are looked at."""
_BLANK = re.compile(r"[\s*_`#$.,:;\-=>\"'\\(){}\[\]<]*")
_EMPTY_SET = re.compile(r"[\s$]*\\\{\s*\\\}[\s$.]*")
_WORD_COMMAND = re.compile(r"\\[a-zA-Z]")
_RULE = re.compile(r"\s*(?:[-*_=`]{3,}\w*|\*+|_+|\\\[|\$\$|:)\s*")
_REMARK = re.compile(
    r"\s+\((?:not|rather|instead|since|because|which|as|i\.e\.|e\.g\.|that|see|from|by|in|after|rounded|approximately|about|i|first|initially|originally|previously)\b[^()]*\)\s*\.?$",
    re.IGNORECASE,
)
_STRUCK = re.compile(r"~~[^~]*~~")
_REJECTED = re.compile(r"not\s+[^,;]{1,40}?,?\s+but\s+(?:rather\s+)?(.+)$", re.IGNORECASE)
_OR_SO = re.compile(r"\s+or\s+so(?=\s*[.!]?$)", re.IGNORECASE)
_ASIDE = re.compile(
    r"(?<=[\w%)}])\s*;\s+(?!and\b|or\b|maybe\b|possibly\b|perhaps\b|alternatively\b|could\b|might\b)(?=[a-z]{3,}\s).*$"
)
_ALTERNATIVE = re.compile(r"(.*\S)\s+\(or\s+([^()]*)\)\s*\.?$")
_DIGITS = re.compile(r"\d+")
_DENIAL = re.compile(
    r",?\s+(?:(?:and|but)\s+)?(?:not|rather\s+than|instead\s+of)\s+[^,;]*$", re.IGNORECASE
)
_SENTENCE_END = re.compile(
    r"(?<![A-Z])[.!?]\s+(?=[A-Z\"'(*\u4e00-\u9fff])|[.]\s+(?=\d+[.)]\s)|\u3002|\uff0c(?=[\u4e00-\u9fff])|\s+(?=Wait\b|Hmm\b)"
)
_REASON = re.compile(
    r",?\s+(?:because|since|so|which|where|as\s+(?:the|we|it|there|she|he)|after|given\s+that|for\s+a\s+total)\b.*$|\s+-\s+[a-z]{2}.*$",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r",\s+(?=[^\W\d_])")
_WORKINGS = re.compile(r"(?<=[a-z])\s+\([\d\s.]+[+*/=x-][\d\s.+*/=x-]+\)\s*\.?$")
_BECAUSE = re.compile(r"(?<=\w),?\s+(?:because|since)\b.*$", re.IGNORECASE)
_WORKED = re.compile(
    r"[\d\s.,()$]*[\d)]\s*[+*/x\u00d7\u00f7-][\d\s.,+*/x\u00d7\u00f7()$=-]*[\d)]\s*=\s*([^=]*\d[^=]*)"
)
_FACTORIAL = re.compile(r"[\w)}]!$")
_MATHS = re.compile(r"\$+[^$]+\$+")
_MARKUP = re.compile(r"</?[a-zA-Z_]+>|<\|[^|]*\|>")


def is_blank(span: str) -> bool:
    """Whether a span holds nothing but punctuation and markup."""
    if _WORD_COMMAND.search(span) or _EMPTY_SET.fullmatch(span):
        return False
    return _BLANK.fullmatch(span) is not None


def tail_after(text: str, start: int) -> str:
    """Return the rest of the line after a marker, or the next line that says something."""
    lines = text[start:].split("\n")
    for index, line in enumerate(lines[:6]):
        cleaned = _MARKUP.sub(" ", line).strip()
        if (cleaned.startswith(("\\[", "$$")) and len(cleaned) <= 3) or (
            "\\begin{" in cleaned and "\\end{" not in cleaned
        ):
            return " ".join(lines[index : index + 12]).strip()
        if is_blank(cleaned) or _RULE.fullmatch(cleaned):
            continue
        return cleaned[:MAX_LINE]
    return ""


def clip_span(line: str) -> str:
    """Return the answer's own words of a line: without remarks, reasons and further sentences."""
    span = _STRUCK.sub("", line).strip()
    rejected = _REJECTED.match(span)
    if rejected:
        span = rejected.group(1)
    span = _OR_SO.sub("", span)
    end = _SENTENCE_END.search(span)
    if end and not is_blank(span[: end.start()]):
        span = span[: end.start()]
    span = _alternative(_REMARK.sub("", span))
    span = _WORKINGS.sub("", span)
    if any(c.isdigit() for c in span):
        span = _clip_clauses(span)
    span = _BECAUSE.sub("", span)
    worked = _WORKED.fullmatch(span)
    if worked:
        span = worked.group(1)
    span = span.strip()
    span = span if span.endswith("...") else span.removesuffix(".").strip()
    span = unwrap_mathematics(span)
    while len(span) > 1 and span[0] in "*`_" and span[-1] in "*`_":
        span = span[1:-1].strip()
    return span.strip("*`").strip()


def _alternative(span: str) -> str:
    """Take `50% (or 0.5)` as one value if both say the same, else as the two that it names."""
    match = _ALTERNATIVE.match(span)
    if match is None:
        return span
    first, second = (read_number(normalize(side)) for side in match.groups())
    if first is not None and second is not None and first.value == second.value:
        return match.group(1)
    return f"{match.group(1)} or {match.group(2)}"


def unwrap_mathematics(span: str) -> str:
    """Return a span without the dollars that delimit it as a whole."""
    if span.count("$") in (2, 4) and _MATHS.fullmatch(span):
        return keep_factorial(span.strip("$").strip())
    return span


def keep_factorial(formula: str) -> str:
    """Put a formula that ends in a factorial in brackets, where the sign is not taken for excitement."""
    return f"({formula})" if _FACTORIAL.search(formula) else formula


def _clip_clauses(span: str) -> str:
    denied = _DENIAL.search(span)
    if denied:
        head = span[: denied.start()]
        numbers = set(_DIGITS.findall(head))
        if numbers and not numbers & set(_DIGITS.findall(denied.group())):
            span = head
    span = _ASIDE.sub("", span)
    reason = _REASON.search(span)
    if reason:
        head, tail = span[: reason.start()], reason.group()
        # What follows "so" is a conclusion, not a reason, if it brings another number.
        concludes = re.match(r",?\s+so\b", tail, re.IGNORECASE) and any(c.isdigit() for c in tail)
        if any(c.isdigit() for c in head) and not concludes:
            span = head
    for match in _CLAUSE.finditer(span):
        head, tail = span[: match.start()], span[match.end() :]
        if (
            any(c.isdigit() for c in head)
            and not any(c.isdigit() for c in tail)
            and "\\" not in tail
        ):
            return head
    return span
