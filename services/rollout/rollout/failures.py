"""What went wrong, as the failure that the learner counts and acts on."""

from rollout.agent_loop import PromptTooLongError
from rollout.engines.base import EngineError
from servicekit.errors import DeadlineExceeded, HoneError, InvalidArgument
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


class UnknownToolError(InvalidArgument):
    """The run asks for a tool that the gateway does not have."""


def failure_of(error: BaseException) -> Failure:
    """Returns the failure that an error amounts to; an unknown error is a defect of ours.

    Only a task or run that no replica could carry out is the client's doing and final. Whatever
    else breaks (a model or adapter that this replica lacks, a key, a neighbour, the clock) another
    attempt may not meet; the learner's budgets bound how often it is tried.
    """
    if isinstance(error, RolloutError):
        return _of_service(error.kind, error.cause)
    if isinstance(error, EngineError):
        return failure(FailureKind.ENGINE, str(error), retryable=True)
    if isinstance(error, PromptTooLongError | RenderError | UnknownToolError):
        return failure(FailureKind.BAD_TASK, str(error), retryable=False, blame=Attribution.CLIENT)
    if isinstance(error, TimeoutError):
        detail = str(error) or "the rollout's deadline passed before it had ended"
        return failure(FailureKind.DEADLINE, detail, retryable=True)
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
    if kind is FailureKind.BAD_TASK:
        return failure(kind, cause.message, retryable=False, blame=Attribution.CLIENT)
    # "client" in a typed error means the caller of that one call, which is this service.
    workload = cause.attributable == "workload"
    return failure(
        kind,
        cause.message,
        retryable=True,
        blame=Attribution.WORKLOAD if workload else Attribution.INFRA,
    )
