"""The streaming calls of the Docker API over a daemon of the test's own: what is cut off is never taken for whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox.backends.docker.spec import name_of
from sandbox.backends.docker.wire import ExecStream, Wire
from sandbox.types import Stream
from servicekit.errors import Unavailable

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\n\r\n"
OK = b"HTTP/1.0 200 OK\r\n\r\n"


def frame(stream: int, data: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data


@asynccontextmanager
async def _daemon(folder: Path, answer: bytes) -> AsyncIterator[Wire]:
    """A daemon that answers everything so and then ends the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    path = folder / "docker.sock"
    async with await asyncio.start_unix_server(serve, path):
        yield Wire(f"unix://{path}", 5.0)


async def _output(wire: Wire) -> list[tuple[Stream, bytes]]:
    stream = ExecStream(await wire.request("POST", "/exec/x/start", body={}, upgrade=True))
    try:
        return [piece async for piece in stream.read()]
    finally:
        stream.close()


async def test_output_is_read_to_its_end(tmp_path):
    async with _daemon(tmp_path, UPGRADED + frame(1, b"out") + frame(2, b"err")) as wire:
        assert await _output(wire) == [(Stream.STDOUT, b"out"), (Stream.STDERR, b"err")]


@pytest.mark.parametrize("cut", [1, 7, 8, 10], ids=lambda at: f"at {at}")
async def test_output_that_breaks_off_is_no_output(tmp_path, cut):
    async with _daemon(tmp_path, UPGRADED + frame(1, b"whole")[:cut]) as wire:
        with pytest.raises(Unavailable, match="broke off"):
            await _output(wire)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"no JSON\n",
        OK + b'{"half": ',
        OK + b"x" * 2_000_000,
        b"HTTP/1.0 500 X\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["garbage", "half", "endless", "cut off"],
)
async def test_events_that_cannot_be_read_are_a_daemon_that_cannot_be_reached(tmp_path, answer):
    async with _daemon(tmp_path, answer) as wire:
        with pytest.raises(Unavailable):
            async for _ in wire.events({}):
                pass


@pytest.mark.parametrize(
    ("listed", "name"),
    [({"Id": "1f", "Names": ["/hone-a"]}, "hone-a"), ({"Id": "1f", "Names": None}, "1f")],
)
def test_a_container_that_is_half_removed_is_found_by_its_id(listed, name):
    assert name_of(listed) == name
