"""What endpoints answer: JSON read strictly, since a number that was guessed would become a reward."""

import json
import math
from collections.abc import Mapping

from grader.fields import shown
from grader.instruments.endpoints import Reply
from grader.results import MAX_NAME, MAX_PARTS

MAX_REPLY_BYTES = 1 << 20


class ReplyError(ValueError):
    """The answer is no grade; says which field, what was found and what would be right."""


def read_reply(body: bytes) -> Reply:
    """Read `{"score": number | null, "explanation": text, "parts": {name: number}}`.

    `sub_rewards` is taken for `parts`; further keys are left alone.

    Raises:
        ReplyError: it is something else.
    """
    try:
        answer = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as err:
        raise ReplyError(f"is not JSON ({err}); it begins {body[:80]!r}") from err
    if not isinstance(answer, dict):
        raise ReplyError(f"must be a JSON object, found {shown(answer)}")
    if "score" not in answer:
        raise ReplyError(f"has no score (a number, or null for no opinion), found {shown(answer)}")
    explanation = answer.get("explanation")
    if not isinstance(explanation, str | None):
        raise ReplyError(f"explanation must be a text, found {shown(explanation)}")
    name = "sub_rewards" if "sub_rewards" in answer and "parts" not in answer else "parts"
    return make_reply(
        score=answer["score"], explanation=explanation or "", parts=answer.get(name) or {}, of=name
    )


def make_reply(*, score: object, explanation: str, parts: object, of: str = "parts") -> Reply:
    """Check the values of an answer.

    Raises:
        ReplyError: a number is none, or is not finite.
    """
    if not isinstance(parts, Mapping) or len(parts) > MAX_PARTS:
        raise ReplyError(
            f"{of} must be an object of at most {MAX_PARTS} numbers, found {shown(parts)}"
        )
    long = next((name for name in parts if len(name) > MAX_NAME), None)
    if long is not None:
        raise ReplyError(f"{of}: a name has {len(long)} characters, at most {MAX_NAME} are kept")
    return Reply(
        value=None if score is None else _number("score", score),
        explanation=explanation,
        parts={name: _number(f"{of}.{name}", value) for name, value in parts.items()},
    )


def _number(where: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ReplyError(f"{where} must be a finite number, found {shown(value)}")


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")
