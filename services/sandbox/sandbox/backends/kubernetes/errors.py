"""What a failure of the Kubernetes API means to whoever asked for a sandbox."""

from sandbox.backends.kubernetes.api import ApiStatus, ApiUnreachable
from servicekit.errors import FailedPrecondition, HoneError, ResourceExhausted, Unavailable

_QUOTA = "exceeded quota"
_QUOTA_UNKNOWN = "status unknown for quota"
_QUOTA_SECONDS = 5.0
_BUSY_SECONDS = 1.0


def is_over_quota(error: ApiStatus) -> bool:
    """Say whether the namespace has no room; the message alone tells this from a missing right."""
    return error.status == 403 and _QUOTA in error.message


def is_busy(error: ApiStatus) -> bool:
    """Say whether the server could not get to it: too many requests, or a quota that many change at once."""
    if error.status == 403:
        return _QUOTA_UNKNOWN in error.message
    return error.status == 429 or (error.status == 409 and error.reason == "Conflict")


def may_pass(error: ApiStatus | ApiUnreachable) -> bool:
    """Say whether the same request may succeed a moment later."""
    return isinstance(error, ApiUnreachable) or is_busy(error) or error.status >= 500


def typed(error: ApiStatus | ApiUnreachable, what: str) -> HoneError:
    """Return the error that crosses the service's boundary."""
    text = f"{what}: {error}"
    if isinstance(error, ApiUnreachable):
        return Unavailable(text, reason="CLUSTER_UNREACHABLE")
    if is_busy(error):
        wait = error.retry_after_seconds
        return ResourceExhausted(
            text,
            reason="CLUSTER_BUSY",
            retry_after_seconds=_BUSY_SECONDS if wait is None else wait,
        )
    if is_over_quota(error):
        return ResourceExhausted(text, reason="QUOTA_EXCEEDED", retry_after_seconds=_QUOTA_SECONDS)
    if error.status >= 500:
        return Unavailable(text, reason="CLUSTER_UNREACHABLE")
    return FailedPrecondition(
        f"{text}; the service's rights, or the pods that it asks for, do not fit the cluster",
        reason="CLUSTER_REFUSES",
        attributable="infra",
    )
