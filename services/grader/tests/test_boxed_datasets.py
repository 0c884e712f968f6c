"""HumanEval and MBPP in real grading boxes: right solutions pass, mutants get the verdict of plain Python."""

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from coding.code_mutants import Program, humaneval, mbpp, mutants, run_plainly
from real_rooms import RealSuite, real, service

from grader.definition import Definitions
from grader.instruments.all import Instruments
from grader.results import Graded
from grader.sample import sample_of
from trajectory.types import OutcomeKind

__all__ = ["real", "service"]

SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
DATA = SHARED / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not there; set HONE_SHARED"),
]
SECONDS = 10.0
"""Time limit of a mutant, here and there."""
AT_ONCE = 3
NUM_MUTANTS = 300


async def grade_all(
    suite: RealSuite,
    make_record: Callable[..., object],
    programs: Sequence[Program],
    seconds: float,
) -> list[Graded]:
    """Grade programs as responses, a few at once, each in a room of its own."""
    turns = asyncio.Semaphore(AT_ONCE)
    definitions = Definitions(package_version="1")

    async def grade(program: Program) -> Graded:
        definition = json.dumps({**program.definition, "timeout_seconds": seconds})
        (member,) = definitions.parse(definition).combination.members
        record = make_record(f"Here it is:\n```python\n{program.code}\n```", item=program.item)
        async with turns, suite.rooms.room(None) as room:
            instruments = Instruments(symbolic=None, boxes=room)  # type: ignore[arg-type]
            return await member.grader.grade(sample_of(record), instruments)  # type: ignore[arg-type]

    return await asyncio.gather(*map(grade, programs))


@pytest.mark.parametrize("read", [humaneval, mbpp])
async def test_every_canonical_solution_passes(
    real: RealSuite,
    make_record: Callable[..., object],
    read: Callable[[Path], list[Program]],
) -> None:
    programs = read(DATA)
    found = await grade_all(real, make_record, programs, 30.0)
    wrong = {
        program.name: graded.explanation
        for program, graded in zip(programs, found, strict=True)
        if graded.value != 1.0 or graded.kind is not None
    }
    assert wrong == {}
    assert len(programs) > 150


async def test_mutants_get_the_verdict_of_plain_python_and_none_hangs(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    rng = random.Random(4)
    programs: list[Program] = []
    plain: list[bool] = []
    for read in (humaneval, mbpp):
        for program in mutants(read(DATA), NUM_MUTANTS // 2 + 10, rng):
            said = await asyncio.to_thread(run_plainly, program, SECONDS)
            if said.is_decided(SECONDS):
                programs.append(program)
                plain.append(said.passed)
    assert len(programs) >= NUM_MUTANTS
    begun = time.monotonic()
    found = await grade_all(real, make_record, programs, SECONDS)
    print(
        f"{len(programs)} mutants, {sum(plain)} right all the same, {time.monotonic() - begun:.0f} s, "
        f"{sum('time limit' in graded.explanation for graded in found)} without end"
    )
    different = {
        program.name: (passed, graded.explanation)
        for program, passed, graded in zip(programs, plain, found, strict=True)
        if graded.value != float(passed)
    }
    assert different == {}
    kinds = {graded.kind for graded in found if graded.value == 0.0}
    assert kinds == {OutcomeKind.REASONING}
    assert any("time limit" in graded.explanation for graded in found)
