"""Many sandboxes at once, as at the start of a step: time to the first command, destruction, memory while idle.

Four ways in one run: over gRPC against the real service with nothing ready, the same from a warm pool, the embedded
backend without the service, and bubblewrap with the same limits.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from support.bubblewrap import running_bubblewrap
from support.embedded import running_backend
from support.service import running_service
from support.table import Row, arguments, percentile, report

AIMS = {32: 0.4, 500: 5.0}
"""Seconds to the first command, 95th percentile, nothing ready."""
WARM_AIM = 2.0
DESTROY_AIM = 2.0
IDLE_AIM_MIB = 4.0


class Made(Protocol):
    """A sandbox that is measured."""

    async def true(self) -> None:
        """Run the command `true`."""
        ...

    async def destroy(self) -> None:
        """Destroy it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """How one burst went."""

    first_command_seconds: list[float]
    total_seconds: float
    destroy_seconds: float
    idle_mib_each: float
    failures: list[str]

    @property
    def p95(self) -> float:
        """Return the 95th percentile of the time to the first command."""
        return percentile(self.first_command_seconds, 0.95)


async def burst(count: int, create: Callable[[], Awaitable[Made]]) -> Burst:
    """Make so many at once, run a command in each, destroy all."""
    before = _available_mib()
    begun = time.perf_counter()

    async def one() -> tuple[Made, float]:
        made = await create()
        await made.true()
        return made, time.perf_counter() - begun

    results = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
    total = time.perf_counter() - begun
    await asyncio.sleep(0.5)
    idle = (before - _available_mib()) / count
    made = [result for result in results if not isinstance(result, BaseException)]
    destroyed = time.perf_counter()
    await asyncio.gather(*(sandbox.destroy() for sandbox, _ in made))
    return Burst(
        first_command_seconds=[seconds for _, seconds in made],
        total_seconds=total,
        destroy_seconds=time.perf_counter() - destroyed,
        idle_mib_each=idle,
        failures=[repr(result) for result in results if isinstance(result, BaseException)],
    )


def _available_mib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    raise ValueError("/proc/meminfo: has no MemAvailable")


def _rows(way: str, count: int, done: Burst, aim: float | None) -> list[Row]:
    first = f"{way}: {count} at once, first command"
    note = f"total {done.total_seconds:.2f} s"
    if done.failures:
        note += f"; {len(done.failures)} of {count} FAILED, the first: {done.failures[0][:200]}"
    if not done.first_command_seconds:
        return [Row(what=f"{first} p95", figure=None, unit="s", note=note)]
    half = percentile(done.first_command_seconds, 0.5)
    return [
        Row(what=f"{first} p50", figure=half, unit="s"),
        Row(what=f"{first} p95", figure=done.p95, unit="s", aim=aim, note=note),
    ]


def _ends(way: str, count: int, done: Burst) -> list[Row]:
    return [
        Row(
            what=f"{way}: {count} destroyed",
            figure=done.destroy_seconds,
            unit="s",
            aim=DESTROY_AIM,
        ),
        Row(
            what=f"{way}: memory of each of {count} idle",
            figure=done.idle_mib_each,
            unit="MiB",
            aim=IDLE_AIM_MIB,
            note="MemAvailable before less after",
        ),
    ]


async def measure(counts: list[int], warm: int) -> list[Row]:
    """Measure every way at every size."""
    rows: list[Row] = []
    largest = max(counts)
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running_service(queue_seconds=60))
        embedded = await stack.enter_async_context(running_backend())
        wrapped = await stack.enter_async_context(running_bubblewrap())
        for count in counts:
            # The compared ways directly after one another, so that they see the same machine.
            direct = await burst(count, embedded.create)
            if wrapped is not None:
                other = await burst(count, wrapped.create)
                rows += _rows("bubblewrap", count, other, None)
                rows += _rows("backend alone", count, direct, other.p95)
            else:
                rows += _rows("backend alone", count, direct, None)
                what = f"bubblewrap: {count} at once, first command p95"
                rows.append(Row(what=what, figure=None, unit="s", note="not installed"))
            over = await burst(count, service.create)
            rows += _rows("gRPC, cold", count, over, AIMS.get(count))
            if count == largest:
                rows += _ends("backend alone", count, direct) + _ends("gRPC", count, over)
    if warm:
        async with running_service(warm=warm, queue_seconds=60) as service:
            await service.wait_until_warm(warm)
            done = await burst(warm, service.create)
            rows += _rows("gRPC, warm pool", warm, done, WARM_AIM)
    return rows


def main() -> None:
    """Measure and print."""
    parser = arguments("time to the first command of many sandboxes at once")
    parser.add_argument("--counts", type=int, nargs="+", default=[8, 32, 100, 500])
    parser.add_argument("--warm", type=int, default=500, help="size of the warm pool; 0 skips it")
    given = parser.parse_args()
    report(asyncio.run(measure(given.counts, given.warm)), given.json)


if __name__ == "__main__":
    main()
