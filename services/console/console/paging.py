"""Page tokens: opaque to callers, bound to the question that they continue."""

import base64
import binascii
import hashlib
from collections.abc import Sequence

from servicekit.errors import InvalidArgument


def page_limit(requested: int, *, default: int, maximum: int) -> int:
    """Returns how many rows a page holds.

    Raises:
        InvalidArgument: the request asks for a negative number.
    """
    if requested < 0:
        problem = f"is {requested}; 0 (default {default}) to {maximum} would be right"
        raise InvalidArgument(f"page_size {problem}", violations={"page_size": problem})
    return min(requested or default, maximum)


def make_token(position: int, question: Sequence[object]) -> str:
    """Returns a token that continues a question after a position."""
    text = f"{position}.{_digest(question)}"
    return base64.urlsafe_b64encode(text.encode("ascii")).decode("ascii")


def read_token(token: str, question: Sequence[object]) -> int | None:
    """Returns the position that a token continues after; None for the first page.

    Raises:
        InvalidArgument: the token was not made by us, or for another question.
    """
    if not token:
        return None
    try:
        text = base64.urlsafe_b64decode(token.encode("ascii")).decode("ascii")
        position, _, digest = text.partition(".")
        number = int(position)
    except (binascii.Error, UnicodeError, ValueError) as err:
        raise _bad_token("is not a token that this service made") from err
    if digest != _digest(question):
        raise _bad_token("was made for another request; send the other fields unchanged")
    return number


def _bad_token(problem: str) -> InvalidArgument:
    return InvalidArgument(f"page_token {problem}", violations={"page_token": problem})


def _digest(question: Sequence[object]) -> str:
    return hashlib.sha256(repr(tuple(question)).encode("utf-8")).hexdigest()[:12]
