"""Builds HTML in which every text is escaped unless it was built here.

What agents and tools wrote is hostile. Text becomes markup only by passing through `tag` or `text`, and
characters that would lie about what is on the page (controls, direction overrides) are shown as their numbers.
"""

import html
import re
from collections.abc import Iterable

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable["Child"] | None
"""Markup stays, other text is escaped, None is nothing."""


def visible(value: str) -> str:
    """Replaces characters that cannot be seen, or that change how others are read, by their numbers."""
    return _UNSEEN.sub(lambda match: f"[U+{ord(match.group()):04X}]", value)


def text(value: str) -> Markup:
    """Escapes a text."""
    return Markup(html.escape(visible(value), quote=True))


def join(*children: Child) -> Markup:
    """Puts children one after the other."""
    return Markup("".join(_flatten(children)))


def tag(element: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Builds an element.

    Args:
        element: Its name; a constant of ours.
        *children: What is inside.
        **attributes: `class_` stands for class and `stroke_width` for stroke-width. None and False leave the attribute
            out, True gives it without a value.
    """
    parts = [f"<{element}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        parts.append(f" {name}" if value is True else f' {name}="{text(str(value))}"')
    parts.append(">")
    if element not in _VOID:
        parts.extend(_flatten(children))
        parts.append(f"</{element}>")
    return Markup("".join(parts))


def _flatten(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield text(child)
        else:
            yield from _flatten(child)
