"""Splitting at separators outside brackets."""

_OPENING = "([{\u2983"
_CLOSING = ")]}\u2984"


def balanced(text: str) -> bool:
    """Whether every bracket that opens also closes, kinds of ( and [ being free to mix as in [0, 1)."""
    depth = 0
    for character in text:
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def split_top(text: str, separator: str) -> list[str]:
    """Split at a one-character separator where no bracket is open."""
    pieces: list[str] = []
    depth = 0
    start = 0
    for position, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth = max(0, depth - 1)
        elif character == separator and depth == 0:
            pieces.append(text[start:position].strip())
            start = position + 1
    pieces.append(text[start:].strip())
    return pieces
