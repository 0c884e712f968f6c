"""One of a set of labels: {"label": "helpful"}, Label: helpful, [[helpful]], or the label alone.

A label is met whole, whatever its case and whether its words are joined by spaces, hyphens or underscores; part of a
label is none.
"""

import re

from critic.verdicts.grammar import (
    UnclearError,
    first_line,
    label_pattern,
    last_line,
    last_sentence,
    opened,
    plain,
    words,
)

_END = re.compile(
    r"[*_`~\"'\u201d\u2019)\]}\u300d]*\s*"
    r"(?:$|\n|,(?!\s*[-+]?\d)|\.(?!\d)|:(?!\d|\s*[*_`]{0,2}(?:(?i:yes|no|true|false))\b)"
    r"|[;!(<\u3002\uff0c\uff1b\uff08]|[\u2014\u2013](?!\s*\d)|-\s(?!\d)|(?:because|since|as)\b)"
)
_MORE = re.compile(
    r"[*_`~\"'\u201d\u2019)\]]*\s*(?:[,:/|;&\u2014\u2013-]|\bor\b|\band\b)\s*(?:or\b|and\b)?\s*"
)
_ITEM = re.compile(r"\d{1,3}[.)]\s")
"""An item of a list, and no label that is a number."""
_LABELS = re.compile(
    "(?i:"
    + label_pattern(
        r"label|category|class|classification|verdict|judge?ment|decision|conclusion|"
        r"(?:label|classif|categor)\w{0,4} (?:it|this|the \w+) as|"
        r"\u6807\u7b7e|\u7c7b\u522b|\u5206\u7c7b|\u5224\u65ad|\u7ed3\u8bba",
        r"answer|result|grade|choice|outcome|rating",
        links=r"is|was|would be|\u662f|\u4e3a",
    )
    + ")"
)


class LabelGrammar:
    """One of the labels, as they are spelled."""

    keys = words(
        "label category class classification verdict result answer choice grade judgment judgement decision outcome "
        "rating predicted_label prediction \u6807\u7b7e \u7c7b\u522b"
    )
    labels = _LABELS

    def __init__(self, labels: tuple[str, ...]) -> None:
        """Look for these; longer ones first, so that none hides in another."""
        ordered = sorted(labels, key=len, reverse=True)
        self._patterns = [
            (label, re.compile(r"[\s_-]+".join(map(re.escape, _words(label))), re.I))
            for label in ordered
        ]

    def exact(self, value: object, *, bracketed: bool = False) -> str | None:
        """Read a label, or a text that begins with one."""
        if isinstance(value, bool | int | float):
            value = str(value).lower() if isinstance(value, bool) else f"{value:g}"
        if not isinstance(value, str):
            return None
        return self._whole(value) or self.statement(value)

    def statement(self, rest: str) -> str | None:
        """Read a label at the start that ends there."""
        text = opened(rest)
        for label, pattern in self._patterns:
            match = pattern.match(text)
            if match and _END.match(text, match.end()):
                more = _MORE.match(text, match.end())
                if more and self._another(label, text[more.end() :]):
                    raise UnclearError(f"found a list of labels: {text[:60]!r}")
                return label
        return None

    def closing(self, body: str) -> str | None:
        """Read a last line that is a label, a first line that is one or begins with one."""
        first = first_line(body)
        alone = (
            self._whole(last_line(body)) or self._whole(last_sentence(body)) or self._whole(first)
        )
        return alone if alone or _ITEM.match(first) else self.statement(first)

    def claims(self, body: str) -> frozenset[object]:
        """Return nothing: what prose says for a label is not told by rule."""
        return frozenset()

    def _another(self, label: str, text: str) -> bool:
        """Whether a text begins with another of the labels."""
        matches = (p.match(text) for name, p in self._patterns if name != label)
        return any(match and not text[match.end() :][:1].isalnum() for match in matches)

    def _whole(self, text: str) -> str | None:
        said = re.sub(r"^(?:[#>]+|-\s|\s)+", "", text)
        for candidate in (said, plain(said)):
            for label, pattern in self._patterns:
                if pattern.fullmatch(candidate.strip()):
                    return label
        return None


def _words(label: str) -> list[str]:
    return re.split(r"(?<=\w)[\s_-]+(?=\w)", label.strip())
