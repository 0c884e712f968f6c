"""What guards read of long texts, of texts in other letters, and of the arguments of calls."""

import contextlib
import json
import re
import unicodedata

from trajectory.types import ToolCallRecord

MAX_TEXT = 100_000
"""Characters of each text that a guard reads: of a longer one the beginning and the end, as judges do."""
_FORMAT = re.compile("[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
                     "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]")  # fmt: skip
_PIECE = 256
_WORD = re.compile(r"\w{2,}")
_LATIN = re.compile("[a-z]")
_LIKE_LATIN = str.maketrans(
    "\u0430\u0432\u0435\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0455\u0456\u0458\u0501\u051b\u051d\u04bb\u04cf"
    "\u03b1\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u0131\u0251\u0261",
    "abekmhopctyxsijdqwhlaeikvoptuxiag",
)
"""Cyrillic and Greek letters that look like Latin ones."""


def window(text: str) -> str:
    """Return a text, or of a long one its two ends."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n{text[-half:]}"


def plain(text: str) -> str:
    """Return text in plain letters and lower case, without format characters and with single spaces."""
    text = _FORMAT.sub("", text)
    if not text.isascii():
        # In pieces, because the time for a run of combining marks grows with its square.
        pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
        text = "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)
    letters = text.casefold()
    return re.sub(r"[ \t\u00a0]+", " ", letters)


def latin(text: str) -> str:
    """Return plain text whose Latin words hold no accents and no look-alikes of other scripts."""
    return _WORD.sub(_in_latin, text)


def argument_text(made: ToolCallRecord) -> str:
    """Return the arguments of a call as a text, its escapes read; of what is no JSON, the text as it is."""
    text = made.call.arguments_json
    if "\\" in text:
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), ensure_ascii=False)
    return window(text.replace("\\n", "\n").replace("\\t", " ").replace('\\"', '"'))


def _in_latin(word: re.Match[str]) -> str:
    if word.group().isascii() or not _LATIN.search(word.group()):
        return word.group()
    letters = unicodedata.normalize("NFD", word.group()[:_PIECE]).translate(_LIKE_LATIN)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))
