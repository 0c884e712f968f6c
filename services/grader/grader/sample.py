"""One attempt as graders see it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from grader.jsonvalues import read_json
from trajectory.types import OutcomeKind, Role, RolloutRecord, StopReason, ToolCallRecord

CUT_OFF = frozenset(
    (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW, StopReason.ROLLOUT_TIMEOUT)
)
"""After these the last message may end in the middle of a word."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A finished attempt; what several graders need is read once."""

    record: RolloutRecord
    output_text: str
    """Text of the last assistant message."""
    item: Mapping[str, object] = field(default_factory=dict)
    """The task's reference fields."""

    @property
    def stop_reason(self) -> StopReason:
        """Why the agent stopped."""
        return self.record.stop_reason

    @cached_property
    def stated_only(self) -> bool:
        """Whether the last message was cut off or still calls tools, so an unmarked number in it is no answer."""
        said = [message for message in self.record.messages if message.role is Role.ASSISTANT]
        return self.stop_reason in CUT_OFF or bool(said and said[-1].tool_calls)

    @cached_property
    def calls(self) -> tuple[ToolCallRecord, ...]:
        """All tool calls of all turns, in order."""
        return tuple(call for turn in self.record.turns for call in turn.tool_calls)

    @property
    def call_count(self) -> int:
        """Number of tool calls."""
        return len(self.calls)

    @property
    def last_call_failed(self) -> bool:
        """Whether the last tool call went wrong."""
        return bool(self.calls and self.calls[-1].error_kind)

    @property
    def policy_token_count(self) -> int:
        """Tokens that the policy sampled, in all turns."""
        return sum(turn.sampled_token_count for turn in self.record.turns)

    @cached_property
    def output_json(self) -> object:
        """The last message read as JSON; None if it is none, or larger or deeper than is read."""
        try:
            return read_json(self.output_text)
        except ValueError:
            return None

    @cached_property
    def output_tools(self) -> list[dict[str, object]]:
        """All tool calls in the OpenAI chat shape."""
        return [
            {
                "id": made.call.tool_call_id,
                "type": "function",
                "function": {"name": made.call.name, "arguments": made.call.arguments_json},
            }
            for made in self.calls
        ]

    def shortfall(self, kind: OutcomeKind) -> OutcomeKind:
        """Refine why a response failed: out of budget, or thrown off by a tool used wrongly."""
        if kind is OutcomeKind.FORMAT and self.stop_reason is not StopReason.COMPLETED:
            return OutcomeKind.BUDGET
        if kind is not OutcomeKind.EXTRACTION and self.last_call_failed:
            return OutcomeKind.TOOL_USE
        return kind


def sample_of(record: RolloutRecord) -> Sample:
    """Read a record."""
    return Sample(record=record, output_text=record.response, item=record.task.reference)
