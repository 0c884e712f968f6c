"""What a kind of verdict must say about itself so that the reader can find it."""

import re
from typing import Protocol, TypeVar

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

OPEN = "*_`~\"'\u201c\u201d\u2018\u2019$([{ \t"
"""Markup that may stand before a value."""
CLOSE = "*_`~\"'\u201c\u201d\u2018\u2019$)]}> \t.,;:!\u3002\uff0c\uff1b\uff01"
"""Markup and punctuation that may stand after a value."""

_FULL_WIDTH = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    0x2212: 0x2D,
    0x3000: 0x20,
}


class UnclearError(ValueError):
    """What should be a verdict is none that counts; the message says what was found."""


class Grammar(Protocol[V_co]):
    """One kind of verdict."""

    @property
    def keys(self) -> frozenset[str]:
        """Names of JSON fields and of tags that hold it, in plain lower case."""
        ...

    @property
    def labels(self) -> re.Pattern[str]:
        """Words that introduce it; see `label_pattern`."""
        ...

    def exact(self, value: object, *, bracketed: bool = False) -> V_co | None:
        """Read the content of a field, a tag or (`bracketed`) of [[ ]]; None if it is something else.

        Raises:
            UnclearError: it is meant as a verdict and does not count as one.
        """
        ...

    def statement(self, rest: str) -> V_co | None:
        """Read what follows a label; as `exact`."""
        ...

    def closing(self, body: str) -> V_co | None:
        """Read a text that has neither fields nor labels, by its last words or its first; as `exact`."""
        ...

    def claims(self, body: str) -> frozenset[object]:
        """Return the verdicts that the prose speaks for."""
        ...


def label_pattern(labels: str, colon_labels: str = "", *, links: str) -> str:
    """Return the pattern of a labelled statement, with groups `sep`, `rest` and `note` (what stands in brackets).

    Args:
        labels: words that may be followed by a colon or a link such as "is".
        colon_labels: words that count with a colon only.
        links: words between a label and its value.
    """
    mark = r"[*_`~\"'\u201d\u2019)\]]{0,6}[ \t]{0,3}"
    note = r"(?:[ \t]?(?P<note>[(\[][^()\[\]\n]{1,30}[)\]]))?"
    of_what = r"(?:[ \t](?:of|for) (?:this|the|my)(?: \w{1,20}){1,3})?"
    colon = r"[:\uff1a=|]|[-\u2013=]{1,2}>|\u2192|(?<=[ \t])[-\u2013\u2014](?=[ \t])"
    link = rf"(?(loose)(?:{links})(?:(?<=[^\x00-\x7f])|(?![A-Za-z]))[ \t]?:?|(?!))"
    only = rf"|(?:{colon_labels})" if colon_labels else ""
    label = rf"(?:(?P<loose>{labels}){only})(?![A-Za-z]){note}{of_what}"
    return rf"(?<![A-Za-z0-9]){label}{mark}(?P<sep>{colon}|{link})(?=(?P<rest>\s{{0,6}}[^\n]{{0,200}}))"


def words(listed: str, separator: str | None = None) -> frozenset[str]:
    """Return the words of a list written as one text."""
    return frozenset(listed.split(separator))


def plain(text: str) -> str:
    """Return a value's text without the markup around it, full-width signs made plain."""
    return text.translate(_FULL_WIDTH).lstrip(OPEN + "\n").rstrip(CLOSE + "\n")


def opened(text: str) -> str:
    """Return a text without the markup before its first word, full-width signs made plain."""
    return text.translate(_FULL_WIDTH).lstrip(OPEN + "\n")


def first_line(body: str) -> str:
    """Return the first line that says something."""
    return next((line.strip() for line in body.split("\n") if line.strip(CLOSE + OPEN + "#-")), "")


def last_line(body: str) -> str:
    """Return the last line that says something."""
    lines = reversed(body.split("\n"))
    return next((line.strip() for line in lines if line.strip(CLOSE + OPEN + "#-")), "")


def last_sentence(body: str) -> str:
    """Return the last sentence of the last line, without markup around it."""
    line = plain(last_line(body).lstrip("#>- "))
    return re.split(r"(?<=[.!?;\u3002\uff01])\s+", line[-400:])[-1].strip()
