"""Many connections over one pair of pipes: they arrive whole, hold each other up in nothing, and end."""

import asyncio
import os

import pytest
import pytest_asyncio
import uvloop

from sandbox.pod_agent import mux as mux_module
from sandbox.pod_agent.mux import HEAD, Broken, Mux

MIB = 1024 * 1024


class Pair:
    """A side that opens connections and one that answers them, joined by pipes."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue = asyncio.Queue()
        self.near = Mux()
        self.far = Mux(lambda reader, writer: self.accepted.put_nowait((reader, writer)))
        self.serving: list[asyncio.Task[None]] = []
        self.transports: list[asyncio.BaseTransport] = []
        self.held: list[object] = []

    async def start(self) -> None:
        for mux, other in ((self.near, self.far), (self.far, self.near)):
            read, write = os.pipe()
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_write_pipe(
                lambda mux=mux: mux, os.fdopen(write, "wb", buffering=0)
            )
            reader = asyncio.StreamReader()
            source, _ = await loop.connect_read_pipe(
                lambda reader=reader: asyncio.StreamReaderProtocol(reader),
                os.fdopen(read, "rb", buffering=0),
            )
            self.transports += [transport, source]
            self.serving.append(loop.create_task(other.serve(reader)))

    async def connection(self):
        near = self.near.open()
        far = await asyncio.wait_for(self.accepted.get(), 10)
        self.held.append((near, far))  # asyncio closes what nobody refers to
        return near, far

    async def stop(self) -> None:
        for transport in self.transports:
            transport.close()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)


@pytest_asyncio.fixture
async def pair():
    made = Pair()
    await made.start()
    yield made
    await made.stop()


async def test_what_is_written_arrives_whole_and_in_order(pair):
    (reader, writer), (far_reader, far_writer) = await pair.connection()
    data = bytes(range(256)) * 8192
    writer.write(data)
    assert await asyncio.wait_for(far_reader.readexactly(len(data)), 10) == data
    far_writer.write(b"answer")
    far_writer.close()
    assert await asyncio.wait_for(reader.read(), 10) == b"answer"
    assert writer.is_closing()


async def test_connections_are_apart(pair):
    made = [await pair.connection() for _ in range(20)]
    for number, ((_, writer), _) in enumerate(made):
        writer.write(f"{number}\n".encode())
    for number, (_, (far_reader, _)) in enumerate(made):
        assert await asyncio.wait_for(far_reader.readline(), 10) == f"{number}\n".encode()


async def test_one_that_is_not_read_holds_up_its_writer_alone(pair):
    (_, writer), (far_reader, _) = await pair.connection()

    async def fill() -> int:
        sent = 0
        while sent < 64 * MIB:
            writer.write(bytes(MIB // 4))
            sent += MIB // 4
            await writer.drain()
        return sent

    filling = asyncio.ensure_future(fill())
    (_, other), (other_far, _) = await pair.connection()
    for _ in range(50):
        other.write(b"beside\n")
        assert await asyncio.wait_for(other_far.readline(), 10) == b"beside\n"
    assert not filling.done()
    taken = 0
    while taken < 64 * MIB:
        taken += len(await asyncio.wait_for(far_reader.read(MIB), 10))
    assert await asyncio.wait_for(filling, 10) == taken


async def test_a_closed_connection_ends_on_both_sides_and_takes_no_more(pair):
    (_, writer), (far_reader, far_writer) = await pair.connection()
    writer.write(b"last")
    writer.transport.abort()
    assert await asyncio.wait_for(far_reader.read(), 10) == b"last"
    far_writer.write(b"too late")
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(far_writer.drain(), 10)
    await asyncio.wait_for(far_writer.wait_closed(), 10)


async def test_the_end_of_the_pipe_ends_every_connection(pair):
    (reader, _), (far_reader, _) = await pair.connection()
    for transport in pair.transports:
        transport.close()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert await asyncio.wait_for(far_reader.read(), 10) == b""
    with pytest.raises(ConnectionError):
        pair.near.open()


@pytest.mark.parametrize(
    "frame",
    [
        HEAD.pack(1, mux_module.DATA, mux_module.MAX_PAYLOAD_BYTES + 1),
        HEAD.pack(1, 99, 0),
    ],
)
async def test_what_is_no_frame_is_refused(pair, frame):
    held = pair.near.open()
    stream = asyncio.StreamReader()
    stream.feed_data(frame)
    with pytest.raises(Broken):
        await asyncio.wait_for(pair.near.serve(stream), 10)
    assert held[1].is_closing()


async def test_nobody_opens_a_connection_to_a_side_that_takes_none(pair):
    pair.far.send(7, mux_module.OPEN)
    (_, writer), (far_reader, _) = await pair.connection()
    writer.write(b"works\n")
    assert await asyncio.wait_for(far_reader.readline(), 10) == b"works\n"


def test_it_writes_over_the_pipes_of_the_services_own_loop():
    async def write() -> bytes:
        read, write = os.pipe()
        made = Mux()
        with open(write, "wb", buffering=0) as target:
            await asyncio.get_running_loop().connect_write_pipe(lambda: made, target)
            _, writer = made.open()
            writer.write(b"said")
            await writer.drain()
            said = await asyncio.to_thread(os.read, read, 100)
            made.end_all()
        os.close(read)
        return said

    assert uvloop.run(asyncio.wait_for(write(), 10))[:5] == HEAD.pack(1, mux_module.OPEN, 0)[:5]
