"""The critic as a process of its own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hone.common.v1 import message_pb2
from hone.critic.v1 import critic_pb2, critic_pb2_grpc

from servicekit.channels import connect
from servicekit.errors import FailedPrecondition

pytestmark = pytest.mark.slow

QUESTION = critic_pb2.JudgeRequest(
    messages=[
        message_pb2.ChatMessage(
            role=message_pb2.ROLE_USER, parts=[message_pb2.ContentPart(text="2 + 2 = 4?")]
        )
    ],
    binary=critic_pb2.BinaryKind(),
)


@asynccontextmanager
async def critic(**settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any]]:
    named = {f"HONE_CRITIC_{key}": value for key, value in {"PORT": "0", **settings}.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "critic",
        env={**os.environ, **named},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line: dict[str, Any] = {}
        while "port" not in line:
            line = json.loads(await process.stderr.readline())
        async with connect(f"127.0.0.1:{line['port']}") as channel:
            yield process, critic_pb2_grpc.CriticServiceStub(channel)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_without_an_endpoint_it_starts_and_says_what_is_missing_when_asked() -> None:
    async with critic() as (process, stub):
        with pytest.raises(FailedPrecondition, match="HONE_CRITIC_ENDPOINT_URL"):
            await stub.Judge(QUESTION)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.slow
async def test_with_an_endpoint_it_judges_and_drains(endpoint: Any) -> None:
    endpoint.script = ["Verdict: yes"]
    async with critic(ENDPOINT_URL=endpoint.url, MODEL="m") as (process, stub):
        assert (await stub.Judge(QUESTION)).passed
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize("url", ["http://me:secret@judge/v1", "htp://me:secret@judge/v1"])
async def test_secret_in_the_endpoint_url_ends_the_start_and_is_not_told(url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "critic",
        env={
            **os.environ,
            "HONE_CRITIC_PORT": "0",
            "HONE_CRITIC_ENDPOINT_URL": url,
        },
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert "HONE_CRITIC_ENDPOINT_URL" in stderr.decode()
    assert "HONE_CRITIC_API_KEY_FILE" in stderr.decode()
    assert "secret" not in stderr.decode()


async def test_start_loads_neither_the_client_library_nor_torch() -> None:
    code = (
        "import sys, critic.__main__; print([m for m in ('openai', 'torch') if m in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    stdout, _ = await process.communicate()
    assert stdout.decode().strip() == "[]"
