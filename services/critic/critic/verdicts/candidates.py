"""Places in a judge's text where a verdict stands: JSON fields, tags, brackets, labelled statements."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

from critic.verdicts.grammar import Grammar, UnclearError, V, words
from critic.verdicts.objects import find_objects, shallowest

_TAG = re.compile(r"<([A-Za-z][\w-]{0,40})>\s{0,20}([^<>]{1,200}?)\s{0,20}(</\1\s?>|\n|$)")
_BRACKETS = re.compile(r"\[\[([^\[\]\n]{1,60})\]\]")
_BOX = re.compile(r"\\boxed\{([^{}\n]{1,60})\}")
_EXAMPLE = re.compile(
    r"(?:\bnot|(?:for example|for instance|e\.g\.|such as|\u4f8b\u5982)[^\n\[.]{0,24})[\s*_`\"'\u201c]{0,3}$",
    re.I,
)
_ITEM = re.compile(r"\d{1,3}[.)]\s+\S")
_CONDITION = re.compile(
    r"[\"'\u201d\u2019`]{0,2},?\s{0,2}(?:if (?:the )?(?:\w+ )?[AB]\b|if (?:both|they|neither)"
    r"|for (?:a )?(?:tie|draw)\b)"
)
_LISTED = re.compile(
    r"[\"'`]{0,2}\s{0,2}(?:[,/|;]|\u3001)?\s{0,2}(?:or|and|vs\.?|\u6216\u8005?|\u548c)?\s{0,2}[\"'`]{0,2}"
)
_LIST_MARK = re.compile(r"[\s>#*|\u2022-]*(?:\d{1,3}[.)]\s*)?[\s*]*")
_STOP = re.compile(r"[.;:!?,()\u3002\uff0c\uff1b\uff1a]")
_WEAK = words("answer result")
"""Names that a judge also quotes from what it judges; unreadable, they say nothing."""
_FOREIGN = words(
    "max maximum min minimum possible highest lowest passing threshold target previous prior earlier initial baseline "
    "reference reviewer reviewers user users expected gold golden truth student students human original"
)
"""Words before a label that make the verdict another's, or none."""
_SUPPOSED = re.compile(
    r"(?:\b(?:not|never|cannot|no|if|perfect|full|to (?:get|earn|reach|achieve|deserve|receive|merit|have))\b|n't\b"
    r"|\bfor an?\s*$)",
    re.I,
)
"""Before a score that is only spoken of: to get a score of 9, not a score of 9."""
_DISMISSED = re.compile(
    r"\W*[\d./]+\W*\s(?:is|was|seems|feels|looks|would|could|will)\b[^.\n]*?(?:\b(?:not|never|too|un\w+)\b|n't\b)",
    re.I,
)
"""After one: a score of 9 is too generous."""
_ASSIGNED = re.compile(r"\s*[^\s(]{1,24}(?:\s*/\s*\S{1,8})?(?:\W*$|\s*[(.,;])")
"""What stands after = in a statement, and not in a program: a value with nothing but its scale."""
_REPORTED = re.compile(
    r"\b(?:claims?|claimed|asks?|asked|demands?|says|said|states|requests?|wants?|instructs?|outputs?)\b"
    r"|['\u2019]s own\b",
    re.I,
)
"""Before a verdict that another wishes for."""
_QUOTES = ('"', "\u201c", "\u2018", "`", "'")
_KEY = re.compile(r"[\"'`\u201d\u2019]")
"""A quotation mark right after a label: "score": 8."""
_FINAL = words("final finally overall total combined \u6700\u7ec8")
_FILLER = words(
    "my the a an this that so therefore thus hence i is and as in conclusion judge judges your s it would be "
    "give with have here comes now summary"
)
_QUALIFIERS = words(
    "final overall total combined my the is judge judges best which who a b "
    "response answer assistant model option output candidate"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[V]):
    """One place, with what stands there."""

    start: int
    end: int
    value: V | None
    """None: meant as a verdict and not readable as one."""
    unclear: str = ""
    """Why not."""
    reasoning: str = ""
    """Of an object that has a field for it."""
    rank: int = 0
    """Of a statement: 3 says that it is final, 2 is plain, 1 is loose, 0 is about one criterion."""
    loose: bool = False
    """Of a statement: its label is followed by a word ("the score is 8"), as prose on other verdicts may be."""


def structured(body: str, grammar: Grammar[V]) -> list[Candidate[V]]:
    """Return what stands in JSON fields, tags, brackets and final statements, in the order of their ends."""
    objects = list(_objects(body, grammar))
    spans = [(c.start, c.end) for c in objects]
    others = [
        candidate
        for candidate in (
            *_tags(body, grammar),
            *_enclosed(body, grammar, _BRACKETS),
            *_finals(body, grammar),
        )
        if not any(start <= candidate.start < end for start, end in spans)
    ]
    return sorted([*objects, *others], key=lambda candidate: candidate.end)


def statements(body: str, grammar: Grammar[V]) -> list[Candidate[V]]:
    """Return the labelled statements, in their order."""
    return list(_statements(body, grammar))


def _read(grammar: Grammar[V], value: object, *, bracketed: bool = False) -> tuple[V | None, str]:
    try:
        return grammar.exact(value, bracketed=bracketed), ""
    except UnclearError as err:
        return None, str(err)


def plain_key(name: str) -> str:
    """Return a field's name in lower case with single underscores."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return re.sub(r"[^\w]+|_+", "_", spaced).strip("_").casefold()


def _matches(name: str, keys: frozenset[str]) -> bool:
    key = plain_key(name)
    bare = "_".join(word for word in key.split("_") if word not in _QUALIFIERS)
    return key in keys or bare in keys


def _objects(body: str, grammar: Grammar[V]) -> Iterator[Candidate[V]]:
    """One candidate per JSON document that holds a verdict: its shallowest fields, which must agree."""
    for document in find_objects(body):
        fields = shallowest(document.value, lambda name: _matches(name, grammar.keys))
        if not fields:
            continue
        finals = {k: v for k, v in fields if _FINAL & set(plain_key(k).split("_"))}
        read = [(key, *_read(grammar, value)) for key, value in (list(finals.items()) or fields)]
        found = [(v, why) for key, v, why in read if v is not None or plain_key(key) not in _WEAK]
        if not found:
            continue
        values = [value for value, _ in found if value is not None]
        agreed = bool(values) and all(value == values[0] for value in values)
        why = next((unclear for _, unclear in found if unclear), "")
        shown = ", ".join(f"{key}: {str(value)[:40]!r}" for key, value in fields[:4])
        yield Candidate(
            start=document.start,
            end=document.end,
            value=values[0] if agreed else None,
            unclear=why or f"found {shown}" + ("; they disagree" if len(values) > 1 else ""),
            reasoning=document.reasoning,
        )


def _tags(body: str, grammar: Grammar[V]) -> Iterator[Candidate[V]]:
    for tag in _TAG.finditer(body):
        if not _matches(tag[1], grammar.keys):
            continue
        value, unclear = _read(grammar, tag[2])
        if value is not None or tag[3].startswith("<"):
            said = unclear or f"found {tag[0][:80]!r}"
            yield Candidate(start=tag.start(), end=tag.end(), value=value, unclear=said)


def boxed(body: str, grammar: Grammar[V]) -> list[Candidate[V]]:
    """Return what stands in a box: often what the judge worked out, so it counts only where nothing else does."""
    return list(_enclosed(body, grammar, _BOX))


def _enclosed(body: str, grammar: Grammar[V], pattern: re.Pattern[str]) -> Iterator[Candidate[V]]:
    """Verdicts in [[ ]] or a box; not those that only tell of the format, and not lists of choices."""
    found = []
    for match in pattern.finditer(body):
        value, unclear = _read(grammar, match[1], bracketed=pattern is _BRACKETS)
        if value is None and not unclear:
            continue
        before, after = body[max(0, match.start() - 48) : match.start()], body[match.end() :][:60]
        if not (_EXAMPLE.search(before) or _CONDITION.match(after) or _quoted(body, match.start())):
            found.append((match, value, unclear))
    listed = set()
    for (one, first, _), (other, second, _) in pairwise(found):
        between = body[one.end() : other.start()]
        if first != second and len(between) < 16 and _LISTED.fullmatch(between):
            listed |= {one.start(), other.start()}
    standing = [value for match, value, _ in found if _alone(body, match)]
    if found and standing and not _alone(body, found[-1][0]) and found[-1][1] != standing[-1]:
        listed.add(found[-1][0].start())
    for match, value, unclear in found:
        if match.start() in listed:
            value, unclear = None, f"found a list of verdicts at {match[0]!r}"
        yield Candidate(start=match.start(), end=match.end(), value=value, unclear=unclear)


def _line_before(body: str, at: int) -> str:
    """Return what stands before a place on its line, at most 80 characters of it."""
    begin = max(0, at - 80)
    return _LIST_MARK.sub("", body[max(begin, body.rfind("\n", begin, at) + 1) : at], count=1)


def _quoted(body: str, at: int) -> bool:
    """Whether a place is in a quotation within a sentence: what a judge says that another says."""
    line = _line_before(body, at)
    if line.endswith(_QUOTES):
        before = line[:-1]
    elif line.count('"') % 2:
        before = line[: line.rindex('"')]
    elif line.count("\u201c") > line.count("\u201d"):
        before = line[: line.rindex("\u201c")]
    else:
        return False
    return re.search(r"\w", before) is not None


def _alone(body: str, match: re.Match[str]) -> bool:
    """Whether a match has its line for itself."""
    after = body[match.end() : match.end() + 80].partition("\n")[0]
    return not re.search(r"\w", _line_before(body, match.start()) + after)


def _finals(body: str, grammar: Grammar[V]) -> Iterator[Candidate[V]]:
    return (candidate for candidate in _statements(body, grammar) if candidate.rank == 3)


def _statements(body: str, grammar: Grammar[V]) -> Iterator[Candidate[V]]:
    for match in grammar.labels.finditer(body):
        rest = match["rest"]
        line = rest.lstrip()
        crossed = "\n" in rest[: len(rest) - len(line)]
        before = body[max(0, match.start() - 48) : match.start()]
        if (
            _EXAMPLE.search(before)
            or (crossed and _ITEM.match(line))
            or (not _KEY.search(match[0]) and _quoted(body, match.start()))
            or _of_another(body, match)
        ):
            continue
        unclear = ""
        if match["note"] and " " not in line.strip():
            # Score (0-10): 8 states its scale as 8 (0-10) does.
            line = f"{line.rstrip(' .')} {match['note']}"
        try:
            # On a line of its own below the label, the value stands alone; else a list may begin there.
            value = grammar.exact(line) if crossed else grammar.statement(line)
        except UnclearError as err:
            value, unclear = None, str(err)
        if value is None and not unclear:
            continue
        yield Candidate(
            start=match.start(),
            end=match.end() + 1,
            value=value,
            unclear=unclear,
            rank=_rank(body, match),
            loose=match["sep"].strip()[:1].isalpha(),
        )


def _of_another(body: str, match: re.Match[str]) -> bool:
    """Whether a statement is of another (reference answer: yes), of a limit (max score: 10), code, or a supposition."""
    separator = match["sep"].strip()
    clause = _STOP.split(_line_before(body, match.start()))[-1]
    words = [word.casefold() for word in re.findall(r"[^\W\d_]+", clause)]
    if separator == "=" and not (_ASSIGNED.match(match["rest"]) and {*words} <= _FILLER | _FINAL):
        return True
    if separator == "of" and (_SUPPOSED.search(clause) or _DISMISSED.match(match["rest"])):
        return True
    if _REPORTED.search(clause):
        return True
    foreign = _FOREIGN | {"correct"} if match[0].casefold().startswith("answer") else _FOREIGN
    return bool(foreign & {*words[-2:]})


def _rank(body: str, match: re.Match[str]) -> int:
    """Say how much weight a statement has, by the words before its label on the same line."""
    separator = match["sep"].strip()
    line = _line_before(body, match.start())
    before = _STOP.split(line)[-1]
    words = [word.casefold() for word in re.findall(r"[^\W\d_]+", before)]
    colon = not separator[:1].isalpha()
    if colon and (_FINAL & set(words[-2:]) or before.endswith("\u6700\u7ec8")):
        return 3
    if separator.startswith(("of", "would", "should")):
        return 1
    if colon and before == line and 0 < len([w for w in words if w not in _FILLER]) <= 4:
        return 0
    return 2
