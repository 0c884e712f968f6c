"""Cuts the span of an answer out of the line that states it."""

import re

_BLANK = re.compile(r"[\s*_`#$.,:;\-=>\"'\\(){}\[\]<]*")
_WORD_COMMAND = re.compile(r"\\[a-zA-Z]")
_RULE = re.compile(r"\s*(?:[-*_=`]{3,}\w*|\*+|_+|\\\[|\$\$|:)\s*")
_REMARK = re.compile(
    r"\s+\((?:not|rather|instead|since|because|which|as|i\.e\.|e\.g\.|or|that|see|from|by|in|after|rounded|approximately|about)\b[^()]*\)\s*\.?$",
    re.IGNORECASE,
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
_MATHS = re.compile(r"\$+[^$]+\$+")
_MARKUP = re.compile(r"</?[a-zA-Z_]+>|<\|[^|]*\|>")


def is_blank(span: str) -> bool:
    """Whether a span holds nothing but punctuation and markup."""
    if _WORD_COMMAND.search(span):
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
        return cleaned
    return ""


def clip_span(line: str) -> str:
    """Return the answer's own words of a line: without remarks, reasons and further sentences."""
    span = line.strip()
    end = _SENTENCE_END.search(span)
    if end and not is_blank(span[: end.start()]):
        span = span[: end.start()]
    span = _REMARK.sub("", span)
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


def unwrap_mathematics(span: str) -> str:
    """Return a span without the dollars that delimit it as a whole."""
    if span.count("$") in (2, 4) and _MATHS.fullmatch(span):
        return span.strip("$").strip()
    return span


def _clip_clauses(span: str) -> str:
    shorter = _REASON.sub("", span)
    if any(c.isdigit() for c in shorter):
        span = shorter
    for match in _CLAUSE.finditer(span):
        head, tail = span[: match.start()], span[match.end() :]
        if (
            any(c.isdigit() for c in head)
            and not any(c.isdigit() for c in tail)
            and "\\" not in tail
        ):
            return head
    return span
