"""How long calls take with many memories in one namespace: over gRPC, on a real file, with the packaged embeddings.

    python services/memory/benchmarks/recall.py [--memories 10000 100000] [--calls 200] [--json FILE]

Client and server share this process, so the figures hold both. The first recall loads the vectors and is told apart.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hone.memory.v1 import memory_pb2 as pb
from hone.memory.v1 import memory_pb2_grpc

from memory.memories import Memories
from memory.requests import Remember
from memory.servicer import MemoryServicer
from memory.store import MemoryStore
from memory.wordllama_embedder import WordLlamaEmbedder
from servicekit.channels import connect
from servicekit.testing import running_server

WORDS = (
    ("find", "count", "list", "delete", "update", "insert", "export", "compare"),
    ("orders", "patients", "log files", "invoices", "flights", "students", "tickets", "sensors"),
    ("of customer", "in folder", "for department", "from supplier", "by owner", "near station"),
    ("created before", "larger than", "not paid since", "grouped by", "sorted by", "renamed to"),
)


def intent(rng: random.Random) -> str:
    """Return a task in a sentence."""
    verb, thing, where, which = (rng.choice(words) for words in WORDS)
    return f"{verb} {thing} {where} {rng.randrange(10_000)} {which} {rng.randrange(10_000)}"


def fill(file: Path, embedder: WordLlamaEmbedder, count: int, rng: random.Random) -> None:
    """Write so many memories in one transaction, as RememberMemory writes each."""
    store = MemoryStore(file, embedder=embedder.name, dimension=embedder.dimension, clock=time.time)
    first = Remember(namespace="ns", intent=intent(rng), experience="e")
    store.add(first, embedder.embed(first.intent))
    store.close()
    rows = []
    for number in range(1, count):
        text = intent(rng)
        vector = embedder.embed(text).tobytes()
        rows.append((f"mem_{number}", rng.random(), vector, text, f"experience {number} " * 20))
    connection = sqlite3.connect(file)
    with connection:
        connection.executemany(
            "INSERT INTO memories (scope, memory_id, utility, recall_count, credit_count, create_us, update_us, "
            "vector, intent, experience) VALUES (1, ?, ?, 0, 0, 0, 0, ?, ?, ?)",
            rows,
        )
    connection.close()


async def timed(count: int, call: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """Return the median and the 95th percentile in milliseconds."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - begun) * 1000)
    return {"p50": statistics.median(taken), "p95": sorted(taken)[math.ceil(0.95 * count) - 1]}


async def measure(
    folder: Path, embedder: WordLlamaEmbedder, count: int, calls: int
) -> dict[str, dict[str, float]]:
    """Measure every call with so many memories."""
    rng = random.Random(count)
    file = folder / f"{count}.sqlite"
    fill(file, embedder, count, rng)
    store = MemoryStore(file, embedder=embedder.name, dimension=embedder.dimension, clock=time.time)
    memories = Memories(store, embedder, learning_rate=0.3, max_loaded_memories=2 * count)
    servicer = MemoryServicer(memories)
    async with (
        running_server(
            lambda server: memory_pb2_grpc.add_MemoryServiceServicer_to_server(servicer, server)
        ) as address,
        connect(address) as channel,
    ):
        stub: Any = memory_pb2_grpc.MemoryServiceStub(channel)

        async def recall(rollout_id: str = "") -> None:
            await stub.RecallMemories(
                pb.RecallMemoriesRequest(namespace="ns", query=intent(rng), rollout_id=rollout_id)
            )

        async def remember() -> None:
            await stub.RememberMemory(
                pb.RememberMemoryRequest(namespace="ns", intent=intent(rng), experience="e")
            )

        async def credit() -> None:
            rollout_id = next(recalled)
            await stub.CreditMemories(
                pb.CreditMemoriesRequest(credit_id=rollout_id, rollout_id=rollout_id, reward=1)
            )

        rollouts = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(calls)]
        recalling, recalled = iter(rollouts), iter(rollouts)
        figures = {"first recall": await timed(1, recall), "recall": await timed(calls, recall)}
        figures["recall by a rollout"] = await timed(calls, lambda: recall(next(recalling)))
        figures["credit"] = await timed(calls, credit)
        figures["remember"] = await timed(calls, remember)
    memories.close()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="time of a recall among many memories")
    parser.add_argument("--memories", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()
    embedder = WordLlamaEmbedder()
    result = {}
    print(f"{'memories':>9}  {'call':20} {'p50':>9} {'p95':>9}")
    for count in given.memories:
        with tempfile.TemporaryDirectory() as folder:
            figures = asyncio.run(measure(Path(folder), embedder, count, given.calls))
        result[str(count)] = figures
        for call, taken in figures.items():
            print(f"{count:9}  {call:20} {taken['p50']:6.2f} ms {taken['p95']:6.2f} ms")
    if given.json:
        machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "calls": given.calls}
        kept = machine | {"milliseconds": result}
        given.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
