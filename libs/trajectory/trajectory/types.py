"""The words of Hone as frozen dataclasses, for domain code that knows no protobuf.

Each type mirrors a message of `hone.common.v1` or `hone.events.v1`; `trajectory.convert` maps between the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Phase(StrEnum):
    """What the rollouts of a run are for."""

    BASELINE = "baseline"
    TRAIN = "train"
    EVALUATE = "evaluate"
    PREFER = "prefer"
    MEMORY = "memory"


class Role(StrEnum):
    """Who speaks in a conversation."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class StopReason(StrEnum):
    """Why an agent stopped."""

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    ROLLOUT_TIMEOUT = "rollout_timeout"


class OutcomeKind(StrEnum):
    """What kind of shortfall a response shows."""

    REASONING = "reasoning"
    FORMAT = "format"
    EXTRACTION = "extraction"
    TOOL_USE = "tool_use"
    BUDGET = "budget"
    POLLUTED = "polluted"
    """The environment was shared and others may have changed it; only with `Masked`."""


class FailureKind(StrEnum):
    """Which part failed when an attempt could not be carried out."""

    SANDBOX = "sandbox"
    ENGINE = "engine"
    TOOL_GATEWAY = "tool_gateway"
    EXECUTOR_LOST = "executor_lost"
    GRADER = "grader"
    BAD_TASK = "bad_task"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class GraderErrorKind(StrEnum):
    """What stopped a grader."""

    PARSE = "parse"
    """A judge or an endpoint answered something that has no verdict in it."""
    TIMEOUT = "timeout"
    SERVER = "server"
    """A judge or an endpoint could not be reached, or failed."""
    REFUSAL = "refusal"
    """The judge would not judge."""
    FORMULA = "formula"
    SANDBOX = "sandbox"
    """The grading box could not be made, or the agent's is gone."""
    REFERENCE = "reference"
    """The task's reference fields lack what the grader needs."""
    CODE = "code"
    """The grader's own code broke, or returned no finite number."""
    DEFINITION = "definition"
    INTERNAL = "internal"


class Attribution(StrEnum):
    """Whose doing a failure was."""

    INFRA = "infra"
    WORKLOAD = "workload"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One place in a run that exactly one scored, masked or abandoned attempt fills."""

    run_id: str
    phase: Phase
    step: int
    group_index: int
    sample_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image by reference or inline; exactly one of the two is set."""

    uri: str = ""
    data: bytes = b""
    media_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, as the model wrote it."""

    tool_call_id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message; `content` holds text and image pieces in order."""

    role: Role
    content: tuple[str | ImagePart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning_content: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """The text pieces joined."""
        return "".join(part for part in self.content if isinstance(part, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """What a model is told about a tool."""

    name: str
    description: str
    parameters_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One dataset row: a prompt, and the references that only graders see."""

    task_id: str
    messages: tuple[ChatMessage, ...]
    reference: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 256
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Sampled tokens [start, end) of one turn and the version of the weights that sampled them."""

    start: int
    end: int
    turn: int
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One contiguous sequence; the three tuples have the same length."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    spans: tuple[TokenSpan, ...]

    def __post_init__(self) -> None:
        """Refuses lists of unequal length and spans that do not cover exactly the sampled tokens.

        Raises:
            ValueError: the row is not consistent.
        """
        if not len(self.token_ids) == len(self.loss_mask) == len(self.logprobs):
            raise ValueError(
                f"token row: {len(self.token_ids)} ids, {len(self.loss_mask)} mask entries and "
                f"{len(self.logprobs)} log-probabilities; all three must be equal"
            )
        covered = 0
        for span in self.spans:
            if not covered <= span.start < span.end <= len(self.token_ids):
                raise ValueError(f"token row: span [{span.start}, {span.end}) overlaps or is empty")
            covered = span.end
        in_spans = {i for span in self.spans for i in range(span.start, span.end)}
        stray = next((i for i, m in enumerate(self.loss_mask) if m and i not in in_spans), None)
        if stray is not None:
            raise ValueError(f"token row: token {stray} is in the loss but in no sampled span")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """Every token that the policy read or sampled; forks make further rows."""

    rows: tuple[TokenRow, ...]
    sampling: SamplingParams
    nan_logprob_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRecord:
    """One call and what the model was told; `error_kind` is empty if the call went well."""

    call: ToolCall
    result: str
    error_kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """What one turn cost."""

    turn: int
    policy_version: int
    prompt_token_count: int
    sampled_token_count: int
    generate_seconds: float
    tools_seconds: float
    tool_calls: tuple[ToolCallRecord, ...] = ()


SHARED_ISOLATION = "optimistic("
"""Begins the isolation level of environments that rollouts share, for example optimistic(ns-root)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """Everything a grader, the learner and people need to know about one attempt."""

    task: Task
    messages: tuple[ChatMessage, ...]
    tokens: TokenRecord
    stop_reason: StopReason
    sandbox_id: str
    turns: tuple[TurnRecord, ...]
    grader_json: str
    start_time: datetime
    end_time: datetime
    sandbox_isolation: str = ""
    """As the sandbox service says it; empty without a sandbox, and in records of earlier versions."""

    @property
    def response(self) -> str:
        """Text of the last assistant message; empty if there is none."""
        said = [m.text for m in self.messages if m.role is Role.ASSISTANT]
        return said[-1] if said else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A named number with its origin; weight 0 means measured only."""

    name: str
    value: float
    weight: float
    grader_name: str
    grader_version: str
    explanation: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Figures that the value was made from, for example precision and recall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderError:
    """Why a reward that is measured only has no value."""

    name: str
    kind: GraderErrorKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Something about a response that people should look at, for example a lucky guess."""

    name: str
    detail: str
    priced: bool
    """Whether the guard changed the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The attempt was judged; `kind` says why it did not succeed, None if it did."""

    rewards: tuple[Reward, ...]
    score: float
    kind: OutcomeKind | None = None
    errors: tuple[GraderError, ...] = ()
    """Rewards of weight 0 that could not be computed."""
    abstained: tuple[str, ...] = ()
    """Graders without an opinion on this response; they have no share in the score."""
    flags: tuple[Flag, ...] = ()
    step_rewards: tuple[float, ...] = ()
    """By turn, from 0; empty where no grader rewards turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """The attempt ended well but says nothing about the policy; it has no vote in its group."""

    kind: OutcomeKind | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The attempt could not be carried out; there is no field that could hold a reward."""

    kind: FailureKind
    retryable: bool
    attributable: Attribution
    detail: str
    grader_error: GraderErrorKind | None = None
    """With kind grader: what stopped the grading."""


Outcome = Scored | Masked | Failure
"""How an attempt ended: exactly one of the three."""
