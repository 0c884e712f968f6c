"""Sandboxes created, used and destroyed by the thousand: what must not grow is counted before and after.

Counted in the real service: processes below it, mounts in its and its spawner's namespaces, control groups of its own,
open descriptors and memory of both. An interrupt ends the run early and reports what was done.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from support.service import Service, running_service
from support.table import Row, arguments, report

_SETTLE_SECONDS = 5.0
_WARM_UP = 200
"""Cycles before the first count: pools of threads and buffers have their size then."""
_EVERY = 1000
MEMORY_AIM_KIB = 2.0
"""Of service and spawner together, for each cycle; the journal's 20,000 newest records are kept in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What there is."""

    processes: int
    mounts: int
    control_groups: int
    descriptors: int
    memory_kib: int


def census(service: Service) -> Census:
    """Count."""
    pids = _tree(service.process.pid)
    own = [service.process.pid, *_children(service.process.pid)]
    instance = (service.folder / "data" / "instance").read_text().strip()
    return Census(
        processes=len(pids),
        mounts=sum(len(_lines(f"/proc/{pid}/mountinfo")) for pid in own),
        control_groups=_groups(instance),
        descriptors=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in own),
        memory_kib=sum(_rss(pid) for pid in own),
    )


async def settled(service: Service, wanted: Census | None) -> Census:
    """Count, a moment later if there is still more than wanted: the kernel takes leave of groups late."""
    end = time.monotonic() + _SETTLE_SECONDS
    while True:
        found = census(service)
        if wanted is None or time.monotonic() > end or not grown(wanted, found):
            return found
        await asyncio.sleep(0.1)


def grown(before: Census, after: Census) -> dict[str, int]:
    """Return what there is more of, memory left out."""
    first, second = asdict(before), asdict(after)
    names = [name for name in first if name != "memory_kib"]
    return {name: second[name] - first[name] for name in names if second[name] > first[name]}


async def cycle(service: Service) -> None:
    """Make one sandbox, use it, destroy it."""
    made = await service.create()
    await made.true()
    await made.destroy()


async def run(service: Service, count: int, parallel: int, stop: asyncio.Event) -> int:
    """Do so many cycles, so many at a time; return how many were done."""
    done = 0
    begun = time.monotonic()

    async def worker(share: int) -> None:
        nonlocal done
        for _ in range(share):
            if stop.is_set():
                return
            await cycle(service)
            done += 1
            if done % _EVERY == 0:
                rate = done / (time.monotonic() - begun)
                left = (count - done) / rate
                print(
                    f"{done} of {count}, {rate:.0f}/s, {left:.0f} s left, {census(service)}",
                    file=sys.stderr,
                    flush=True,
                )

    shares = [count // parallel + (number < count % parallel) for number in range(parallel)]
    await asyncio.gather(*(worker(share) for share in shares))
    return done


async def measure(count: int, parallel: int) -> list[Row]:
    """Cycle and compare."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with running_service() as service:
        await run(service, _WARM_UP, parallel, asyncio.Event())
        before = await settled(service, None)
        begun = time.monotonic()
        done = await run(service, count, parallel, stop)
        seconds = time.monotonic() - begun
        after = await settled(service, before)
        stats = await service.stats()
    first, second = asdict(before), asdict(after)
    rows = [
        Row(
            what=f"{name.replace('_', ' ')} more than before",
            figure=second[name] - first[name],
            unit="",
            aim=0,
            note=f"{first[name]} -> {second[name]}",
        )
        for name in first
        if name != "memory_kib"
    ]
    memory = (after.memory_kib - before.memory_kib) / max(done, 1)
    note = f"{before.memory_kib} -> {after.memory_kib} KiB"
    rows += [
        Row(what="live after all", figure=stats.live_count, unit="", aim=0),
        Row(what="memory for each cycle", figure=memory, unit="KiB", aim=MEMORY_AIM_KIB, note=note),
        Row(what=f"{done} cycles", figure=seconds, unit="s", note=f"{done / seconds:.0f}/s"),
    ]
    return rows


def _tree(pid: int) -> list[int]:
    found = [pid]
    for child in _children(pid):
        found += _tree(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            found += [int(child) for child in text.split()]
    return found


def _lines(path: str) -> list[str]:
    return Path(path).read_text(errors="replace").splitlines()


def _rss(pid: int) -> int:
    for line in _lines(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def _groups(instance: str) -> int:
    total = 0
    for top, names, _ in os.walk("/sys/fs/cgroup"):
        if Path(top).name == "hone-sandbox":
            names[:] = [name for name in names if name.startswith(instance)]
        elif Path(top).name.startswith(instance):
            total += len(names)
            names.clear()
    return total


def main() -> None:
    """Measure and print."""
    parser = arguments("what grows over many sandboxes")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--parallel", type=int, default=4)
    given = parser.parse_args()
    report(asyncio.run(measure(given.count, given.parallel)), given.json)


if __name__ == "__main__":
    main()
