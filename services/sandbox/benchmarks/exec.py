"""One command after the other in one sandbox: over gRPC against the real service, and without the service."""

import asyncio
import time
from contextlib import AsyncExitStack

from support.embedded import running_backend
from support.service import running_service
from support.table import Row, arguments, median, percentile, report

AIM_MS = 8.0
RATIO_AIM = 1.3
_WARM_UP = 20


async def measure(count: int, block: int) -> list[Row]:
    """Time `true` in both ways, in turns of `block`, so that both see the same machine."""
    times: dict[str, list[float]] = {"gRPC": [], "without": []}
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running_service())
        embedded = await stack.enter_async_context(running_backend())
        made = {"gRPC": await service.create(), "without": await embedded.create()}
        for number in range(-_WARM_UP, count, block):
            for way, sandbox in made.items():
                for _ in range(block):
                    begun = time.perf_counter()
                    await sandbox.true()
                    if number >= 0:
                        times[way].append(1000 * (time.perf_counter() - begun))
        for sandbox in made.values():
            await sandbox.destroy()
    over, without = median(times["gRPC"]), median(times["without"])
    return [
        Row(what="exec of true over gRPC, median", figure=over, unit="ms", aim=AIM_MS),
        Row(what="the same, p95", figure=percentile(times["gRPC"], 0.95), unit="ms"),
        Row(what="exec of true without gRPC, median", figure=without, unit="ms"),
        Row(what="the same, p95", figure=percentile(times["without"], 0.95), unit="ms"),
        Row(what="gRPC over without", figure=over / without, unit="x", aim=RATIO_AIM),
    ]


def main() -> None:
    """Measure and print."""
    parser = arguments("time of one command")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--block", type=int, default=20)
    given = parser.parse_args()
    report(asyncio.run(measure(given.count, given.block)), given.json)


if __name__ == "__main__":
    main()
