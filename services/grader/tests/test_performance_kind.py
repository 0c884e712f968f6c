"""The kind `performance`, over the stand-in for boxes."""

import pytest
from boxed_desk import Desk, desk, problems

from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind, OutcomeKind

__all__ = ["desk"]

pytestmark = pytest.mark.slow

SUM = "```python\ndef total(n):\n    {}\n```"
FAST = SUM.format("return n * (n - 1) // 2")
# Of known length however busy the machine is.
WAITS = "import time; time.sleep({}); return n * (n - 1) // 2"


def performance(**fields: object) -> dict[str, object]:
    return {
        "type": "performance",
        "tests": {"test": "assert total(10) == 45"},
        "call": "assert total(100_000) == 4999950000",
        "reference": "def total(n):\n    return sum(range(n))",
        "runs": 3,
        **fields,
    }


async def test_performance_prices_right_code_by_its_time(desk: Desk) -> None:
    definition = performance(reference="def total(n):\n    " + WAITS.format(0.3))
    fast = await desk.grade(definition, FAST)
    slow = await desk.grade(definition, SUM.format(WAITS.format(1.0)))
    assert (fast.value, fast.kind) == (1.0, None)
    assert 0.0 < slow.value < 0.9
    assert slow.parts["seconds"] > slow.parts["reference_seconds"] > 0


async def test_performance_is_0_for_code_that_is_wrong_however_fast(desk: Desk) -> None:
    found = await desk.grade(performance(), SUM.format("return 0"))
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING)
    late = SUM.format("return n * (n - 1) // 2 if n < 1000 else 0")
    found = await desk.grade(performance(), late)
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING)


async def test_performance_says_when_the_timing_is_unsteady(desk: Desk) -> None:
    found = await desk.grade(performance(max_spread=0.0), FAST)
    assert "unsteady" in found.explanation


async def test_a_reference_that_breaks_is_the_graders_fault(desk: Desk) -> None:
    with pytest.raises(GradingFaultError, match="reference") as caught:
        await desk.grade(performance(reference="def total(n): return 1"), FAST)
    assert caught.value.kind is GraderErrorKind.CODE


async def test_performance_times_a_command(desk: Desk) -> None:
    agent = desk.rooms.leave("a", {"/work/prog.sh": b"exit 0"})
    definition = {
        "type": "performance",
        "tests": {"source": "files", "command": ["sh", "prog.sh"]},
        "command": ["sh", "prog.sh"],
        "reference_seconds": 30,
        "runs": 2,
    }
    found = await desk.grade(definition, "", agent=agent)
    assert (found.value, found.parts["reference_seconds"]) == (1.0, 30.0)


def test_performance_needs_one_reference() -> None:
    definition = performance(reference_seconds=3)
    assert "one of" in problems(definition)["$"]
