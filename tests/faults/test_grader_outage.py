"""A grader's endpoint is down in the middle of a run: nothing is scored for it, everything is graded afterwards.

The grader itself is killed meanwhile, with rollouts that it gave back and rollouts in its hands.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conftest import RUN, write_job
from suite import has_steps, is_in, running_suite, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.fault]

DOWN_SECONDS = 30.0
STEPS = 12
WORTH = 0.5
"""What the endpoint gives every response: a zero can only be a fault of grading."""


class Grader:
    """An endpoint grader that can be down: then its port refuses connections."""

    def __init__(self) -> None:
        self.rollouts: list[str] = []
        self.server = self._serve(0)
        self.port: int = self.server.server_address[1]

    def down(self) -> None:
        """Stops listening; the port stays this test's by being asked for again."""
        self.server.shutdown()
        self.server.server_close()

    def up(self) -> None:
        self.server = self._serve(self.port)

    def _serve(self, port: int) -> ThreadingHTTPServer:
        grader = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                grader.rollouts.append(asked["rollout_id"])
                body = json.dumps({"score": WORTH, "explanation": "seen"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        return server


@pytest.fixture
def grader() -> Iterator[Grader]:
    grader = Grader()
    yield grader
    grader.down()


def _definition(port: int) -> dict[str, Any]:
    endpoint = {
        "name": "outside",
        "type": "endpoint",
        "weight": 1,
        "url": f"http://127.0.0.1:{port}/score",
        "timeout_seconds": 5,
    }
    # The answers' reward beside it keeps the groups' spread, so that every step trains.
    return {"type": "multi", "graders": [endpoint, *RUN["grader"]["graders"]]}


def test_an_endpoint_that_is_down_for_thirty_seconds_costs_no_reward(
    tmp_path: Path, tiny_model: Path, grader: Grader
) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        job = write_job(
            suite.folder,
            tiny_model,
            grader=_definition(grader.port),
            train={"max_steps": STEPS},
        )
        run = suite.start("train", job)

        def steps() -> int:
            return len((run.folder / "metrics.jsonl").read_bytes().splitlines())

        wait_until("the first step", has_steps(run.folder, 1), seconds=60, suite=suite)
        grader.down()
        before = steps()
        up_at = time.monotonic() + DOWN_SECONDS
        killed_at = time.monotonic() + DOWN_SECONDS / 3
        wait_until("a third of the outage", lambda: time.monotonic() > killed_at, seconds=60)
        assert suite.signal("grader", signal.SIGKILL)
        wait_until("the outage's end", lambda: time.monotonic() > up_at, seconds=60)
        # What was graded before the outage may still be trained on.
        assert steps() <= before + 1
        asked_before = len(grader.rollouts)
        grader.up()
        wait_until("the end", is_in(run.folder, "completed"), seconds=180, suite=suite)

        assert len(suite.hone("runs", run.run_id, "--json")["steps"]) == STEPS
        suite.audit(run.run_id)
        rows = suite.hone("rollout", "--run", run.run_id, "--limit", "1000", "--json")["rollouts"]
        assert {row["outcome"] for row in rows} == {"scored"}
        # Each was graded as it was, not acted out again; each score has the endpoint's share.
        assert {int(row.get("attempt", 0)) for row in rows} == {0}
        assert scores_by_sample(rows) == {0: {0.75}, 1: {0.675}, 2: {0.25}, 3: {0.25}}
        assert {row["rollout_id"] for row in rows} == set(grader.rollouts)
        assert len(grader.rollouts) > asked_before


def scores_by_sample(rows: list[dict[str, Any]]) -> dict[int, set[float]]:
    scores: dict[int, set[float]] = {}
    for row in rows:
        sample = int(row["slot"].get("sample_index", 0))
        scores.setdefault(sample, set()).add(round(float(row.get("score", 0.0)), 6))
    return scores
