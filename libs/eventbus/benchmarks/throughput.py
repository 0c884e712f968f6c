"""Events per second, published and consumed, through the bus and through bare nats-py, in the same run.

    python libs/eventbus/benchmarks/throughput.py [--events 5000] [--bytes 4096] [--rounds 3] [--json]

Both sides use one connection, file storage, at most 256 publishes under way, a Nats-Msg-Id per message, a durable pull
consumer and one acknowledgement per message. The bare side fetches 100 at a time and does nothing with a message; the
bus also builds, checks and parses envelopes. Rounds alternate, and the medians are compared.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import uuid
from pathlib import Path

import nats
from hone.events.v1 import events_pb2
from nats.js import api

from eventbus.envelope import new_envelope
from eventbus.nats_bus import NatsBus
from eventbus.testing import NatsServer, start_nats

WINDOW = 256


def _envelopes(count: int, size_bytes: int) -> list[events_pb2.Envelope]:
    """Returns turn events whose source field pads them to the size."""
    rollout_id = str(uuid.uuid4())
    events = []
    for number in range(count):
        event = new_envelope(
            events_pb2.RolloutTurn(turn=number + 1),
            source="rollout",
            run_id="bench",
            rollout_id=rollout_id,
            clock=time.time,
        )
        event.source = "x" * max(1, size_bytes - event.ByteSize())
        events.append(event)
    return events


async def _measure_bus(server: NatsServer, count: int, size_bytes: int) -> dict[str, float]:
    events = _envelopes(count, size_bytes)
    async with await NatsBus.connect(server.url, name="bench") as bus:
        begun = time.perf_counter()
        await asyncio.gather(*(bus.publish(event) for event in events))
        published = time.perf_counter()
        stop, seen = asyncio.Event(), 0

        async def handle(_: object) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                stop.set()

        await bus.consume("bench", ["rollout_turn"], handle, stop=stop, max_in_flight=WINDOW)
        consumed = time.perf_counter()
        read = 0
        async for _ in bus.read():
            read += 1
        assert read == count
        return _rates(count, begun, published, consumed) | {
            "read": count / (time.perf_counter() - consumed)
        }


async def _measure_bare(server: NatsServer, count: int, size_bytes: int) -> dict[str, float]:
    payloads = [(str(uuid.uuid4()), b"x" * size_bytes) for _ in range(count)]
    client = await nats.connect(server.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(
        name="BARE", subjects=["bare.>"], storage=api.StorageType.FILE, duplicate_window=600
    )
    window = asyncio.Semaphore(WINDOW)

    async def publish(message_id: str, payload: bytes) -> None:
        async with window:
            await jetstream.publish("bare.turn", payload, headers={"Nats-Msg-Id": message_id})

    begun = time.perf_counter()
    await asyncio.gather(*(publish(*item) for item in payloads))
    published = time.perf_counter()
    pulling = await jetstream.pull_subscribe("bare.>", durable="bench", stream="BARE")
    seen = 0
    while seen < count:
        for message in await pulling.fetch(100, timeout=5):
            await message.ack()
            seen += 1
    await client.flush()
    consumed = time.perf_counter()
    await jetstream.delete_stream("BARE")
    await client.close()
    return _rates(count, begun, published, consumed)


def _rates(count: int, begun: float, published: float, consumed: float) -> dict[str, float]:
    return {
        "publish": count / (published - begun),
        "consume": count / (consumed - published),
        "both": count / (consumed - begun),
    }


async def measure(count: int, size_bytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns median events per second of both sides, and their ratios."""
    samples: dict[str, list[dict[str, float]]] = {"bus": [], "bare": []}
    for _ in range(rounds):
        # A new server each time: the stream of one side must not be the ballast of the other.
        for side, run in (("bare", _measure_bare), ("bus", _measure_bus)):
            with tempfile.TemporaryDirectory() as folder, start_nats(Path(folder)) as server:
                samples[side].append(await run(server, count, size_bytes))
    result = {
        side: {key: statistics.median(sample[key] for sample in taken) for key in taken[0]}
        for side, taken in samples.items()
    }
    result["ratio"] = {key: result["bus"][key] / rate for key, rate in result["bare"].items()}
    return result


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description="events per second through the bus, against nats-py"
    )
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.events, arguments.bytes, arguments.rounds))
    if arguments.json:
        kept = {"events": arguments.events, "bytes": arguments.bytes} | result
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(
        f"{arguments.events} events of {arguments.bytes} bytes, median of {arguments.rounds} rounds"
    )
    for side in ("bare", "bus"):
        rates = "  ".join(f"{key} {rate:8.0f}/s" for key, rate in result[side].items())
        print(f"{side:5} {rates}")
    print("ratio " + "  ".join(f"{key} {ratio:10.2f}" for key, ratio in result["ratio"].items()))


if __name__ == "__main__":
    main()
