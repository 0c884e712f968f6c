"""Steps per second with rollouts beside training (`max_staleness` above 0) against training that waits for them.

The run controller, its log and NATS are the real ones. Engine and weights are simulated, so that the work is equal and
costs a set time: a rollout takes `--cost` seconds, an engine acts in one step's rollouts at once, an update takes
`--cost` seconds. Both only wait, as where they have accelerators of their own. The policy is a softmax over 16 answers
to one question, of which one is right; it is really learned, from rollouts that really act with the version they were
asked for, and with the truncated importance weights that stale tokens get. So the last reward says what staleness
costs.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2

from eventbus.bus import Delivery
from eventbus.envelope import new_envelope
from eventbus.nats_bus import NatsBus
from eventbus.testing import start_nats
from learner.jobs.context import JobContext
from learner.jobs.reinforce import ReinforcementJob
from learner.ports import Restored, ScoredRollout
from learner.rollouts.runlog import BusRunLog
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec
from trajectory import convert
from trajectory import types as t

ANSWERS = 16
RIGHT = 3
RATE = 4.0
CAP = 2.0
GROUPS, GROUP_SIZE = 4, 8
AIM = 1.6
"""Times the steps per second of the run that waits."""
LAST = 5
"""Steps over which the last reward is averaged."""


def probabilities(logits: Sequence[float]) -> list[float]:
    """Returns the softmax."""
    top = max(logits)
    weights = [math.exp(value - top) for value in logits]
    return [weight / sum(weights) for weight in weights]


class Engine:
    """Acts and judges: samples one answer of the version that was asked for, after a set time."""

    def __init__(self, bus: NatsBus, versions: Mapping[int, Sequence[float]], cost: float) -> None:
        """Acts with the weights of `versions`."""
        self._bus = bus
        self._versions = versions
        self._cost = cost

    async def run(self, stop: asyncio.Event) -> None:
        """Acts in as many rollouts at once as a step has."""
        await self._bus.consume(
            "rollout",
            ["rollout_requested"],
            self._act,
            stop=stop,
            max_in_flight=GROUPS * GROUP_SIZE,
        )

    async def _act(self, delivery: Delivery) -> None:
        asked = delivery.envelope
        await asyncio.sleep(self._cost)
        request = asked.rollout_requested
        chances = probabilities(self._versions[request.policy_version])
        rng = random.Random(request.sampling.seed)
        (answer,) = rng.choices(range(ANSWERS), weights=chances)
        row = t.TokenRow(
            token_ids=(0, answer),
            loss_mask=(False, True),
            logprobs=(0.0, math.log(chances[answer])),
            spans=(t.TokenSpan(start=1, end=2, turn=0, policy_version=request.policy_version),),
        )
        moment = datetime.now(UTC)
        record = t.RolloutRecord(
            task=convert.task_from_proto(request.task),
            messages=(),
            tokens=t.TokenRecord(rows=(row,), sampling=t.SamplingParams()),
            stop_reason=t.StopReason.COMPLETED,
            sandbox_id="",
            turns=(),
            grader_json="",
            start_time=moment,
            end_time=moment,
        )
        finished = events_pb2.RolloutFinished(inline=convert.rollout_record_to_proto(record))
        scored = outcome_pb2.Scored(score=float(answer == RIGHT))
        await self._tell(asked, finished, "rollout")
        judged = events_pb2.RewardAssigned(grader_version="1", scored=scored)
        await self._tell(asked, judged, "grader")

    async def _tell(
        self,
        asked: events_pb2.Envelope,
        payload: events_pb2.RolloutFinished | events_pb2.RewardAssigned,
        source: str,
    ) -> None:
        envelope = new_envelope(
            payload,
            source=source,
            run_id=asked.run_id,
            rollout_id=asked.rollout_id,
            slot=asked.slot,
            attempt=asked.attempt,
            clock=time.time,
        )
        await self._bus.publish(envelope)


class Core:
    """Sixteen logits and their policy gradient; an update takes a set time."""

    def __init__(self, cost: float) -> None:
        """Starts with all answers alike."""
        self._cost = cost
        self._logits = [0.0] * ANSWERS
        self.versions: dict[int, list[float]] = {0: [0.0] * ANSWERS}

    async def restore(self) -> Restored | None:
        """Starts anew."""
        return None

    async def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        """Follows the gradient of the mean advantage, weighted for what older versions sampled."""
        await asyncio.sleep(self._cost)
        chances = probabilities(self._logits)
        gradient = [0.0] * ANSWERS
        for group in groups:
            mean = statistics.fmean(rollout.score for rollout in group)
            for rollout in group:
                row = rollout.rows[0]
                answer = row.token_ids[1]
                weight = min(CAP, math.exp(math.log(chances[answer]) - row.logprobs[1]))
                for k in range(ANSWERS):
                    slope = float(k == answer) - chances[k]
                    gradient[k] += weight * (rollout.score - mean) * slope
        count = sum(len(group) for group in groups)
        self._logits = [
            value + RATE * g / count for value, g in zip(self._logits, gradient, strict=True)
        ]
        return {}

    async def sft_step(
        self, rows: Sequence[int], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        """Is not asked for by a run with rollouts."""
        raise NotImplementedError

    preference_step = sft_step

    async def measure(self, progress: Callable[[int, int], None]) -> dict[str, float]:
        """Is not asked for by a run with rollouts."""
        raise NotImplementedError

    async def save(self, restored: Restored) -> None:
        """Keeps the weights of the version in memory."""
        self.versions[restored.policy_version] = list(self._logits)

    async def export(self, folder: Path) -> None:
        """Writes the weights."""
        (folder / "adapter_config.json").write_text(json.dumps(self._logits))

    def interrupt(self) -> None:
        """Has nothing to interrupt."""

    async def close(self) -> None:
        """Has nothing to close."""


class Report:
    """Keeps the figures of each step."""

    def __init__(self) -> None:
        """Starts empty."""
        self.steps: list[Mapping[str, float]] = []

    def progress(self, step: int, stage: str) -> Callable[[int, int], None]:
        """Shows nothing."""
        return lambda done, total: None

    def step_done(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        """Keeps the figures."""
        self.steps.append(metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run was like."""

    steps_per_second: float
    rollouts_trained: int
    last_reward: float
    staleness: float
    overlap_share: float


async def measure(
    url: str, folder: Path, *, max_staleness: int, steps: int, cost: float, seed: int
) -> Figures:
    """Carries out one run."""
    run_id = f"bench-{max_staleness}-{seed}"
    spec = RunSpec.model_validate(
        {
            "name": "bench",
            "algorithm": "grpo",
            "model": {"path": "none"},
            "data": {"train": "tasks-x"},
            "train": {
                "max_steps": steps,
                "batch_size": GROUPS,
                "group_size": GROUP_SIZE,
                "max_staleness": max_staleness,
            },
            "grader": {"type": "answer", "reference": "{{item.answer}}"},
            "seed": seed,
        }
    )
    async with await NatsBus.connect(url, name=run_id) as bus:
        core, report, stop = Core(cost), Report(), asyncio.Event()
        context = JobContext(
            run_id=run_id,
            spec=spec,
            log=BusRunLog(
                run_id=run_id,
                spec=run_spec_to_proto(spec),
                bus=bus,
                blobs=await bus.blobs(),
                clock=time.time,
                rng=random.Random(seed),
                temperature=1.0,
                eval_temperature=1.0,
            ),
            report=report,
            stop=asyncio.Event(),
            folder=folder / run_id,
            monotonic=time.monotonic,
        )
        engine = asyncio.create_task(Engine(bus, core.versions, cost).run(stop))
        tasks = [t.Task(task_id=f"t{i}", messages=()) for i in range(GROUPS)]
        began = time.perf_counter()
        await ReinforcementJob(context, core, tasks, []).run()
        took = time.perf_counter() - began
        stop.set()
        await engine
    return Figures(
        steps_per_second=steps / took,
        rollouts_trained=round(sum(step["rollouts/ok"] for step in report.steps)),
        last_reward=statistics.fmean(step["reward/mean"] for step in report.steps[-LAST:]),
        staleness=statistics.fmean(step["staleness/mean"] for step in report.steps),
        overlap_share=statistics.fmean(step["overlap/share"] for step in report.steps),
    )


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--cost", type=float, default=1.0, help="seconds of rollouts and of update")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()
    found: dict[int, Figures] = {}
    with tempfile.TemporaryDirectory() as folder, start_nats(Path(folder)) as server:
        for max_staleness in (0, *given.staleness):
            found[max_staleness] = asyncio.run(
                measure(
                    server.url,
                    Path(folder),
                    max_staleness=max_staleness,
                    steps=given.steps,
                    cost=given.cost,
                    seed=given.seed,
                )
            )
    print(
        f"{'max_staleness':>13} {'steps/s':>8} {'times':>6} {'aim':>5}        {'rollouts':>8} "
        f"{'last reward':>11} {'staleness':>9} {'overlap':>7}"
    )
    rows = []
    for max_staleness, figures in found.items():
        times = figures.steps_per_second / found[0].steps_per_second
        aim = AIM if max_staleness == 1 else None
        verdict = "" if aim is None else "met" if times >= aim else "SHORT"
        print(
            f"{max_staleness:>13} {figures.steps_per_second:>8.2f} {times:>6.2f} {aim or '':>5} "
            f"{verdict:6} {figures.rollouts_trained:>8} {figures.last_reward:>11.3f} "
            f"{figures.staleness:>9.2f} {figures.overlap_share:>7.2f}"
        )
        rows.append(
            {
                "max_staleness": max_staleness,
                "steps_per_second": figures.steps_per_second,
                "times_synchronous": times,
                "aim": aim,
                "rollouts_trained": figures.rollouts_trained,
                "last_reward": figures.last_reward,
                "staleness_mean": figures.staleness,
                "overlap_share": figures.overlap_share,
            }
        )
    if given.json:
        facts = {"steps": given.steps, "cost_seconds": given.cost, "seed": given.seed}
        given.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
