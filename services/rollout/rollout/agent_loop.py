"""The agent's episode: generate, parse, call tools, append, until it answers or something runs out.

Works on exact token ids: what the engine sampled is appended as it is, what the template adds is
tokenised once. Knows neither how tools are reached nor which engine samples.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from opentelemetry import trace

from rollout.engines.base import (
    DEFAULT_MAX_NEW_TOKENS,
    Engine,
    EngineError,
    Episode,
    Generation,
    GenerationRequest,
)
from rollout.jobs import RolloutJob
from rollout.token_builder import TokenRecordBuilder
from rollout.toolcalls.base import CallError, ParsedCall, ParsedTurn, ToolCallParser, tool_types
from servicekit import attributes
from trajectory.rendering import ChatRenderer, with_system_prompt
from trajectory.types import (
    ChatMessage,
    Role,
    StopReason,
    TokenRecord,
    ToolCall,
    ToolCallRecord,
    ToolDefinition,
    TurnRecord,
)

MAX_ERROR_CHARACTERS = 300
"""Of what the model is told about a malformed call."""

MAX_CALLS = 64
"""Of one turn, well-formed ones; the tool gateway takes no more."""

TOO_MANY_CALLS = "too_many_calls"

OWN_SHARE = 0.8
"""Of the time budget: from here on it was the agent that used it up, not the wait for us."""


class DeadlinePassedError(TimeoutError):
    """Time ran out, and not by the agent's doing."""


class PromptTooLongError(ValueError):
    """The task's prompt leaves no room to answer."""


class _OutOfTimeError(Exception):
    """The rollout's deadline passed while a turn was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What the model is told about one call; `error_kind` is empty if it went well."""

    content: str
    error_kind: str = ""


class ToolCaller(Protocol):
    """Runs the calls of one turn."""

    async def call(self, turn: int, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        """Returns one outcome per call, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """What the agent did."""

    messages: tuple[ChatMessage, ...]
    tokens: TokenRecord
    turns: tuple[TurnRecord, ...]
    stop_reason: StopReason


@dataclass(slots=True, kw_only=True)
class _Talk:
    """The conversation as it grows."""

    builder: TokenRecordBuilder
    prompt_text: str
    """The last prompt as text, by which the template's next addition is found."""
    history: list[ChatMessage]
    """For the template: assistant turns as the raw text that was sampled."""
    transcript: list[ChatMessage]
    """For people and graders: assistant turns taken apart."""


class AgentLoop:
    """One episode of one job. Use once."""

    def __init__(
        self,
        job: RolloutJob,
        *,
        engine: Engine,
        renderer: ChatRenderer,
        parser: ToolCallParser,
        tools: tuple[ToolDefinition, ...],
        caller: ToolCaller,
        on_turn: Callable[[TurnRecord], Awaitable[None]],
        clock: Callable[[], float],
        tracer: trace.Tracer,
    ) -> None:
        """Takes the job and everything that it acts through; `clock` counts seconds since the epoch."""
        self._job = job
        self._engine = engine
        self._renderer = renderer
        self._parser = parser
        self._tools = tools
        self._tool_types = tool_types(tools)
        self._caller = caller
        self._on_turn = on_turn
        self._clock = clock
        self._tracer = tracer
        self._limit = min(
            job.limits.max_total_tokens or engine.max_context_tokens, engine.max_context_tokens
        )
        self._turns: list[TurnRecord] = []
        self._own_seconds = 0.0
        """Generation and tools; the waits before and between them are ours."""

    async def run(self) -> EpisodeResult:
        """Acts until the end.

        Raises:
            PromptTooLongError: the first prompt leaves no room.
            RenderError: the chat template refuses the task.
            EngineError: the engine failed.
            DeadlinePassedError: the deadline passed before the first turn was sampled, or waiting
                for the suite took a material part of the time.
        """
        messages = with_system_prompt(self._job.task.messages, self._job.system_prompt)
        prompt = self._renderer.initial(messages, self._tools)
        if len(prompt.token_ids) >= self._limit:
            raise PromptTooLongError(
                f"task {self._job.task.task_id}: the prompt has {len(prompt.token_ids)} tokens and "
                f"must leave room below {self._limit} (rollout.max_total_tokens or the model)"
            )
        talk = _Talk(
            builder=TokenRecordBuilder(prompt.token_ids),
            prompt_text=prompt.text,
            history=list(messages),
            transcript=list(messages),
        )
        stop = await self._take_turns(talk)
        return EpisodeResult(
            messages=tuple(talk.transcript),
            tokens=talk.builder.build(self._job.sampling),
            turns=tuple(self._turns),
            stop_reason=stop,
        )

    async def _take_turns(self, talk: _Talk) -> StopReason:
        for turn in range(self._job.limits.max_turns):
            try:
                ended = await self._take_turn(talk, turn)
            except _OutOfTimeError:
                return self._out_of_time(turn)
            if ended is not None:
                return ended
        raise AssertionError("the last turn always ends the episode")

    def _out_of_time(self, turn: int) -> StopReason:
        """Tells an agent that was too slow from one that we kept waiting, which nobody may grade."""
        budget = self._job.deadline - self._job.requested
        if turn > 0 and self._own_seconds >= OWN_SHARE * budget:
            return StopReason.ROLLOUT_TIMEOUT
        raise DeadlinePassedError(
            f"the deadline passed in turn {turn}: the agent had used {self._own_seconds:.1f} s of "
            f"the {budget:.1f} s since the request"
        )

    async def _take_turn(self, talk: _Talk, turn: int) -> StopReason | None:
        """Samples, calls and appends; returns why the episode ends, if it does."""
        began = time.perf_counter()
        prompt_tokens = talk.builder.length
        try:
            generation = await self._generate(talk.builder, turn)
        finally:
            sampled = time.perf_counter()
            self._own_seconds += sampled - began
        talk.builder.sample(
            generation.token_ids,
            generation.logprobs,
            turn=turn,
            policy_version=generation.policy_version,
        )
        text = self._renderer.assistant_text(generation.token_ids)
        parsed = self._parse(text)
        ended = self._ends(generation, parsed, turn, prompt_tokens)
        message, calls = _assistant_message(parsed, turn)
        talk.transcript.append(message)
        records = () if ended is not None else await self._call_tools(turn, parsed, calls)
        tools_seconds = time.perf_counter() - sampled if records else 0.0
        self._own_seconds += tools_seconds
        await self._note(
            TurnRecord(
                turn=turn,
                policy_version=generation.policy_version,
                prompt_token_count=prompt_tokens,
                sampled_token_count=len(generation.token_ids),
                generate_seconds=sampled - began,
                tools_seconds=tools_seconds,
                tool_calls=records,
            )
        )
        if ended is None:
            ended = self._append_results(talk, generation, text, records)
        return ended

    def _append_results(
        self,
        talk: _Talk,
        generation: Generation,
        text: str,
        records: tuple[ToolCallRecord, ...],
    ) -> StopReason | None:
        """Adds the tool results as the template writes them, if there is room and time to go on."""
        results = [_tool_message(record) for record in records]
        talk.transcript += results
        step = self._renderer.tool_result_suffix(
            prompt_text=talk.prompt_text,
            history=talk.history,
            sampled_ids=generation.token_ids,
            results=results,
            tools=self._tools,
        )
        kept = 0 if step.forked else talk.builder.length
        if kept + len(step.token_ids) >= self._limit:
            return StopReason.CONTEXT_OVERFLOW
        if self._clock() >= self._job.deadline:
            return self._out_of_time(len(self._turns))
        if step.forked:
            talk.builder.fork(step.token_ids)
        else:
            talk.builder.read(step.token_ids)
        talk.history += [ChatMessage(role=Role.ASSISTANT, content=(text,)), *results]
        talk.prompt_text = step.text
        return None

    async def _generate(self, builder: TokenRecordBuilder, turn: int) -> Generation:
        job = self._job
        wanted = job.sampling.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        sampling = replace(
            job.sampling,
            max_new_tokens=min(wanted, self._limit - builder.length),
            seed=job.turn_seed(turn),
        )
        request = GenerationRequest(
            policy=job.policy,
            prompt_ids=builder.row_ids,
            sampling=sampling,
            stop_ids=self._renderer.stop_ids,
            may_continue=bool(self._tools) and turn + 1 < job.limits.max_turns,
            episode=Episode(task=job.task, turn=turn, sample_index=job.slot.sample_index),
        )
        with self._tracer.start_as_current_span(
            f"{attributes.SPAN_CHAT} {job.model.path}",
            attributes={
                attributes.GEN_AI_OPERATION: attributes.SPAN_CHAT,
                attributes.GEN_AI_MODEL: job.model.path,
                attributes.GEN_AI_TEMPERATURE: sampling.temperature,
                attributes.GEN_AI_MAX_TOKENS: sampling.max_new_tokens,
                attributes.GEN_AI_INPUT_TOKENS: builder.length,
                attributes.POLICY_VERSION: job.policy.version,
                attributes.TURN: turn,
            },
        ) as span:
            generation = await self._within_deadline(request)
            span.set_attribute(attributes.GEN_AI_OUTPUT_TOKENS, len(generation.token_ids))
            span.set_attribute(attributes.GEN_AI_FINISH_REASONS, [generation.finish_reason])
        if generation.policy_version != job.policy.version:
            raise EngineError(
                f"engine {self._engine.name}: asked for version {job.policy.version}, "
                f"answered by {generation.policy_version}"
            )
        return generation

    async def _within_deadline(self, request: GenerationRequest) -> Generation:
        left = self._job.deadline - self._clock()
        if left <= 0:
            raise _OutOfTimeError
        try:
            async with asyncio.timeout(left) as limit:
                return await self._engine.generate(request)
        except TimeoutError as error:
            if limit.expired():
                raise _OutOfTimeError from error
            raise EngineError(f"engine {self._engine.name}: timed out", retryable=True) from error

    def _parse(self, text: str) -> ParsedTurn:
        if not self._tools:
            return ParsedTurn(content=text)
        return self._parser.parse(text, self._tool_types)

    def _ends(
        self, generation: Generation, parsed: ParsedTurn, turn: int, prompt_tokens: int
    ) -> StopReason | None:
        """Says whether the episode ends with this turn. A call whose result nobody reads is not run."""
        if generation.finish_reason == "length":
            wanted = self._job.sampling.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
            cut = prompt_tokens + len(generation.token_ids) >= self._limit
            full = len(generation.token_ids) >= wanted
            return StopReason.CONTEXT_OVERFLOW if cut and not full else StopReason.MAX_TOKENS
        if not parsed.calls:
            return StopReason.COMPLETED
        return StopReason.MAX_TURNS if turn + 1 == self._job.limits.max_turns else None

    async def _call_tools(
        self, turn: int, parsed: ParsedTurn, calls: Sequence[ToolCall]
    ) -> tuple[ToolCallRecord, ...]:
        """Runs the well-formed calls that a turn may have and answers the others, in order."""
        good = [
            call
            for call, read in zip(calls, parsed.calls, strict=True)
            if isinstance(read, ParsedCall)
        ]
        ran = await self._caller.call(turn, good[:MAX_CALLS]) if good else ()
        outcomes = iter([*ran, *[_one_too_many(len(good))] * (len(good) - MAX_CALLS)])
        records = []
        for call, read in zip(calls, parsed.calls, strict=True):
            if isinstance(read, CallError):
                records.append(
                    ToolCallRecord(call=call, result=_error_text(read), error_kind=read.kind.value)
                )
            else:
                outcome = next(outcomes)
                records.append(
                    ToolCallRecord(call=call, result=outcome.content, error_kind=outcome.error_kind)
                )
        return tuple(records)

    async def _note(self, record: TurnRecord) -> None:
        self._turns.append(record)
        await self._on_turn(record)


def _assistant_message(parsed: ParsedTurn, turn: int) -> tuple[ChatMessage, tuple[ToolCall, ...]]:
    """Makes the message for people and graders, with ids for all calls; malformed ones stay text."""
    calls = tuple(
        ToolCall(
            tool_call_id=f"call_{turn}_{index}",
            name=read.name,
            arguments_json=read.arguments_json if isinstance(read, ParsedCall) else "",
        )
        for index, read in enumerate(parsed.calls)
    )
    sound = tuple(
        call for call, read in zip(calls, parsed.calls, strict=True) if isinstance(read, ParsedCall)
    )
    message = ChatMessage(
        role=Role.ASSISTANT,
        content=(parsed.content,) if parsed.content else (),
        tool_calls=sound,
        reasoning_content=parsed.reasoning,
    )
    return message, calls


def _tool_message(record: ToolCallRecord) -> ChatMessage:
    return ChatMessage(
        role=Role.TOOL,
        content=(record.result,),
        tool_call_id=record.call.tool_call_id,
        name=record.call.name,
    )


def _one_too_many(count: int) -> ToolOutcome:
    return ToolOutcome(
        content=f"Error: not run: at most {MAX_CALLS} calls per turn, found {count}.",
        error_kind=TOO_MANY_CALLS,
    )


def _error_text(error: CallError) -> str:
    return f"Error: {error.kind.value}: {error.detail}"[:MAX_ERROR_CHARACTERS]
