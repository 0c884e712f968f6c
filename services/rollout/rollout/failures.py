"""What went wrong, as the failure that the learner counts and acts on."""

from rollout.agent_loop import PromptTooLongError
from rollout.engines.base import EngineError
from servicekit.errors import DeadlineExceeded, HoneError
from trajectory.rendering import RenderError
from trajectory.types import Attribution, Failure, FailureKind

MAX_DETAIL_CHARACTERS = 1000


class RolloutError(Exception):
    """An error with the part of the suite where it happened."""

    def __init__(self, kind: FailureKind, cause: Exception) -> None:
        """Keeps both."""
        super().__init__(str(cause))
        self.kind = kind
        self.cause = cause


def failure_of(error: BaseException) -> Failure:
    """Returns the failure that an error amounts to; an unknown error is a defect of ours."""
    if isinstance(error, RolloutError):
        return _of_service(error.kind, error.cause)
    if isinstance(error, EngineError):
        return failure(FailureKind.ENGINE, str(error), retryable=error.retryable)
    if isinstance(error, PromptTooLongError | RenderError):
        return failure(FailureKind.BAD_TASK, str(error), retryable=False, blame=Attribution.CLIENT)
    if isinstance(error, TimeoutError):
        return failure(
            FailureKind.DEADLINE, "the deadline passed before the first turn", retryable=True
        )
    if isinstance(error, HoneError):
        return _of_service(FailureKind.INTERNAL, error)
    return failure(FailureKind.INTERNAL, f"{type(error).__name__}: {error}", retryable=True)


def failure(
    kind: FailureKind,
    detail: str,
    *,
    retryable: bool,
    blame: Attribution = Attribution.INFRA,
) -> Failure:
    """Makes a failure with a bounded detail."""
    return Failure(
        kind=kind,
        retryable=retryable,
        attributable=blame,
        detail=detail[:MAX_DETAIL_CHARACTERS],
    )


def _of_service(kind: FailureKind, cause: Exception) -> Failure:
    if not isinstance(cause, HoneError):
        return failure(kind, f"{type(cause).__name__}: {cause}", retryable=True)
    if cause.reason == "SANDBOX_LOST":
        kind = FailureKind.SANDBOX
    if isinstance(cause, DeadlineExceeded) and cause.reason == DeadlineExceeded.code:
        kind = FailureKind.DEADLINE
    return failure(
        kind, cause.message, retryable=cause.retryable, blame=Attribution(cause.attributable)
    )
