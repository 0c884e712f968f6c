"""The small parts of the remote backend: pacing, and what its scripts print, however hostile."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from sandbox.backends.remote import shell
from sandbox.backends.remote.api import RemoteApi
from sandbox.backends.remote.pacing import TokenBucket
from sandbox.types import FileKind
from servicekit.errors import FailedPrecondition


class FakeTime:
    """Time that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def _bucket(time: FakeTime, *, per_second: float = 5.0, burst: int = 2) -> TokenBucket:
    return TokenBucket(
        per_second,
        burst=burst,
        random_source=random.Random(3),
        clock=time.clock,
        sleep=time.sleep,
    )


async def test_a_burst_passes_and_then_the_pace_holds():
    time = FakeTime()
    bucket = _bucket(time)
    for _ in range(2):
        await bucket.take()
    assert time.slept == []
    passed = []
    for _ in range(50):
        await bucket.take()
        passed.append(time.now)
    assert len(set(time.slept)) > 1  # jittered
    for first, tenth in zip(passed, passed[10:], strict=False):
        assert tenth - first >= 10 * 0.2 - 0.2


async def test_quiet_time_gives_no_more_than_the_burst():
    time = FakeTime()
    bucket = _bucket(time)
    time.now += 1000
    for _ in range(2):
        await bucket.take()
    assert time.slept == []
    await bucket.take()
    assert len(time.slept) == 1


async def test_a_hold_is_for_all_that_come_after():
    time = FakeTime()
    bucket = _bucket(time)
    bucket.hold(3.0)
    assert bucket.wait_seconds() == pytest.approx(3.0)
    await bucket.take()
    assert 3.0 <= time.now - 100.0 <= 3.2 + 1e-9


async def test_the_wait_is_what_the_queue_takes():
    time = FakeTime()
    bucket = _bucket(time, per_second=1.0, burst=1)
    assert bucket.wait_seconds() == 0.0
    await bucket.take()
    assert bucket.wait_seconds() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("status", "signal"),
    [
        ("signal: killed", 9),
        ("signal: segmentation fault (core dumped)", 11),
        ("signal: signal 35", 35),
        ("signal: user defined signal 1", 10),
        ("signal: something new", 9),
    ],
)
def test_the_name_of_a_signal_is_read(status, signal):
    assert shell.status_of_end(False, -1, status) == shell.WaitStatus(0, signal)


def test_an_exit_is_read():
    assert shell.status_of_end(True, 3, "exit status 3") == shell.WaitStatus(3, 0)


def _watched(code: object) -> bytes:
    return " ".join(["Z", *map(str, range(48)), str(code)]).encode()


@pytest.mark.parametrize(
    ("printed", "status"),
    [
        (_watched(3 << 8), shell.WaitStatus(3, 0)),
        (_watched(9), shell.WaitStatus(0, 9)),
        (_watched(0x80 | 11), shell.WaitStatus(0, 11)),
        (_watched("x"), None),
        (b"Z 1 2", None),
        (b"", None),
    ],
)
def test_the_status_of_a_dead_process_is_read(printed, status):
    assert shell.status_of_watch(printed) == status


def test_a_count_of_kills_is_read():
    assert shell.oom_kills_of(b"oom_kill 12\n") == 12
    assert shell.oom_kills_of(b"") == 0


def _printed(*entries: str) -> bytes:
    """Return what find prints of these entries, whose fields are apart by blanks."""
    return b"".join(field.encode() + b"\x00" for entry in entries for field in entry.split(" "))


def test_entries_are_read_in_order_whatever_their_names():
    printed = _printed("b\nc l 3 777 1700000000.25 a\tb", "a f 7 644 1.5 ")
    found = shell.entries_of(printed)
    assert [(e.name, e.kind, e.size_bytes, e.mode) for e in found] == [
        ("a", FileKind.FILE, 7, 0o644),
        ("b\nc", FileKind.LINK, 3, 0o777),
    ]
    assert (found[1].link_target, found[1].modify_time) == ("a\tb", 1700000000.25)
    assert shell.entries_of(b"") == []


@pytest.mark.parametrize(
    "printed",
    [
        b"a",
        b"a\x00",
        b"x\x00y",
        _printed("a f x 644 1 "),
        _printed("a f 1 999 1 "),
        _printed("a f 1"),
    ],
)
def test_what_is_no_list_is_refused(printed):
    with pytest.raises(ValueError):
        shell.entries_of(printed)


@asynccontextmanager
async def _api(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[RemoteApi]:
    """The client, and a service that answers everything so."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            yield RemoteApi(
                session,
                url=f"http://127.0.0.1:{port}",
                api_key="key-of-ours",
                call_seconds=5.0,
                create_seconds=5.0,
            )
    finally:
        await runner.cleanup()


async def test_an_answer_that_comes_in_pieces_is_read_whole():
    text = json.dumps([{"sandboxID": f"vm{number}", "metadata": {}} for number in range(100)])

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(text), 1000):
            await response.write(text[start : start + 1000].encode())
            for _ in range(20):  # lets the client take each piece before the next is there
                await asyncio.sleep(0)
        await response.write_eof()
        return response

    async with _api(answer) as api:
        assert [vm.remote_id for vm in await api.list({})] == [f"vm{n}" for n in range(100)]


async def test_a_service_that_repeats_our_key_does_not_bring_it_into_an_error():
    async def answer(request: web.Request) -> web.StreamResponse:
        words = {"message": f"unknown key {request.headers['X-API-Key']!r}"}
        return web.json_response(words, status=401)

    async with _api(answer) as api:
        with pytest.raises(FailedPrecondition) as caught:
            await api.list({})
    assert "unknown key" in caught.value.message
    assert "key-of-ours" not in caught.value.message
