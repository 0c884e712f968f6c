"""One attempt as graders see it, and the errors of grading itself."""

from collections.abc import Mapping
from dataclasses import dataclass

from trajectory.types import OutcomeKind, Role, RolloutRecord, StopReason

CUT_OFF = frozenset(
    (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW, StopReason.ROLLOUT_TIMEOUT)
)
"""After these the last message may end in the middle of a word."""


class GradingFaultError(Exception):
    """Grading could not be done; never a zero reward.

    Args:
        detail: what was missing or wrong, for people.
        retryable: whether grading the same record again can succeed.
        client: whether the definition or the dataset is at fault rather than Hone.
    """

    def __init__(self, detail: str, *, retryable: bool, client: bool) -> None:
        """Keep the detail and whose fault it is."""
        super().__init__(detail)
        self.detail = detail
        self.retryable = retryable
        self.client = client


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What one grader found."""

    value: float
    kind: OutcomeKind | None
    """Why the response did not succeed; None if it did."""
    explanation: str
    masked: bool = False
    """The response says nothing about the policy; the value does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A finished attempt, read once for all graders."""

    output_text: str
    """Text of the last assistant message."""
    item: Mapping[str, object]
    """The task's reference fields."""
    stop_reason: StopReason
    stated_only: bool
    """The last message was cut off or still calls tools, so an unmarked number in it is no answer."""
    call_count: int
    last_call_failed: bool
    policy_token_count: int

    def shortfall(self, kind: OutcomeKind) -> OutcomeKind:
        """Refine why a response failed: out of budget, or thrown off by a tool used wrongly."""
        if kind is OutcomeKind.FORMAT and self.stop_reason is not StopReason.COMPLETED:
            return OutcomeKind.BUDGET
        if kind is not OutcomeKind.EXTRACTION and self.last_call_failed:
            return OutcomeKind.TOOL_USE
        return kind


def sample_of(record: RolloutRecord) -> Sample:
    """Read what graders need from a record."""
    said = [message for message in record.messages if message.role is Role.ASSISTANT]
    calls = [call for turn in record.turns for call in turn.tool_calls]
    return Sample(
        output_text=record.response,
        item=record.task.reference,
        stop_reason=record.stop_reason,
        stated_only=record.stop_reason in CUT_OFF or bool(said and said[-1].tool_calls),
        call_count=len(calls),
        last_call_failed=bool(calls and calls[-1].error_kind),
        policy_token_count=sum(turn.sampled_token_count for turn in record.turns),
    )
