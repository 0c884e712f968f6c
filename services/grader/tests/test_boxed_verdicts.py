"""Verdicts stay whole and short, and no fault, whatever the code under test makes them say."""

import pytest
from boxed_desk import Desk, desk
from local_rooms import LocalRooms

from trajectory.types import OutcomeKind

__all__ = ["desk"]

REPORT = {"type": "tests", "source": "files", "command": ["sh", "run.sh", "{report}"]}


def code(body: str) -> str:
    return f"```python\ndef add(a, b):\n    {body}\n```"


async def test_many_failures_that_say_much_are_one_short_verdict(desk: Desk) -> None:
    test = "\n".join(f"def test_{number}(): add(1, 2)" for number in range(900))
    definition = {"type": "tests", "test": test, "per_test": True}
    found = await desk.grade(definition, code("raise ValueError('\\u4e00' * 290)"))
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING)
    assert found.parts == {"passed": 0.0, "tests": 900.0}
    assert found.explanation.startswith("0 of 900 tests passed; test_0: ValueError: \u4e00")
    assert len(found.explanation) < 400


@pytest.mark.parametrize("depth", [149, 150, 400])
async def test_tests_may_hand_back_what_is_nested_deeply(desk: Desk, depth: int) -> None:
    test = "found = add(None, 0)\nadd([[found]], 1)\nassert len(found) == 1"
    nest = f"if b: a.sort()\n    for _ in range({depth}): a = [a]\n    return a"
    found = await desk.grade({"type": "tests", "test": test}, code(nest))
    assert found.value == 1.0, found.explanation


async def test_answers_nested_deeper_than_can_be_are_no_fault(desk: Desk) -> None:
    forged = (
        "import os, sys\n"
        "    data = b'{\"value\":' + b'[' * 300 + b']' * 300 + b'}'\n"
        "    replies = sys._getframe(3).f_locals['self']._replies\n"
        "    os.write(replies, len(data).to_bytes(4, 'big') + data)\n"
        "    return 0"
    )
    test = "found = add(1, 2)\nassert add(found, 0) == 3"
    found = await desk.grade({"type": "tests", "test": test}, code(forged))
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING)
    assert "nested too deeply" in found.explanation


async def test_a_long_report_is_counted_whole(desk: Desk) -> None:
    assert isinstance(desk.rooms, LocalRooms)
    case = "'<testcase>' + '<failure/>' * {} + '<system-out>' + 'x' * 700000 + '</system-out></testcase>'"
    cases = " + ".join(case.format(failures) for failures in (0, 1, 0))
    run = f"python3 -c \"print('<r>' + {cases} + '</r>')\" > $1; exit 1"
    agent = desk.rooms.leave("a1", {"/work/run.sh": run.encode()})
    found = await desk.grade({**REPORT, "per_test": True}, agent=agent)
    assert found.parts == {"passed": 2.0, "tests": 3.0}


async def test_a_command_that_fails_without_a_word_is_explained(desk: Desk) -> None:
    agent = desk.rooms.leave("a1", {"/work/run.sh": b"exit 3"})
    found = await desk.grade({**REPORT, "command": ["sh", "run.sh"]}, agent=agent)
    assert "ended with 3" in found.explanation
