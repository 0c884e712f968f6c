"""Splits a judge's thinking off its text: a draft verdict in it is none."""

import re
from dataclasses import dataclass

_TAG = re.compile(r"<(/?)(think|thinking|thought|thoughts|reasoning|analysis|scratchpad)>", re.I)
_INVISIBLE = re.compile(
    "[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe0e\ufe0f\ufeff\x00-\x08\x0b\x0c\x0e-\x1f]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A judge's text in two."""

    thinking: str
    body: str
    """What is left for a verdict to stand in; empty where the thinking never ended."""


def split_thinking(text: str) -> Split:
    """Split a text; invisible characters go, line ends become plain. Linear in its length.

    What stands before a closing tag without an opening one is thinking too: chat templates open it in the prompt.
    """
    clean = _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " "))
    thinking: list[str] = []
    body: list[str] = []
    depth, end = 0, 0
    for tag in _TAG.finditer(clean):
        piece = clean[end : tag.start()]
        end = tag.end()
        if tag[1]:
            if depth == 0:
                thinking += [*body, piece]
                body = []
            else:
                thinking.append(piece)
            depth = max(0, depth - 1)
        else:
            (thinking if depth else body).append(piece)
            depth += 1
    (thinking if depth else body).append(clean[end:])
    return Split(thinking="\n".join(thinking).strip(), body="".join(body).strip())
