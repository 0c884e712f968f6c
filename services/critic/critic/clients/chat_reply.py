"""Reads what a chat completions endpoint answered: a reply, or the error that it stands for. Pure."""

import json
import math
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from critic import faults
from critic.judge import Reply
from servicekit.errors import FailedPrecondition, HoneError, InvalidArgument

MAX_TEXT = 1_000_000
"""Characters of a reply, thinking included."""
_RETRIED = frozenset({408, 409, 425, 429})
_FILTERED = frozenset({"content_filter", "content_policy_violation", "safety"})


def reply_from_body(body: bytes) -> Reply:
    """Read a completion.

    Raises:
        HoneError: it is none: JUDGE_UNAVAILABLE, or what the error in it stands for.
    """
    try:
        completion = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise faults.unavailable(f"the endpoint's reply is no JSON: {_shown(body)}") from error
    if not isinstance(completion, Mapping):
        raise faults.unavailable(f"the endpoint's reply is no completion: {_shown(body)}")
    if completion.get("error"):
        raise _error_in_reply(completion["error"])
    choice = _first(completion.get("choices"))
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise faults.unavailable(
            f"the endpoint's reply has no choice with a message: {_shown(body)}"
        )
    text, thinking = _text(message.get("content")), _thinking(message)
    if len(text) + len(thinking) > MAX_TEXT:
        raise faults.unparsable(f"found {len(text) + len(thinking)} characters", text)
    finish = choice.get("finish_reason")
    refusal = _text(message.get("refusal"))
    if finish in _FILTERED and not refusal:
        refusal = f"the endpoint's content filter stopped the reply (finish_reason {finish})"
    usage = completion.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    return Reply(
        text=text,
        thinking=thinking,
        refusal=refusal,
        cut_off=finish == "length",
        model=_text(completion.get("model")),
        input_tokens=_count(counts.get("prompt_tokens")),
        output_tokens=_count(counts.get("completion_tokens")),
    )


def error_from_status(
    status: int, body: object, *, url: str, model: str, retry_after_seconds: float | None
) -> HoneError:
    """Return what an HTTP error stands for.

    Args:
        status: the HTTP status.
        body: the error object of the reply, or its text.
        url: of the endpoint, for people.
        model: that was asked for.
        retry_after_seconds: what the endpoint asked for, if it did.
    """
    code, said = _code_and_message(body)
    found = f"{url} answered {status}: {said[:300]}"
    if code in _FILTERED or "content management policy" in said:
        return faults.refused(said)
    if code == "insufficient_quota":
        return FailedPrecondition(f"{found}; the account is used up", reason=faults.MISCONFIGURED)
    if status in _RETRIED or status >= 500:
        return faults.unavailable(found, retry_after_seconds=retry_after_seconds)
    if status in (401, 403):
        return FailedPrecondition(
            f"{found}; check HONE_CRITIC_API_KEY_FILE", reason=faults.MISCONFIGURED
        )
    if status == 404:
        return FailedPrecondition(
            f"{found}; check that it serves model {model!r} and that HONE_CRITIC_ENDPOINT_URL ends as it should, "
            "for example in /v1",
            reason=faults.MISCONFIGURED,
        )
    return InvalidArgument(f"the judge does not take the question: {found}", reason=faults.REJECTED)


def rejects(body: object, word: str) -> bool:
    """Whether an error object speaks of a parameter."""
    if isinstance(body, Mapping) and word in str(body.get("param") or ""):
        return True
    return word in _code_and_message(body)[1]


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds that an endpoint asks to wait: Retry-After as seconds or as a date, or retry-after-ms."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * factor
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, (moment - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _error_in_reply(error: object) -> HoneError:
    """Return what an error stands for that came with status 200."""
    code, said = _code_and_message(error)
    if code in _FILTERED:
        return faults.refused(said)
    return faults.unavailable(f"the endpoint answered with an error: {said[:300]}")


def _code_and_message(body: object) -> tuple[str, str]:
    if isinstance(body, Mapping):
        inner = body.get("error")
        if isinstance(inner, Mapping):
            return _code_and_message(inner)
        said = body.get("message") or body.get("detail") or inner
        return str(body.get("code") or ""), str(said or dict(body))
    return "", str(body or "no reason given")


def _first(choices: object) -> Mapping[str, object]:
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return {}


def _text(value: object) -> str:
    """Return a text, or the text parts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, Mapping))
    return ""


def _thinking(message: Mapping[str, object]) -> str:
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0


def _shown(body: bytes) -> str:
    return repr(body[:200].decode("utf-8", "replace"))
