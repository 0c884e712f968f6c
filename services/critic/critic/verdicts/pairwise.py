"""Verdicts between two answers, called A and B: [[A]], [[A>>B]], {"winner": "B"}, <verdict>tie</verdict>, Winner: B.

The forms of MT-bench (arXiv:2306.05685: [[A]], [[B]], [[C]] for a tie; C means a tie there only) and of Arena-Hard
(arXiv:2406.11939: [[A>>B]], [[A=B]]). A comparison without a verdict is none, and never a tie.
"""

import re

from critic.questions import Winner
from critic.verdicts.grammar import (
    OPEN,
    UnclearError,
    first_line,
    label_pattern,
    last_line,
    last_sentence,
    opened,
    plain,
    words,
)

_NOUN = (
    r"(?i:(?:assistant|answer|response|model|option|candidate|output|solution|system|preset|version|summary|text|choice|"
    r"completion|essay|reply|agent|\u52a9\u624b|\u56de\u7b54|\u7b54\u6848|\u6a21\u578b|\u9009\u9879|\u56de\u590d)[\s_:-]{0,2})?"
)
_TIES = words(
    "tie|tied|a tie|it's a tie|it is a tie|draw|a draw|equal|equally good|both equal|both|neither|both bad|both good|"
    "both are equally good|both are equal|no preference|no difference|tie (bothbad|tie(bothbad|"
    "\u5e73\u5c40|\u5e73\u624b|\u6253\u5e73|\u6301\u5e73|\u4e0d\u5206\u4e0a\u4e0b|\u4e00\u6837\u597d",
    "|",
)
_ORDER = re.compile(
    rf"{_NOUN}([AB])\s*(?:(>{{1,3}}|<{{1,3}}|={{1,2}}|\u2248|\u226b|\u226a)|(?i:over|beats))\s*{_NOUN}([AB])(?![A-Za-z])"
)
_TIE_SAID = re.compile(
    r"(?i:(?:it(?:'s| is) )?(?:an? )?(?:tie|draw)|tied|equal|equally good|both are equal(?:ly good)?"
    r"|\u5e73\u5c40|\u5e73\u624b)"
    r"(?:[^\w\s-]|\s*$|\s+(?:between|because|since|as)\b)"
)
_NEITHER = re.compile(
    rf"(?i:unclear|undecided|undetermined|inconclusive|none\b|null\b|n/?a\b|cannot|can't|unable|invalid|unsure)"
    rf"|{_NOUN}[AB]\s*(?:/|,|\||(?i:or|and)\b)\s*{_NOUN}[AB](?![A-Za-z'])(?=\W*(?:$|\n|or\b|/|\|))"
)
_BETTER = (
    r"(?:better|best|superior|stronger|strongest|preferable|preferred|winner|\u66f4\u597d)"
    r"(?: (?:one|answer|response|choice|option|overall|assistant|model))*"
)
_ADVERBS = r"(?:(?:\w+ly|much|far|still|the|a bit|overall|simply|just|also|somewhat)\s+){0,4}"
_NAMED = re.compile(
    rf"{_NOUN}([AB])(?=[*_`~\"'\u201d\u2019)\]}}\u300d]*\s*"
    rf"(?:$|\n|[.,;:!(<\u2014\u2013\u3002\uff0c\uff1b\uff08-]"
    rf"|(?i:because|since|as|due to|wins|by)\b|is {_ADVERBS}{_BETTER}))"
)
_OTHERS = re.compile(
    rf"[*_`~\"'\u201d\u2019)\]]*\s*(?:[,;/|&]\s*)?(?:\(?(?:or|and)\b,?\s*)?{_NOUN}(?:[AB]|(?i:tie))(?![A-Za-z'])"
    r"(?=\W*(?:$|\n|or\b|and\b))|\s*[,;/|&]\s*[AB]\s*[,;/|&]"
)
_SPLIT = re.compile(
    rf"{_NOUN}[AB] (?:is|was) {_ADVERBS}{_BETTER} (?:at|in|on|for|with|regarding)\b[^.\n]{{0,80}}?"
    rf"\b(?:but|while|whereas|and)\s+{_NOUN}[AB](?![A-Za-z'])"
)
"""Each is better at something."""
_CLOSINGS = (
    re.compile(
        r"(?i:(?:therefore|thus|so|hence|overall|ultimately|finally|in conclusion|in summary|on balance)?,?\s*)"
        rf"{_NOUN}([AB])\s+(?:(?:is|was)\s+{_ADVERBS}{_BETTER}|wins)(?: than {_NOUN}[AB])?"
        r"(?:,? (?:because|since|as|due to)\b.*)?[.!]*"
    ),
    re.compile(
        r"(?i:(?:therefore|thus|so|hence|overall|ultimately|finally|in conclusion|in summary)?,?\s*"
        r"I (?:would |will |do |slightly |strongly |clearly )?"
        rf"(?:choose|prefer|pick|select|vote for|favou?r|go with) ){_NOUN}([AB])"
        r"(?: overall)?(?:,? (?:because|since|as)\b.*)?[.!]*"
    ),
)
_TIE_CLOSING = re.compile(r"(?i:(?:so |overall,? )?(?:it(?:'s| is) )?a (?:tie|draw))")
_CLAIM = re.compile(
    rf"(?<![A-Za-z0-9]){_NOUN}(?<![A-Za-z0-9])([AB])\s+"
    rf"(?:(?:is|was|remains|sounds|looks|reads|seems|feels)\s+{_ADVERBS}{_BETTER}"
    r"|(?:\w+ly\s+)?(?:wins|outperforms|beats|surpasses|dominates))(?![A-Za-z])"
)
_WORSE = re.compile(
    rf"(?<![A-Za-z0-9]){_NOUN}(?<![A-Za-z0-9])([AB])\s+(?:is|was|remains|sounds|looks|reads|seems|feels)\s+{_ADVERBS}"
    r"(?:worse|worst|inferior|weaker|weakest)(?![A-Za-z])"
)
_LABELS = re.compile(
    "(?i:"
    + label_pattern(
        r"verdict|winner|preference|choice|decision|judge?ment|conclusion|ruling|"
        r"(?:better|best|stronger|superior|preferred|winning) (?:assistant|answer|response|model|option|output|one|"
        r"candidate|solution|summary)|(?:\u5224\u65ad|\u5224\u51b3|\u88c1\u51b3|\u8bc4\u5224)(?:\u7ed3\u679c)?|\u7ed3\u8bba|"
        r"\u80dc\u8005|\u83b7\u80dc\u8005|\u8d62\u5bb6|\u9009\u62e9|"
        r"\u66f4\u597d\u7684(?:\u56de\u7b54|\u7b54\u6848)?|\u4f18\u80dc\u8005",
        r"answer|result|better|best|preferred|overall",
        links=r"is|was|goes to|would be|must be|should be|has to be|\u662f|\u4e3a",
    )
    + ")"
)


class PairwiseGrammar:
    """A, B or tie."""

    keys = words(
        "winner verdict preference preferred choice better best decision judgment judgement result answer winning "
        "selection selected label ruling \u80dc\u8005 \u5224\u65ad \u7ed3\u8bba"
    )
    labels = _LABELS

    def __init__(self, *, ties_allowed: bool) -> None:
        """Take ties as verdicts, or as unclear."""
        self._ties_allowed = ties_allowed

    def exact(self, value: object, *, bracketed: bool = False) -> Winner | None:
        """Read A, B, a tie, or a sentence that begins with one of them."""
        if not isinstance(value, str):
            return None
        text = plain(value)
        if text.casefold() in _TIES or (bracketed and text == "C"):
            return self._tie()
        if len(text) == 1 and text in "abAB":
            return Winner(text.upper())
        named = re.fullmatch(rf"(?i:{_NOUN}([ab]))", text)
        return Winner(named[1].upper()) if named else self.statement(value)

    def statement(self, rest: str) -> Winner | None:
        """Read A or B as a name (not the article), an order such as A > B, or a tie."""
        text = re.sub(r"^(?i:clearly|definitely|obviously|ultimately|overall),? ", "", opened(rest))
        if _SPLIT.match(text):
            raise UnclearError(f"found {text[:60]!r}, and one verdict was asked for")
        if _NEITHER.match(text):
            raise UnclearError(f"found {text[:60]!r}, and one verdict was asked for")
        order = _ORDER.match(text)
        if order:
            return self._ordered(*order.groups())
        if _TIE_SAID.match(text):
            return self._tie()
        named = _NAMED.match(text)
        if named:
            if _OTHERS.match(text, named.end()):
                raise UnclearError(f"found a list of verdicts: {text[:60]!r}")
            return Winner(named[1])
        alone = plain(rest)
        return Winner(alone.upper()) if len(alone) == 1 and alone in "ab" else None

    def closing(self, body: str) -> Winner | None:
        """Read a last line that is a verdict, a last sentence that names the better one, a first line."""
        alone = self._alone(last_line(body))
        if alone is not None:
            return alone
        sentence = last_sentence(body)
        for pattern in _CLOSINGS:
            match = pattern.fullmatch(sentence)
            if match:
                return Winner(match[1])
        if _TIE_CLOSING.fullmatch(sentence):
            return self._tie()
        alone = self._alone(sentence)
        return self._alone(first_line(body)) if alone is None else alone

    def claims(self, body: str) -> frozenset[object]:
        """Return who is called better in so many words."""
        for_one = {Winner(match[1]) for match in _CLAIM.finditer(body)}
        against = {Winner.B if m[1] == "A" else Winner.A for m in _WORSE.finditer(body)}
        return frozenset(for_one | against)

    def _alone(self, line: str) -> Winner | None:
        text = plain(line.lstrip("#>- " + OPEN))
        if text.casefold() in _TIES - {"both", "neither", "equal"}:
            return self._tie()
        order = _ORDER.fullmatch(text)
        if order:
            return self._ordered(*order.groups())
        named = re.fullmatch(rf"{_NOUN}([AB])", text)
        return Winner(named[1]) if named else None

    def _ordered(self, one: str, sign: str | None, other: str) -> Winner | None:
        if one == other:
            return None
        if sign and sign[0] in "=\u2248":
            return self._tie()
        return Winner(other if sign and sign[0] in "<\u226a" else one)

    def _tie(self) -> Winner:
        if not self._ties_allowed:
            raise UnclearError("found a tie, and A or B was asked for")
        return Winner.TIE
