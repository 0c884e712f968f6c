"""The learner dies by SIGKILL at seeded moments of a run of 12 steps: the run ends as if it had never died.

The engine is scripted, so the rollouts of a slot are the same whenever they are made; a run that was killed must then
end with the very weights of one that was not, bit for bit. HONE_FAULT_SEED chooses other moments,
HONE_FAULT_STALENESS=1 lets rollouts go on beside training.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hone.learner.v1 import learner_pb2, learner_pb2_grpc

from conftest import write_job
from servicekit.channels import connect
from servicekit.errors import HoneError
from suite import Suite, parsed, running_suite, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.fault]

STEPS = 12
KILLS = 10
OTHERS = "rollout,sandbox,tool_gateway,grader,console"
MOMENTS = ("rolling out", "training", "writing", "saved", "any")
"""While rollouts are under way, during an update, within the write of a checkpoint, between checkpoint and publication,
and up to a second after a step began."""


@dataclass(slots=True)
class Learner:
    """A learner process that the test alone starts and kills, beside a suite without one."""

    suite: Suite
    address: str
    process: "subprocess.Popen[bytes] | None" = None
    stage: learner_pb2.ProgressReport | None = None
    """The last progress that it told."""
    starts: int = field(default=0)

    @property
    def data(self) -> Path:
        return self.suite.folder / "learner"

    def checkpoints(self, run_id: str) -> Path:
        return self.data / "runs" / run_id / "checkpoints"

    def start(self) -> None:
        home = self.suite.folder / ".hone"
        endpoints = self.suite.state()["endpoints"]
        host, _, port = self.address.rpartition(":")
        settings = {
            "HOST": host,
            "PORT": port,
            "DATA_DIR": str(self.data),
            "NATS_URL": endpoints["nats"],
            "OTLP_ENDPOINT": endpoints["otlp"],
            "TOKEN_KEY_FILE": str(home / "keys" / "rollout-token.pem"),
            "ENDPOINTS_FILE": str(home / "endpoints.json"),
            "THREADS": "1",
        }
        with (self.suite.folder / "learner.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "learner"],
                cwd=self.suite.folder,
                env={**os.environ, **{f"HONE_LEARNER_{k}": v for k, v in settings.items()}},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.starts += 1

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.logs()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def logs(self) -> str:
        lines = (self.suite.folder / "learner.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-40:]) + self.suite.logs()

    async def follow(self, run_id: str) -> None:
        """Keeps `stage` up to date, over every death of the learner."""
        async with connect(self.address) as channel:
            stub = learner_pb2_grpc.LearnerServiceStub(channel)
            while True:
                with suppress(HoneError):
                    request = learner_pb2.WatchRunRequest(run_id=run_id)
                    async for response in stub.WatchRun(request):
                        if response.HasField("progress"):
                            self.stage = response.progress
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learner]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("suite")
    up = ("--engine", "scripted", "--only", OTHERS)
    with running_suite(folder, *up, HONE_LEARNER_ADDRESS=address) as suite:
        made = Learner(suite, address)
        made.start()
        yield made
        assert made.process is not None
        made.process.terminate()
        made.process.wait(30)


def start_run(learner: Learner, model: Path, **train: Any) -> str:
    job = write_job(learner.suite.folder, model, train={"max_steps": STEPS, **train})

    def started() -> str:
        done = learner.suite.hone("train", str(job), "--detach", "--json", ok=False)
        return parsed(done.stdout)["run"]["run_id"] if done.returncode == 0 else ""

    return str(wait_until("the start", started, seconds=60, suite=learner.suite))


def wait_for_the_end(learner: Learner, run_id: str) -> dict[str, Any]:
    """Returns the run as `hone runs` shows it; until then only its file is looked at, which costs nothing."""
    file = learner.data / "runs" / run_id / "run.json"

    def ended() -> bool:
        run = json.loads(file.read_text())
        assert run["state"] not in ("failed", "stopped"), f"{run}\n{learner.logs()}"
        return bool(run["state"] == "completed")

    wait_until("the end", ended, seconds=240, suite=learner.suite)
    return dict(learner.suite.hone("runs", run_id, "--json"))


def weights(learner: Learner, run_id: str) -> bytes:
    folder = learner.data / "runs" / run_id / "adapter"
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(learner: Learner, tiny_model: Path) -> tuple[dict[str, Any], bytes]:
    """A run that nobody kills."""
    run_id = start_run(learner, tiny_model)
    return wait_for_the_end(learner, run_id), weights(learner, run_id)


@asynccontextmanager
async def following(learner: Learner, run_id: str) -> AsyncIterator[None]:
    task = asyncio.create_task(learner.follow(run_id))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def moment(learner: Learner, run_id: str, step: int, what: str, wait: float) -> None:
    """Returns at such a moment of a step, `wait` (0 to 1) of the way into it where it takes long.

    A moment that passed while this process was kept from looking is over: it then returns late, and not never.
    """
    folder = learner.checkpoints(run_id)

    def is_now() -> bool:
        stage = learner.stage
        saved = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
        newest = max(saved, default=-1)
        if what == "any":
            return newest >= step
        if newest > step:
            return True
        if what == "writing":
            return any(folder.glob(f".step-{step + 1:08d}*"))
        if what == "saved":
            return False
        if stage is None or stage.step < step or stage.stage == "loading":
            return False
        if what == "rolling out":
            return True
        rolled_out = stage.stage == "rolling_out" and stage.done_count == stage.total_count
        return stage.step > step or stage.stage == "training" or rolled_out

    deadline = time.monotonic() + 90
    while not is_now():
        assert time.monotonic() < deadline, f"step {step}: no moment {what!r}\n{learner.logs()}"
        await asyncio.sleep(0.0005)
    length = {"any": 1.0, "training": 0.1, "rolling out": 0.2}.get(what, 0.0)
    await asyncio.sleep(wait * length)


async def test_run_of_a_learner_that_was_killed_again_and_again_ends_as_if_it_had_not(
    learner: Learner,
    tiny_model: Path,
    undisturbed: tuple[dict[str, Any], bytes],
) -> None:
    seed = int(os.environ.get("HONE_FAULT_SEED", "0"))
    max_staleness = int(os.environ.get("HONE_FAULT_STALENESS", "0"))
    rng = random.Random(f"{seed}/{max_staleness}")
    plan = [MOMENTS[i % len(MOMENTS)] for i in range(KILLS)]
    rng.shuffle(plan)
    run_id = await asyncio.to_thread(
        start_run,
        learner,
        tiny_model,
        max_staleness=max_staleness,
        importance_sampling="none",
    )
    hit: Counter[str] = Counter()
    starts = learner.starts
    async with following(learner, run_id):
        for step, what in enumerate(plan, start=1):
            await moment(learner, run_id, step, what, rng.random())
            learner.kill()
            hit["within a write"] += any(learner.checkpoints(run_id).glob(".*"))
            learner.start()
        assert learner.starts - starts == len(plan)
        run = await asyncio.to_thread(wait_for_the_end, learner, run_id)
    reference, wanted = undisturbed
    assert [s["step"] for s in run["steps"]] == list(range(STEPS))
    counts = await asyncio.to_thread(learner.suite.audit, run_id)
    assert counts["steps_trained"] == STEPS
    assert counts["policy_versions"] == STEPS + 1
    assert counts["slots"] == counts["rollouts_trained"] == counts["attempts"] == STEPS * 12
    rewards = [[s["metrics"]["reward/mean"] for s in r["steps"]] for r in (run, reference)]
    assert rewards[0] == rewards[1]
    assert weights(learner, run_id) == wanted, f"moments {plan}, {hit}"
    print(f"staleness {max_staleness}, seed {seed}: {plan}; {dict(hit)}")
