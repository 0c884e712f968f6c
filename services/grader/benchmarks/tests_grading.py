"""Gradings of kind `tests` a minute, against bare Python, and whether mutants get the same verdict from both.

    python services/grader/benchmarks/tests_grading.py [--programs 200] [--mutants 300] [--at-once 4] [--json FILE]

Right solutions of HumanEval and MBPP are graded through the real sandbox service, each in a grading box of its own;
bare Python runs each with its tests as one process, as many at once, in turns of the same programs. The data sets are
looked for in HONE_SHARED, or in `shared` beside this repository.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from coding.code_mutants import Program, humaneval, mbpp, mutants, run_plainly
from coding.sandbox_service import running_sandbox

from grader.answer.symbolic import SymbolicProcess
from grader.clients.boxes import SandboxRooms
from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.instruments.all import Instruments
from trajectory.types import (
    ChatMessage,
    Role,
    RolloutRecord,
    SamplingParams,
    Scored,
    StopReason,
    Task,
    TokenRecord,
)

T = TypeVar("T")
AIM_PER_MINUTE = 100.0
SECONDS = 10.0
"""Time limit of one program."""
ROUNDS = 4
"""The programs are measured in so many turns of both sides."""


async def measure(
    rooms: SandboxRooms, data: Path, num_programs: int, num_mutants: int, at_once: int
) -> list[dict[str, object]]:
    """Return the rows of the table."""
    rng = random.Random(0)
    symbolic = SymbolicProcess(timeout_seconds=3.0)
    desk = GradingDesk(
        Definitions(package_version="bench"), Instruments(symbolic=symbolic), rooms=rooms
    )
    he, mb = humaneval(data), mbpp(data)
    programs = rng.sample([*he, *mb], num_programs)

    async def boxed(program: Program) -> bool:
        return await _grade(desk, program)

    async def bare(program: Program) -> bool:
        return (await asyncio.to_thread(run_plainly, program, SECONDS)).passed

    rates: dict[str, list[float]] = {"boxed": [], "bare": []}
    for number in range(ROUNDS):
        part = programs[number::ROUNDS]
        for side, run in (("bare", bare), ("boxed", boxed)):
            begun = time.perf_counter()
            passed = await _all(run, part, at_once)
            rates[side].append(60 * len(part) / (time.perf_counter() - begun))
            if not all(passed):
                raise RuntimeError(f"{side}: {passed.count(False)} right solutions did not pass")
    wrong, plain = await _decided(he, mb, num_mutants, at_once)
    found = await _all(boxed, wrong, at_once)
    same = sum(one == other for one, other in zip(plain, found, strict=True))
    symbolic.close()
    medians = {side: statistics.median(values) for side, values in rates.items()}
    return [
        _row("tests gradings a minute", medians["boxed"], AIM_PER_MINUTE, "at least"),
        _row("bare Python, the same programs a minute", medians["bare"], None, ""),
        _row("gradings over bare Python", medians["boxed"] / medians["bare"], None, ""),
        _row(f"of {num_mutants} mutants, same verdict as plain Python", same, num_mutants, "all"),
        _row("of them right all the same", sum(plain), None, ""),
    ]


async def _decided(
    he: list[Program], mb: list[Program], count: int, at_once: int
) -> tuple[list[Program], list[bool]]:
    """Return mutants, half of each set, and plain Python's verdicts; without those near the time limit."""
    rng = random.Random(4)
    halves = [[*mutants(he, count // 2 + 10, rng)], [*mutants(mb, count - count // 2 + 10, rng)]]
    kept: list[tuple[Program, bool]] = []
    for half, number in zip(halves, (count // 2, count - count // 2), strict=True):
        said = await _all(
            lambda program: asyncio.to_thread(run_plainly, program, SECONDS), half, at_once
        )
        pairs = [(m, s.passed) for m, s in zip(half, said, strict=True) if s.is_decided(SECONDS)]
        kept += pairs[:number]
    return [program for program, _ in kept], [passed for _, passed in kept]


async def _all(
    run: Callable[[Program], Awaitable[T]], programs: Sequence[Program], at_once: int
) -> list[T]:
    turns = asyncio.Semaphore(at_once)

    async def one(program: Program) -> T:
        async with turns:
            return await run(program)

    return await asyncio.gather(*map(one, programs))


async def _grade(desk: GradingDesk, program: Program) -> bool:
    definition = json.dumps({**program.definition, "timeout_seconds": SECONDS})
    verdict = await desk.judge(_record(program), definition)
    if not isinstance(verdict.outcome, Scored):
        raise RuntimeError(f"{program.name}: {verdict.outcome}")
    return verdict.outcome.score == 1.0


def _record(program: Program) -> RolloutRecord:
    said = ChatMessage(role=Role.ASSISTANT, content=(f"```python\n{program.code}\n```",))
    now = datetime.now(UTC)
    return RolloutRecord(
        task=Task(task_id=program.name, messages=(), reference=program.item),
        messages=(said,),
        tokens=TokenRecord(rows=(), sampling=SamplingParams()),
        stop_reason=StopReason.COMPLETED,
        sandbox_id="",
        turns=(),
        grader_json="{}",
        start_time=now,
        end_time=now,
    )


def _row(what: str, figure: float, aim: float | None, how: str) -> dict[str, object]:
    verdict = "" if aim is None else "met" if figure >= aim else "SHORT"
    return {"what": what, "figure": figure, "aim": aim, "how": how, "verdict": verdict}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="gradings of kind tests a minute")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()
    shared = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
    if not (shared / "data" / "humaneval").exists():
        sys.exit(f"{shared}/data/humaneval is not there; set HONE_SHARED")

    async def run(rooms: SandboxRooms) -> list[dict[str, object]]:
        rows = await measure(rooms, shared / "data", given.programs, given.mutants, given.at_once)
        await rooms.close()
        return rows

    with running_sandbox() as service:
        rows = asyncio.run(run(service.rooms()))
    for row in rows:
        aim = f"{row['how']} {row['aim']:g}" if row["aim"] is not None else ""
        print(f"{row['what']:48} {row['figure']:8.4g}  {aim:14} {row['verdict']}")
    if given.json is not None:
        kept = {"cpus": os.cpu_count(), "at_once": given.at_once, "rows": rows}
        given.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
