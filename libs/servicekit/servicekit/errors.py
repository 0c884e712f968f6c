"""Typed errors that cross service boundaries unchanged.

Domain code raises these; the server interceptor turns them into a gRPC status with ErrorInfo, RetryInfo and
BadRequest, and the client interceptor turns that back into the same class. Nothing here knows gRPC.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

Attributable = Literal["infra", "workload", "client"]


class HoneError(Exception):
    """An error with a reason that a caller can act on.

    Args:
        message: One sentence for people: what was found and what would be right.
        reason: Stable UPPER_SNAKE_CASE word for programs; by default the class's own.
        retryable: Whether the same call, or a new attempt of the work, can succeed.
        attributable: Whose doing it was.
        retry_after_seconds: When trying again helps, at the earliest.
        violations: For bad input: field path to what is wrong with it.
    """

    code: ClassVar[str] = "UNKNOWN"
    default_retryable: ClassVar[bool] = False
    default_attributable: ClassVar[Attributable] = "infra"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        retryable: bool | None = None,
        attributable: Attributable | None = None,
        retry_after_seconds: float | None = None,
        violations: Mapping[str, str] | None = None,
    ) -> None:
        """Keeps what the caller needs to know; see the class."""
        super().__init__(message)
        self.message = message
        self.reason = reason or self.code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.attributable: Attributable = attributable or self.default_attributable
        self.retry_after_seconds = retry_after_seconds
        self.violations = dict(violations or {})


class InvalidArgument(HoneError):
    """The request itself is wrong, whatever the state of the service."""

    code = "INVALID_ARGUMENT"
    default_attributable = "client"


class NotFound(HoneError):
    """The thing that the request names does not exist."""

    code = "NOT_FOUND"
    default_attributable = "client"


class AlreadyExists(HoneError):
    """The thing that the request makes exists with other content."""

    code = "ALREADY_EXISTS"
    default_attributable = "client"


class FailedPrecondition(HoneError):
    """The request is sound but the state does not allow it."""

    code = "FAILED_PRECONDITION"
    default_attributable = "client"


class PermissionDenied(HoneError):
    """The caller is known and may not do this."""

    code = "PERMISSION_DENIED"
    default_attributable = "client"


class Unauthenticated(HoneError):
    """The caller did not prove who it is."""

    code = "UNAUTHENTICATED"
    default_attributable = "client"


class OutOfRange(HoneError):
    """A size or position lies outside what exists or is allowed."""

    code = "OUT_OF_RANGE"
    default_attributable = "client"


class ResourceExhausted(HoneError):
    """No room at present."""

    code = "RESOURCE_EXHAUSTED"
    default_retryable = True


class DeadlineExceeded(HoneError):
    """Time ran out before the work was done."""

    code = "DEADLINE_EXCEEDED"
    default_retryable = True


class Unavailable(HoneError):
    """The service, or something it needs, is gone for now."""

    code = "UNAVAILABLE"
    default_retryable = True


class Aborted(HoneError):
    """Another change got in between; start over."""

    code = "ABORTED"
    default_retryable = True


class DataLoss(HoneError):
    """Stored data is not what was stored."""

    code = "DATA_LOSS"


class Internal(HoneError):
    """A defect of ours."""

    code = "INTERNAL"


class Unimplemented(HoneError):
    """This server does not know the call."""

    code = "UNIMPLEMENTED"


class Cancelled(HoneError):
    """The caller gave up."""

    code = "CANCELLED"
    default_attributable = "client"


BY_CODE: Mapping[str, type[HoneError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        PermissionDenied,
        Unauthenticated,
        OutOfRange,
        ResourceExhausted,
        DeadlineExceeded,
        Unavailable,
        Aborted,
        DataLoss,
        Internal,
        Unimplemented,
        Cancelled,
    )
}
"""Class by the name of its gRPC status code."""
