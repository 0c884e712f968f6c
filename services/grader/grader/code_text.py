"""Finds the code in a response: a fenced block, or the whole text where it may be code.

The text is never parsed here; whether it is Python is found out in a box.
"""

import re
from dataclasses import dataclass

MAX_CODE = 512 * 1024
"""Characters of code that are run."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`\n]*")
_PYTHON = re.compile(r"\{?\.?(?:python[\d.]*|py)(?![\w+#-])")
"""How marks of Python begin; a file's name or options may follow."""
_LONGEST_FENCE = 200
"""Characters of a line that may begin or end a block."""
_STATEMENT = re.compile(r"^(?:def|class|async def|import|from|@\w|\w+ *=[^=])", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code of a response."""

    text: str
    fenced: bool
    """Otherwise it is the whole response, which may turn out to be no code."""


def find_code(response: str, entry_point: str = "") -> Code | None:
    """Return the code of a response.

    Of the complete fenced blocks that are marked as Python, or else of those that are not marked, it is the last that
    defines the entry point, or else the last. Thinking does not count.

    Args:
        response: the text.
        entry_point: name that the code should define; empty if it is not known.
    """
    text = response.rpartition("</think>")[2]
    blocks = _blocks(text)
    marked = [body for mark, body in blocks if _PYTHON.match(mark)]
    unmarked = [body for mark, body in blocks if not mark]
    bodies = marked or unmarked
    if bodies:
        defining = [body for body in bodies if entry_point and _defines(body, entry_point)]
        return Code(text=(defining or bodies)[-1], fenced=True)
    if not blocks and _STATEMENT.search(text):
        return Code(text=text, fenced=False)
    return None


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return mark and content of the complete blocks; in one pass over the lines."""
    found = []
    fence, mark, indent = "", "", 0
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        match = _FENCE.fullmatch(line.rstrip("\r\n")) if len(line) <= _LONGEST_FENCE else None
        if not fence:
            if match is not None:
                fence, mark = match.group(1), match.group(2).lower()
                indent = len(line) - len(line.lstrip(" "))
                lines = []
        elif match is not None and match.group(1).startswith(fence) and not match.group(2):
            found.append((mark, "".join(lines)))
            fence = ""
        else:
            lines.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
    return found


def _defines(body: str, name: str) -> bool:
    pattern = rf"^(?:(?:async +)?def|class) +{re.escape(name)}\b|^{re.escape(name)} *[:=]"
    return re.search(pattern, body, re.MULTILINE) is not None
