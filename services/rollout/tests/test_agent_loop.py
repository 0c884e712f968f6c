"""The agent loop over the exact token record, with a scripted engine and a real tokenizer."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace

from rollout.agent_loop import (
    AgentLoop,
    DeadlinePassedError,
    EpisodeResult,
    PromptTooLongError,
    ToolOutcome,
)
from rollout.engines.base import (
    Engine,
    EngineError,
    Generation,
    GenerationRequest,
    ModelKey,
    PolicyKey,
)
from rollout.engines.scripted import LOGPROB, ScriptedEngine
from rollout.jobs import AgentLimits, RolloutJob
from rollout.toolcalls.table import make_parser
from trajectory.rendering import ChatRenderer
from trajectory.types import (
    ChatMessage,
    Phase,
    Role,
    SamplingParams,
    Slot,
    StopReason,
    Task,
    ToolCall,
    ToolDefinition,
    TurnRecord,
)

CALL = '<tool_call>{"name":"calculator","arguments":{"expression":"2*3"}}</tool_call>'
CALCULATOR = ToolDefinition(
    name="calculator",
    description="Evaluates arithmetic.",
    parameters_json='{"type":"object","properties":{"expression":{"type":"string"}}}',
)
POLICY = PolicyKey("run", 3)


@dataclass
class RecordingTools:
    """Answers every call and remembers it."""

    answer: str = "6"
    calls: list[tuple[int, ToolCall]] = field(default_factory=list)

    async def call(self, turn: int, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        self.calls += [(turn, call) for call in calls]
        return [ToolOutcome(content=self.answer) for _ in calls]


@dataclass
class Changed:
    """An engine whose generations are changed on the way out."""

    engine: Engine
    drop_logprob_at: int | None = None
    delay_turns: frozenset[int] = frozenset()
    time_out: bool = False

    name = "changed"

    @property
    def tokenizer(self) -> object:
        return self.engine.tokenizer

    @property
    def max_context_tokens(self) -> int:
        return self.engine.max_context_tokens

    async def generate(self, request: GenerationRequest) -> Generation:
        assert request.episode is not None
        if request.episode.turn in self.delay_turns:
            await asyncio.Event().wait()
        if self.time_out:
            raise TimeoutError
        made = await self.engine.generate(request)
        if self.drop_logprob_at is None:
            return made
        logprobs = list(made.logprobs)
        logprobs[self.drop_logprob_at] = float("nan")
        return replace(made, logprobs=tuple(logprobs))


@pytest.fixture
async def engine(tiny_model: Path) -> ScriptedEngine:
    engine = ScriptedEngine()
    await engine.start(tiny_model, ModelKey(path=str(tiny_model)))
    await engine.load_policy(POLICY, None)
    return engine


def job(
    script: list[str], *, max_turns: int = 4, max_new: int = 200, max_total: int = 0,
    tools: tuple[str, ...] = ("calculator",), deadline: float = 1e12,
) -> RolloutJob:  # fmt: skip
    return RolloutJob(
        rollout_id="0190b5c2-0000-7000-8000-000000000001",
        slot=Slot(run_id="run", phase=Phase.TRAIN, step=0, group_index=0, sample_index=0),
        attempt=0,
        task=Task(
            task_id="t1",
            messages=(ChatMessage(role=Role.USER, content=("2*3?",)),),
            reference={"script": script},
        ),
        model=ModelKey(path="tiny"),
        policy=POLICY,
        adapter=None,
        sampling=SamplingParams(max_new_tokens=max_new, seed=1),
        limits=AgentLimits(max_turns=max_turns, max_total_tokens=max_total),
        tools=tools,
        tool_format="hermes",
        system_prompt="Be brief.",
        sandbox_template="",
        grader_json="{}",
        requested=0.0,
        deadline=deadline,
    )


async def act(
    engine: object,
    task_job: RolloutJob,
    tools: RecordingTools,
    turns: list[TurnRecord] | None = None,
    clock: float = 0.0,
) -> EpisodeResult:
    async def on_turn(turn: TurnRecord) -> None:
        if turns is not None:
            turns.append(turn)

    loop = AgentLoop(
        task_job,
        engine=engine,  # type: ignore[arg-type]
        renderer=ChatRenderer(engine.tokenizer),  # type: ignore[attr-defined]
        parser=make_parser("hermes"),
        tools=(CALCULATOR,) if task_job.tools else (),
        caller=tools,
        on_turn=on_turn,
        clock=lambda: clock,
        tracer=trace.get_tracer("test"),
    )
    return await loop.run()


async def test_a_call_and_an_answer_make_one_exact_row(engine: ScriptedEngine) -> None:
    tools = RecordingTools()
    turns: list[TurnRecord] = []
    result = await act(engine, job([CALL, "Answer: 6"]), tools, turns)
    assert result.stop_reason is StopReason.COMPLETED
    assert [(t, c.tool_call_id, json.loads(c.arguments_json)) for t, c in tools.calls] == [
        (0, "call_0_0", {"expression": "2*3"})
    ]
    (row,) = result.tokens.rows
    decode = engine.tokenizer.decode
    assert decode(row.token_ids).endswith(
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n"
        "<|im_start|>tool\n6<|im_end|>\n<|im_start|>assistant\nAnswer: 6<|im_end|>"
    )
    spans = [decode(row.token_ids[s.start : s.end]) for s in row.spans]
    assert spans == [f"{CALL}<|im_end|>", "Answer: 6<|im_end|>"]
    assert [(s.turn, s.policy_version) for s in row.spans] == [(0, 3), (1, 3)]
    assert [m.role.value for m in result.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [t.turn for t in turns] == [0, 1]
    assert result.turns == tuple(turns)


async def test_the_layout_equals_a_supervised_row_of_the_same_talk(
    engine: ScriptedEngine,
) -> None:
    result = await act(engine, job([CALL, "Answer: 6"]), RecordingTools())
    (row,) = result.tokens.rows
    (supervised,) = ChatRenderer(engine.tokenizer).render_conversation(
        result.messages, [CALCULATOR]
    )
    assert supervised.token_ids == row.token_ids
    assert supervised.loss_mask == row.loss_mask


async def test_a_malformed_call_is_answered_and_never_run(engine: ScriptedEngine) -> None:
    tools = RecordingTools()
    bad = '<tool_call>{"name":"calculator","arguments":{"expression":</tool_call>'
    result = await act(engine, job([bad, "Answer: 6"]), tools)
    assert tools.calls == []
    record = result.turns[0].tool_calls[0]
    assert record.error_kind == "invalid_json"
    assert record.result.startswith("Error: invalid_json")
    assert result.messages[3].tool_call_id == "call_0_0"
    assert result.stop_reason is StopReason.COMPLETED


async def test_results_keep_the_order_of_good_and_bad_calls(engine: ScriptedEngine) -> None:
    tools = RecordingTools()
    unknown = '<tool_call>{"name":"abacus","arguments":{}}</tool_call>'
    result = await act(engine, job([unknown + CALL, "Answer: 6"]), tools)
    assert [c.tool_call_id for _, c in tools.calls] == ["call_0_1"]
    assert [r.error_kind for r in result.turns[0].tool_calls] == ["unknown_tool", ""]
    assert "no tool named 'abacus'" in result.turns[0].tool_calls[0].result


async def test_calls_beyond_what_a_turn_may_have_are_answered_and_not_run(
    engine: ScriptedEngine,
) -> None:
    tools = RecordingTools()
    result = await act(engine, job([CALL * 70, "Answer: 6"], max_new=10_000), tools)
    assert len(tools.calls) == 64
    records = result.turns[0].tool_calls
    assert [r.error_kind for r in records] == [""] * 64 + ["too_many_calls"] * 6
    assert "at most 64 calls per turn, found 70" in records[-1].result


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"max_turns": 1}, StopReason.MAX_TURNS),
        ({"max_new": 5}, StopReason.MAX_TOKENS),
    ],
)
async def test_a_call_whose_result_nobody_reads_is_not_run(
    engine: ScriptedEngine, arguments: dict[str, int], reason: StopReason
) -> None:
    tools = RecordingTools()
    result = await act(engine, job([CALL, "Answer: 6"], **arguments), tools)  # type: ignore[arg-type]
    assert result.stop_reason is reason
    assert tools.calls == []


async def test_the_row_never_grows_past_the_limit(engine: ScriptedEngine) -> None:
    tools = RecordingTools(answer="6" * 200)
    whole = await act(engine, job([CALL, "Answer: 6"]), RecordingTools())
    limit = len(whole.tokens.rows[0].token_ids)
    result = await act(engine, job([CALL, "Answer: 6"], max_total=limit), tools)
    assert result.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert len(result.tokens.rows[0].token_ids) <= limit
    assert result.tokens.rows[0].loss_mask[-1]


async def test_a_prompt_without_room_is_a_bad_task(engine: ScriptedEngine) -> None:
    with pytest.raises(PromptTooLongError, match="task t1: the prompt has"):
        await act(engine, job(["x"], max_total=10), RecordingTools())


async def test_without_tools_text_that_looks_like_a_call_is_the_answer(
    engine: ScriptedEngine,
) -> None:
    result = await act(engine, job([CALL], tools=()), RecordingTools())
    assert result.stop_reason is StopReason.COMPLETED
    assert result.messages[-1].text == CALL


async def test_a_token_without_a_logprob_is_masked_and_counted(engine: ScriptedEngine) -> None:
    result = await act(Changed(engine, drop_logprob_at=1), job(["Answer: 6"]), RecordingTools())
    (row,) = result.tokens.rows
    start = row.spans[0].start
    assert result.tokens.nan_logprob_count == 1
    assert row.loss_mask[start : start + 3] == (True, False, True)
    assert row.logprobs[start + 1] == 0.0
    assert row.logprobs[start] == pytest.approx(LOGPROB)


async def test_a_deadline_in_a_later_turn_keeps_what_was_done(engine: ScriptedEngine) -> None:
    slow = Changed(engine, delay_turns=frozenset({1}))
    result = await act(slow, job([CALL, "Answer: 6"], deadline=0.05), RecordingTools())
    assert result.stop_reason is StopReason.ROLLOUT_TIMEOUT
    assert len(result.turns) == 1


async def test_a_deadline_that_our_waiting_used_up_is_never_graded(
    engine: ScriptedEngine,
) -> None:
    slow = Changed(engine, delay_turns=frozenset({1}))
    late = job([CALL, "Answer: 6"], deadline=100.0)
    with pytest.raises(DeadlinePassedError, match="deadline passed in turn 1"):
        await act(slow, late, RecordingTools(), clock=99.95)


async def test_an_engine_s_own_timeout_is_no_deadline(engine: ScriptedEngine) -> None:
    with pytest.raises(EngineError, match="timed out"):
        await act(Changed(engine, time_out=True), job(["Answer: 6"]), RecordingTools())


async def test_a_deadline_before_the_first_turn_is_no_episode(engine: ScriptedEngine) -> None:
    slow = Changed(engine, delay_turns=frozenset({0}))
    with pytest.raises(TimeoutError):
        await act(slow, job(["Answer: 6"], deadline=0.05), RecordingTools())


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    script=st.lists(
        st.one_of(st.just(CALL), st.text(max_size=20), st.just("<|im_end|>" + CALL)),
        min_size=1,
        max_size=5,
    ),
    answer=st.text(max_size=30),
    max_new=st.integers(1, 80),
    max_total=st.integers(150, 400),
)
async def test_every_record_is_consistent(
    engine: ScriptedEngine, script: list[str], answer: str, max_new: int, max_total: int
) -> None:
    tools = RecordingTools(answer=answer)
    turns: list[TurnRecord] = []
    result = await act(engine, job(script, max_new=max_new, max_total=max_total), tools, turns)
    sampled = sum(sum(row.loss_mask) for row in result.tokens.rows)
    assert sampled == sum(turn.sampled_token_count for turn in turns)
    for row in result.tokens.rows:
        assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs)
        assert len(row.token_ids) <= max_total
        assert all(lp == 0.0 for lp, m in zip(row.logprobs, row.loss_mask, strict=True) if not m)
    answered = {m.tool_call_id for m in result.messages if m.role is Role.TOOL}
    assert answered == {c.call.tool_call_id for t in turns for c in t.tool_calls}
    assert len(tools.calls) == sum(not c.error_kind for t in turns for c in t.tool_calls)
