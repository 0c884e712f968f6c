"""Order, time, idempotency and epochs of calls."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from servicekit.errors import FailedPrecondition, Unavailable
from tool_gateway.gateway import CallFact, Gateway, Turn
from tool_gateway.ledger import CallLedger
from tool_gateway.tools.base import CallSite, Tool, ToolOutput, ToolSpec
from tool_gateway.tools.calculator import Calculator
from trajectory.types import ToolCall


class Recorded:
    """A tool whose runs a test can hold back and look at."""

    def __init__(self, name: str, *, side_by_side: bool) -> None:
        self.name, self.side_by_side = name, side_by_side
        self.begun: list[str] = []
        self.sites: list[CallSite] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.lost = False
        self.broken = False

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description="",
            parameters={"type": "object"},
            side_by_side=self.side_by_side,
        )

    async def run(self, arguments: Mapping[str, object], site: CallSite) -> ToolOutput:
        self.begun.append(site.tool_call_id)
        self.sites.append(site)
        await self.gate.wait()
        if self.lost:
            raise Unavailable("gone", reason="SANDBOX_LOST")
        if self.broken:
            raise OverflowError("unforeseen")
        return ToolOutput(content=f"done {site.tool_call_id}")


MakeGateway = Callable[..., Gateway]


@pytest.fixture
def facts() -> list[CallFact]:
    return []


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


@pytest.fixture
def make_gateway(facts: list[CallFact], tracer: trace.Tracer) -> MakeGateway:
    def make(*tools: Tool, max_rollouts: int = 10, max_calls: int = 10) -> Gateway:
        ledger = CallLedger(max_rollouts=max_rollouts, max_calls=max_calls)
        table = {tool.spec.name: tool for tool in tools}
        return Gateway(table, ledger, facts.append, tracer, max_tool_seconds=60)

    return make


def _turn(**changes: object) -> Turn:
    values: dict[str, object] = {
        "rollout_id": "r1",
        "run_id": "run_1",
        "sandbox_id": "sbx_1",
        "turn": 0,
        "epoch": 1,
        "allowed_tools": ("calculator", "box", "free"),
        "timeout_seconds": 5.0,
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


def _call(name: str, tool_call_id: str = "c1", arguments: str = "{}") -> ToolCall:
    return ToolCall(tool_call_id=tool_call_id, name=name, arguments_json=arguments)


async def test_good_and_bad_siblings_each_get_their_result(
    make_gateway: MakeGateway, facts: list[CallFact]
) -> None:
    gateway = make_gateway(Calculator())
    results = await gateway.call(
        _turn(),
        [
            _call("calculator", "c1", '{"expression": "6*7"}'),
            _call("calculator", "c2", '{"expression": '),
            _call("calculater", "c3", "{}"),
            _call("calculator", "c4", "{}"),
        ],
    )
    assert [r.tool_call_id for r in results] == ["c1", "c2", "c3", "c4"]
    assert results[0].content == "42"
    assert [r.error_kind for r in results] == [
        "",
        "invalid_json",
        "unknown_tool",
        "invalid_arguments",
    ]
    assert "Available tools: calculator. Did you mean 'calculator'?" in results[2].content
    assert sorted(f.error_kind for f in facts) == [
        "",
        "invalid_arguments",
        "invalid_json",
        "unknown_tool",
    ]


async def test_tool_that_is_not_allowed_is_unknown(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(Calculator(), Recorded("box", side_by_side=False))
    (result,) = await gateway.call(_turn(allowed_tools=("calculator",)), [_call("box")])
    assert result.error_kind == "unknown_tool"
    assert "box" not in result.content.partition("Available")[2]


async def test_repeated_call_returns_the_first_result(
    make_gateway: MakeGateway, facts: list[CallFact]
) -> None:
    tool = Recorded("free", side_by_side=True)
    gateway = make_gateway(tool)
    first = await gateway.call(_turn(), [_call("free")])
    again = await gateway.call(_turn(turn=1), [_call("free", arguments='{"other": 1}')])
    other = await gateway.call(_turn(rollout_id="r2"), [_call("free")])
    assert first[0].content == again[0].content == other[0].content
    assert tool.begun == ["c1", "c1"]
    assert [fact.rollout_id for fact in facts] == ["r1", "r2"]


async def test_call_goes_on_without_its_caller_and_a_repeat_joins_it(
    make_gateway: MakeGateway,
) -> None:
    tool = Recorded("free", side_by_side=True)
    tool.gate.clear()
    gateway = make_gateway(tool)
    first = asyncio.create_task(gateway.call(_turn(), [_call("free")]))
    while not tool.begun:
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(gateway.call(_turn(), [_call("free")]))
    tool.gate.set()
    assert (await second)[0].content == "done c1"
    assert tool.begun == ["c1"]


async def test_calls_of_one_sandbox_run_in_order_and_others_beside_them(
    make_gateway: MakeGateway,
) -> None:
    box, free = Recorded("box", side_by_side=False), Recorded("free", side_by_side=True)
    box.gate.clear()
    gateway = make_gateway(box, free)
    calls = [_call("box", "b1"), _call("box", "b2"), _call("free", "f1")]
    running = asyncio.create_task(gateway.call(_turn(), calls))
    while not (box.begun and free.begun):
        await asyncio.sleep(0)
    assert (box.begun, free.begun) == (["b1"], ["f1"])
    box.gate.set()
    assert [r.content for r in await running] == ["done b1", "done b2", "done f1"]
    assert box.begun == ["b1", "b2"]


async def test_no_time_left_is_a_timeout_result(make_gateway: MakeGateway) -> None:
    (result,) = await make_gateway(Recorded("box", side_by_side=False)).call(
        _turn(timeout_seconds=0.0), [_call("box")]
    )
    assert result.error_kind == "tool_timeout"


async def test_tool_gets_the_time_that_is_left(make_gateway: MakeGateway) -> None:
    tool = Recorded("box", side_by_side=False)
    await make_gateway(tool).call(_turn(timeout_seconds=500.0), [_call("box")])
    assert tool.sites[0].timeout_seconds == 60


async def test_sandbox_tool_without_a_sandbox_is_a_result(make_gateway: MakeGateway) -> None:
    tool = Recorded("box", side_by_side=False)
    (result,) = await make_gateway(tool).call(_turn(sandbox_id=""), [_call("box")])
    assert (result.error_kind, tool.begun) == ("tool_error", [])


async def test_lost_sandbox_is_raised_and_not_remembered(
    make_gateway: MakeGateway, facts: list[CallFact]
) -> None:
    tool = Recorded("box", side_by_side=False)
    tool.lost = True
    gateway = make_gateway(tool)
    with pytest.raises(Unavailable):
        await gateway.call(_turn(), [_call("box")])
    assert facts == []
    tool.lost = False
    assert (await gateway.call(_turn(), [_call("box")]))[0].content == "done c1"


async def test_old_epoch_is_refused(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(Calculator())
    await gateway.call(_turn(epoch=2), [])
    with pytest.raises(FailedPrecondition) as caught:
        await gateway.call(_turn(epoch=1), [_call("calculator")])
    assert caught.value.reason == "EPOCH_OLD"


async def test_memory_is_bounded(make_gateway: MakeGateway) -> None:
    tool = Recorded("free", side_by_side=True)
    gateway = make_gateway(tool, max_rollouts=2, max_calls=2)
    for rollout_id in ("r1", "r2", "r3", "r1"):
        await gateway.call(_turn(rollout_id=rollout_id), [_call("free")])
    assert len(tool.begun) == 4
    await gateway.call(_turn(rollout_id="r3"), [_call("free")])
    assert len(tool.begun) == 4


async def test_span_per_call_under_the_callers(
    make_gateway: MakeGateway, spans: InMemorySpanExporter, tracer: trace.Tracer
) -> None:
    gateway = make_gateway(Calculator())
    await gateway.call(_turn(), [_call("calculator", "c0")])
    assert spans.get_finished_spans() == ()
    with tracer.start_as_current_span("invoke_agent") as parent:
        await gateway.call(
            _turn(), [_call("calculator", "c1", '{"expression": "1"}'), _call("x" * 99, "c2")]
        )
    named = {span.name: span for span in spans.get_finished_spans()}
    assert set(named) == {"execute_tool calculator", "execute_tool unknown", "invoke_agent"}
    span = named["execute_tool calculator"]
    assert span.parent is not None and span.parent.span_id == parent.get_span_context().span_id
    assert span.attributes is not None and span.attributes["gen_ai.tool.call.id"] == "c1"


async def test_an_unforeseen_error_of_an_in_process_tool_is_a_result(
    make_gateway: MakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    free = Recorded("free", side_by_side=True)
    free.broken = True
    (result,) = await make_gateway(free).call(_turn(), [_call("free")])
    assert result.error_kind == "tool_error"
    assert result.content == "Error: free could not handle these arguments."
    assert "unforeseen" in caplog.text


async def test_an_unforeseen_error_on_the_way_to_a_sandbox_is_raised(
    make_gateway: MakeGateway,
) -> None:
    box = Recorded("box", side_by_side=False)
    box.broken = True
    with pytest.raises(OverflowError):
        await make_gateway(box).call(_turn(), [_call("box")])
