"""Yes or no: CORRECT, no, {"passed": false}, Verdict: incorrect. Whole words only: INCORRECT holds CORRECT.

"Partially correct" and its like are neither, and reported. In prose the first word decides ("No, yes would be wrong").
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

_YES = (
    r"correct|yes|true|pass|passed|passes|valid|accept|accepted|acceptable|right|success|successful|satisfied|met|"
    r"\u6b63\u786e|\u901a\u8fc7|\u662f\u7684|\u5bf9\u7684|\u662f|\u5bf9|\u2713|\u2714|\u2705"
)
_NO = (
    r"incorrect|no|false|fail|failed|fails|invalid|reject|rejected|unacceptable|wrong|unsuccessful|unsatisfied|"
    r"\u4e0d\u6b63\u786e|\u9519\u8bef|\u4e0d\u901a\u8fc7|\u672a\u901a\u8fc7|\u4e0d\u5bf9|\u4e0d\u662f|\u5426|\u9519|\u2717|\u2718|\u274c"
)
_NOT = r"(?:(?:is|was|does|did|do|has)(?:n't| not)|it(?:'s| is) not|not)\s+"
_FULLY = r"(?:(?:fully|completely|entirely|absolutely|definitely|totally|clearly|indeed|perfectly|factually)\s+)?"
_MARKS = "\u2713\u2714\u2705\u2717\u2718\u274c"
_END = (
    r"(?=[*_`~\"'\u201d\u2019)\]}\u300d]*\s*"
    rf"(?:$|\n|[.,;!(<\u2014\u2013\u3002\uff0c\uff1b\uff08{_MARKS}]|-\s|(?:because|since|as)\b"
    r"|:(?!\s*[*_`\"']{0,2}(?:\d|(?:yes|no|true|false|none|null|all|n/a)\b))))"
)
_WORD = re.compile(rf"(?i:(?:(?P<not>{_NOT})|{_FULLY})(?:(?P<yes>{_YES})|(?P<no>{_NO})){_END})")
_MARKED = re.compile(rf"[{_MARKS}]\s*[*_]{{0,3}}(?=[A-Za-z])")
"""A mark before a word that says the same."""
_PRONOUN = re.compile(r"(?i:(?:(?P<yes>yes)|no)\s+(?:it|this|that|they|he|she|the)\b)")
_HEDGE = re.compile(
    r"(?i:(?:it is |it's )?(?:partial(?:ly)?|partly|mostly|somewhat|nearly|almost|largely|mixed|maybe|perhaps|unsure|"
    r"unknown|unclear|undetermined|uncertain|ambiguous|n/?a\b|neither|likely|probably|possibly|cannot|can't|none|null|"
    r"not (?:entirely|fully|completely|quite|sure|applicable|wholly|exactly|totally)|half|semi|"
    r"\u90e8\u5206|\u4e0d\u786e\u5b9a))"
)
_BUT = re.compile(
    r"(?i:[*_`~\"')\]]*[\s.,;:\u2014\u2013-]*"
    r"(?:but\b|(?:al)?though\b|except\b|if\b|partial|partly|mostly|and no\b|or\b|/))"
)
_SUBJECT = (
    r"(?:answer|response|solution|submission|result|output|statement|claim|assistant|it|this|that)"
)
_NOUN = r"(?:answer|response|solution|submission|result|output|statement|claim|assistant)"
_CLOSING = re.compile(
    r"(?i:(?:therefore|thus|so|hence|overall|in conclusion|in summary|finally|as a result)?,?\s*"
    r"(?:I (?:think|believe|conclude|find|judge)(?: that)?\s+)?"
    r"(?:it|this|that|(?:(?:the|this|that|its|their|my)\s+)?"
    rf"(?:(?!reference|expected|gold|ground|correct|(?:the|that|this|if|whether)\b)[\w'\u2019]+\s+){{0,3}}?{_NOUN})"
    r"\s+(?P<rest>(?:is|was)(?:n't|n\u2019t)?\s+.{1,80}))",
)
_SENTENCE = re.compile(r"(?i:the|this|that|it|its|their|my)\s")
_CLAIM = re.compile(
    rf"(?i:\b{_SUBJECT}\s+is\s+{_FULLY}(?:(?P<yes>correct|right)|(?P<no>incorrect|wrong|not correct))\b)"
)
_LABELS = re.compile(
    "(?i:"
    + label_pattern(
        r"verdict|judge?ment|decision|conclusion|ruling|\u5224\u65ad|\u7ed3\u8bba|\u5224\u5b9a",
        r"answer|result|assessment|evaluation|grade|label|outcome|correct|is (?:it )?correct|passed|pass|correctness|"
        r"pass\s?/\s?fail|yes\s?/\s?no|true\s?/\s?false|correct\s?/\s?incorrect|\u7ed3\u679c|\u662f\u5426\u6b63\u786e",
        links=r"is|was|would be|\u662f|\u4e3a",
    )
    + ")"
)


class BinaryGrammar:
    """True for yes, False for no."""

    keys = words(
        "correct is_correct passed pass passes verdict result answer label judgment judgement grade decision valid "
        "correctness outcome acceptable ruling assessment evaluation score \u5224\u65ad \u7ed3\u8bba"
    )
    labels = _LABELS

    def exact(self, value: object, *, bracketed: bool = False) -> bool | None:
        """Read a JSON boolean, 1 or 0, or a word."""
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float) and value in (0, 1):
            return value == 1
        if not isinstance(value, str):
            return None
        text = plain(value).casefold()
        if text in ("1", "y", "0", "n"):
            return text in ("1", "y")
        return self.statement(value)

    def statement(self, rest: str) -> bool | None:
        """Read a word at the start that ends there."""
        text = opened(rest)
        marked = _MARKED.match(text)
        text = text[marked.end() :] if marked else text
        if _HEDGE.match(text):
            raise UnclearError(f"found {text[:60]!r}, neither yes nor no")
        match = _WORD.match(text) or _PRONOUN.match(text)
        if match is None:
            if not _SENTENCE.match(text):
                return None
            return self._of_sentence(re.split(r"(?<=[.!?])\s|\n", text, maxsplit=1)[0])
        yes = match["yes"] is not None
        if yes and _BUT.match(text, match.end()):
            raise UnclearError(f"found {text[:60]!r}, neither yes nor no")
        if match.groupdict().get("not"):
            if not yes:
                raise UnclearError(f"found {text[:60]!r}, neither yes nor no")
            return False
        return yes

    def closing(self, body: str) -> bool | None:
        """Read a last line that is a word, a last sentence that calls the answer right or wrong, a first word."""
        last, first = last_line(body).lstrip("#>- "), first_line(body).lstrip("#>- ")
        if len(last) <= 60 and last != first:
            value = self.statement(last)
            if value is not None:
                return value
        value = self._of_sentence(last_sentence(body))
        if value is not None:
            return value
        said = last_sentence(body)
        if said != plain(first) and len(said.split()) <= 2:
            value = self.statement(said)
            if value is not None:
                return value
        if re.match(r"(?i:right\b)", opened(first)) and plain(first).casefold() != "right":
            return None
        return self.exact(first) if first == body.strip() else self.statement(first)

    def _of_sentence(self, said: str) -> bool | None:
        """Read a sentence that calls the answer right or wrong, as a whole."""
        sentence = _CLOSING.fullmatch(said)
        return (
            self.statement(re.sub(r"^(?i:is|was)\s+", "", sentence["rest"])) if sentence else None
        )

    def claims(self, body: str) -> frozenset[object]:
        """Return whether the answer is called right or wrong in so many words."""
        return frozenset(match["yes"] is not None for match in _CLAIM.finditer(body))
