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
        if not (_EXAMPLE.search(before) or _CONDITION.match(after)):
            found.append((match, value, unclear))
    listed = set()
    for (one, first, _), (other, second, _) in pairwise(found):
        between = body[one.end() : other.start()]
        if first != second and len(between) < 16 and _LISTED.fullmatch(between):
            listed |= {one.start(), other.start()}
    for match, value, unclear in found:
        if match.start() in listed:
            value, unclear = None, f"found a list of verdicts at {match[0]!r}"
        yield Candidate(start=match.start(), end=match.end(), value=value, unclear=unclear)


def _finals(body: str, grammar: Grammar[V]) -> Iterator[Candidate[V]]:
    return (candidate for candidate in _statements(body, grammar) if candidate.rank == 3)


def _statements(body: str, grammar: Grammar[V]) -> Iterator[Candidate[V]]:
    for match in grammar.labels.finditer(body):
        rest = match["rest"]
        line = rest.lstrip()
        crossed = "\n" in rest[: len(rest) - len(line)]
        before = body[max(0, match.start() - 48) : match.start()]
        if _EXAMPLE.search(before) or (crossed and _ITEM.match(line)):
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
        )


def _rank(body: str, match: re.Match[str]) -> int:
    """Say how much weight a statement has, by the words before its label on the same line."""
    separator = match["sep"].strip()
    line = body[max(body.rfind("\n", 0, match.start()) + 1, match.start() - 80) : match.start()]
    line = _LIST_MARK.sub("", line, count=1)
    before = _STOP.split(line)[-1]
    words = [word.casefold() for word in re.findall(r"[^\W\d_]+", before)]
    colon = not separator[:1].isalpha()
    if colon and (_FINAL & set(words[-2:]) or before.endswith("\u6700\u7ec8")):
        return 3
    if separator.startswith("of"):
        return 1
    if colon and before == line and 0 < len([w for w in words if w not in _FILLER]) <= 4:
        return 0
    return 2
