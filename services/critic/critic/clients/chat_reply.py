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
_LONGEST_RETRY_AFTER_SECONDS = 86_400.0
_RETRIED = frozenset({408, 409, 425, 429})
_MISPLACED = frozenset({404, 405, 410})
_FILTERED = frozenset({"content_filter", "content_policy_violation", "safety"})


def reply_from_body(body: bytes, *, secret: str = "") -> Reply:
    """Read a completion.

    Args:
        body: of the HTTP answer.
        secret: what no message may tell, should the endpoint send it back.

    Raises:
        HoneError: it is none: JUDGE_UNAVAILABLE, or what the error in it stands for.
    """
    try:
        completion = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise faults.unavailable(
            f"the endpoint's reply is no JSON: {_shown(body, secret)}"
        ) from error
    if not isinstance(completion, Mapping):
        raise faults.unavailable(f"the endpoint's reply is no completion: {_shown(body, secret)}")
    if completion.get("error"):
        raise _error_in_reply(completion["error"], secret)
    choice = _first(completion.get("choices"))
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise faults.unavailable(
            f"the endpoint's reply has no choice with a message: {_shown(body, secret)}"
        )
    text, thinking = _text(message.get("content")), _thinking(message)
    if len(text) + len(thinking) > MAX_TEXT:
        raise faults.unparsable(f"found {len(text) + len(thinking)} characters", text)
    finish = _text(choice.get("finish_reason"))
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
    status: int,
    body: object,
    *,
    url: str,
    model: str,
    retry_after_seconds: float | None,
    secret: str = "",
) -> HoneError:
    """Return what an HTTP error stands for.

    Args:
        status: the HTTP status.
        body: the error object of the reply, or its text.
        url: of the endpoint, for people.
        model: that was asked for.
        retry_after_seconds: what the endpoint asked for, if it did.
        secret: what no message may tell, should the endpoint send it back.
    """
    code, said = _code_and_message(body)
    said = _hidden(said, secret)
    found = f"{url} answered {status}: {said[:300]}"
    if code in _FILTERED or "content management policy" in said:
        return faults.refused(said)
    if code == "insufficient_quota" or status == 402:
        return FailedPrecondition(f"{found}; the account is used up", reason=faults.MISCONFIGURED)
    if status in _RETRIED or status >= 500:
        return faults.unavailable(found, retry_after_seconds=retry_after_seconds)
    if status in (401, 403):
        return FailedPrecondition(
            f"{found}; check HONE_CRITIC_API_KEY_FILE", reason=faults.MISCONFIGURED
        )
    if status in _MISPLACED or 300 <= status < 400:
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
    """Return the seconds, at most a day, that an endpoint asks to wait: by retry-after-ms or Retry-After."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * factor
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return min(seconds, _LONGEST_RETRY_AFTER_SECONDS)
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
        seconds = (moment - now).total_seconds()
        return min(max(0.0, seconds), _LONGEST_RETRY_AFTER_SECONDS)
    except (ValueError, TypeError):
        return None


def _error_in_reply(error: object, secret: str) -> HoneError:
    """Return what an error stands for that came with status 200."""
    code, said = _code_and_message(error)
    said = _hidden(said, secret)
    if code in _FILTERED:
        return faults.refused(said)
    return faults.unavailable(f"the endpoint answered with an error: {said[:300]}")


def _code_and_message(body: object) -> tuple[str, str]:
    if isinstance(body, Mapping):
        inner = body.get("error")
        if isinstance(inner, Mapping):
            return _code_and_message(inner)
        said = body.get("message") or body.get("detail") or inner
        return str(body.get("code") or ""), _sendable(str(said or dict(body)))
    return "", _sendable(str(body or "no reason given"))


def _first(choices: object) -> Mapping[str, object]:
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return {}


def _text(value: object) -> str:
    """Return a text, or the text parts of a list of parts."""
    if isinstance(value, str):
        return _sendable(value)
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, Mapping))
    return ""


def _thinking(message: Mapping[str, object]) -> str:
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else 0


def _sendable(text: str) -> str:
    """Return a text without halves of characters, which JSON can state and no message can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _hidden(text: str, secret: str) -> str:
    return text.replace(secret, "***") if secret else text


def _shown(body: bytes, secret: str) -> str:
    return repr(_hidden(body[:2000].decode("utf-8", "replace"), secret)[:200])
