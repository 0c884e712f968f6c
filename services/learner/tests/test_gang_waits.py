"""What a gang's connection to its first rank does where that hangs."""

import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from learner.workers.gang import limit_waits


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    mine, theirs = socket.socketpair()
    with Connection(mine.detach()) as connection, theirs:
        limit_waits(connection, 0.05)
        yield connection, theirs


def test_message_that_never_becomes_whole_is_given_up(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = ends
    theirs.sendall(struct.pack("!i", 100) + b"a part of it")
    assert connection.poll(10)
    with pytest.raises(BlockingIOError):
        connection.recv()


def test_message_that_is_never_taken_in_is_given_up(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, _ = ends
    with pytest.raises(BlockingIOError):
        connection.send("more than a socket holds" * (1 << 20))
