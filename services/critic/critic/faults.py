"""Why there is no verdict: one typed error per cause, told apart by its reason."""

import re

from servicekit.errors import (
    Aborted,
    DeadlineExceeded,
    HoneError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)

UNPARSABLE = "JUDGE_UNPARSABLE"
REFUSED = "JUDGE_REFUSED"
TIMEOUT = "JUDGE_TIMEOUT"
UNAVAILABLE = "JUDGE_UNAVAILABLE"
BUSY = "JUDGE_BUSY"
UNCONFIGURED = "JUDGE_UNCONFIGURED"
MISCONFIGURED = "JUDGE_MISCONFIGURED"
REJECTED = "JUDGE_REJECTED"

_SHOWN = 120
"""Characters of either end of a reply that a message quotes."""
_REFUSAL = re.compile(
    r"(?:(?:i'?m |i am )?(?:very )?sorry|i apologi[sz]e|unfortunately|as an ai\b[^.\n]{0,60})?[\s,.:;-]*(?:but )?"
    r"i (?:cannot|can't|can not|could not|couldn't|am unable to|am not able to|won't|will not|must decline|decline|"
    r"refuse)\b"
    r"[^.\n]{0,24}\b(?:assist|help|judge|evaluate|compare|rate|score|assess|grade|provide|comply|engage|continue|answer|"
    r"review|participate|do (?:that|this))\b",
    re.I,
)
_LONGEST_REFUSAL = 600


def unparsable(why: str, text: str) -> HoneError:
    """Return the error of a reply without a verdict; it quotes the reply's ends."""
    whole = len(text) <= 2 * _SHOWN
    shown = repr(text) if whole else f"{text[:_SHOWN]!r} ... {text[-_SHOWN:]!r}"
    return Aborted(
        f"the judge's reply has no verdict that counts: {why}; it said {shown}",
        reason=UNPARSABLE,
        retryable=True,
    )


def refused(why: str) -> HoneError:
    """Return the error of a judge, or of its endpoint, that would not judge."""
    return PermissionDenied(f"the judge refused: {why[:400]}", reason=REFUSED)


def timed_out(seconds: float, *, asked: bool) -> HoneError:
    """Return the error of a deadline that passed while waiting for a turn or for the judge."""
    waited = "the judge had not answered" if asked else "no turn to ask had come"
    return DeadlineExceeded(f"{waited} after {seconds:.1f} s; allow more time", reason=TIMEOUT)


def unavailable(why: str, *, retry_after_seconds: float | None = None) -> HoneError:
    """Return the error of an endpoint that cannot be reached, or that fails."""
    return Unavailable(why, reason=UNAVAILABLE, retry_after_seconds=retry_after_seconds)


def busy(num_waiting: int) -> HoneError:
    """Return the error of a queue that is full."""
    return ResourceExhausted(
        f"{num_waiting} questions wait already (HONE_CRITIC_MAX_WAITING)",
        reason=BUSY,
        retry_after_seconds=1.0,
    )


def sounds_like_refusal(text: str) -> bool:
    """Whether a short text without a verdict says that its author will not judge."""
    said = text.strip()
    return len(said) <= _LONGEST_REFUSAL and _REFUSAL.match(said) is not None
