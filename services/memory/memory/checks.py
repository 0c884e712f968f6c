"""Checks of what callers give: each error names the field, what was found and what would be right."""

import math
import re

from servicekit.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def name(field: str, value: str) -> None:
    """Take a name of one word."""
    if not _NAME.fullmatch(value):
        found = "nothing" if not value else f"{value[:140]!a}"
        raise wrong(
            field, f"found {found}; 1 to 128 letters, digits, '.', '_', ':' or '-' are right"
        )


def text(field: str, value: str, max_bytes: int) -> None:
    """Take a text that says something and that any database and message can hold."""
    if not value.strip():
        raise wrong(field, "found no text; at least one character that is not space is right")
    if "\0" in value:
        raise wrong(
            field, f"found NUL at character {value.index(chr(0))}; text without it is right"
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError as err:
        found = f"found the lone surrogate {value[err.start]!a} at character {err.start}"
        raise wrong(field, f"{found}; Unicode text is right") from err
    if size > max_bytes:
        raise wrong(field, f"found {size} bytes of UTF-8; at most {max_bytes} are right")


def number(field: str, value: float, low: float, high: float) -> None:
    """Take a finite number from low to high, both included."""
    if not (math.isfinite(value) and low <= value <= high):
        raise wrong(field, f"found {value}; a number from {low:g} to {high:g} is right")


def count(field: str, value: int, low: int, high: int) -> None:
    """Take a count from low to high, both included."""
    if not low <= value <= high:
        raise wrong(field, f"found {value}; {low} to {high} are right")


def wrong(field: str, message: str) -> InvalidArgument:
    """Return the error about one field."""
    return InvalidArgument(f"{field}: {message}", violations={field: message})
