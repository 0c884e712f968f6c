"""The load of a step boundary over a scripted backend: many at once, never a hang, never a lost one."""

import asyncio
import time
from collections import Counter

import pytest
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc
from opentelemetry import trace

from sandbox.requests import Policy
from sandbox.servicer import SandboxServicer
from servicekit.channels import connect
from servicekit.errors import DeadlineExceeded, HoneError, ResourceExhausted, Unavailable
from servicekit.testing import running_server
from servicekit.tokens import TokenMinter, TokenVerifier, generate_key_file

NUM_AT_ONCE = 500


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_500_at_once_are_all_served_in_their_turns(suite, backend):
    began = time.process_time()
    made = await asyncio.gather(*(suite.create(suite.rollout_id()) for _ in range(NUM_AT_ONCE)))
    spent = time.process_time() - began
    assert len({one.info.sandbox_id for one in made}) == NUM_AT_ONCE
    assert backend.most_under_way <= 8
    stats = suite.manager.stats()
    assert (stats.live_count, stats.leaked_count, stats.queued_count) == (NUM_AT_ONCE, 0, 0)
    await asyncio.gather(*(suite.fleet.end_rollout(one.info.key.rollout_id) for one in made))
    assert backend.live_count() == 0
    assert spent < 5  # what grows with the square of the burst would take longer


async def test_a_backend_that_fails_in_every_way_loses_none(suite_maker, backend, clock, tmp_path):
    suite = suite_maker(backend, tmp_path, clock, parallel_creates=16)
    await suite.manager.start()
    kinds = (
        Unavailable("503"),
        ResourceExhausted("429", retry_after_seconds=2.0),
        ResourceExhausted("exceeded quota", reason="NO_ROOM", retry_after_seconds=5.0),
        DeadlineExceeded("504"),
    )
    backend.failures = [kinds[number % 4] for number in range(200)]
    answers = await asyncio.gather(
        *(suite.create(suite.rollout_id()) for _ in range(300)), return_exceptions=True
    )
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert Counter(type(error) for error in failed) == {
        Unavailable: 50,
        ResourceExhausted: 100,
        DeadlineExceeded: 50,
    }
    assert all(isinstance(error, HoneError) and error.retryable for error in failed)
    stats = suite.manager.stats()
    assert (stats.live_count, stats.expected_count, stats.leaked_count) == (100, 100, 0)
    told = Counter(what for what, _, _ in suite.events.log)
    assert told == {"created": 100}
    await suite.manager.close()
    assert backend.live_count() == 0
    told = Counter(what for what, _, _ in suite.events.log)
    assert told == {"created": 100, "destroyed": 100}


async def test_the_callers_own_deadline_ends_its_wait_with_a_typed_answer(suite, backend, tmp_path):
    key_file = tmp_path / "key.pem"
    generate_key_file(key_file)
    minter = TokenMinter(key_file, time.time)
    waiting = suite.rollout_id()

    def add(server) -> None:
        servicer = SandboxServicer(
            suite.manager, suite.transfers, Policy(), trace.get_tracer("test")
        )
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(servicer, server)

    backend.gate.clear()
    busy = [asyncio.ensure_future(suite.create(suite.rollout_id())) for _ in range(8)]
    await until(lambda: backend.under_way == 8)
    async with (
        running_server(add, verifier=TokenVerifier(key_file, time.time)) as address,
        connect(address, token=lambda: minter.mint(waiting, 1, "agent", 60)) as channel,
    ):
        stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        request = pb.CreateSandboxRequest(rollout_id=waiting, run_id="run-1", purpose=1)
        error = DeadlineExceeded("")
        while isinstance(
            error, DeadlineExceeded
        ):  # where this machine is slow, the client's clock may be first
            with pytest.raises((ResourceExhausted, DeadlineExceeded)) as caught:
                await stub.CreateSandbox(request, timeout=0.5)
            error = caught.value
        assert (caught.value.reason, caught.value.attributable) == ("QUEUE_TIMEOUT", "infra")
        assert caught.value.retry_after_seconds > 0
        assert suite.manager.stats().queued_count == 0
        backend.gate.set()
        await asyncio.gather(*busy)
        assert (await stub.CreateSandbox(request, timeout=5)).created
