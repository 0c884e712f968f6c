"""`make proof`: the demo's claim for three seeds together, with every seed's figures."""

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hone_cli.demo.measure import LostRolloutsError, Measured, by_task, unreadable_note
from hone_cli.demo.pipeline import GRPO_STEPS, SeedJob, SeedResult, figures
from hone_cli.demo.statistics import Estimate, mean_of_tasks, pooled_difference
from hone_cli.demo.suite import CommandFailed, DemoSuite, demo_suite, stop_on_sigterm
from hone_cli.demo.table import comparison

FOLDER = Path(".hone/proof")
RESULT = Path("bench-out/proof.json")
SEEDS = (0, 1, 2)
EVAL_TASKS = 200
EVAL_SAMPLES = 2
MINIMUM_CALLS = 1.0

REWARD_GAIN = 0.07
CALLS_CUT = 0.39
NEAR_MINIMUM = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the claim holds for all seeds together."""

    reward_before: float
    reward_after: float
    reward_gain: Estimate
    accuracy_gain: Estimate
    calls_before: float
    calls_after: float

    @property
    def failures(self) -> list[str]:
        """Returns what falls short, in words; empty if the claim holds."""
        found = []
        relative = self.reward_after / self.reward_before - 1 if self.reward_before else 0.0
        if relative < REWARD_GAIN:
            found.append(f"reward rose by {relative:.1%}, less than {REWARD_GAIN:.0%}")
        if self.reward_gain.low <= 0:
            found.append(f"the interval of the reward's gain reaches {self.reward_gain.low:+.3f}")
        if self.accuracy_gain.value < 0:
            found.append(f"accuracy fell by {-self.accuracy_gain.value:.3f}")
        cut = 1 - self.calls_after / self.calls_before if self.calls_before else 0.0
        if cut < CALLS_CUT and self.calls_after > MINIMUM_CALLS * (1 + NEAR_MINIMUM):
            found.append(
                f"tool calls fell by {cut:.1%} to {self.calls_after:.2f}: neither {CALLS_CUT:.0%} "
                f"nor within {NEAR_MINIMUM:.0%} of {MINIMUM_CALLS:g}"
            )
        return found


def judge(results: Sequence[SeedResult]) -> Verdict:
    """Compares after SFT with after the last GRPO step of each seed, tasks of all seeds together."""
    rng = random.Random("hone-proof")

    def pairs(figure: str) -> list[tuple[Mapping[str, list[float]], Mapping[str, list[float]]]]:
        return [(by_task(r.before, figure), by_task(_last(r), figure)) for r in results]

    def means(figure: str) -> tuple[float, float]:
        before = [mean_of_tasks(b) for b, _ in pairs(figure)]
        after = [mean_of_tasks(a) for _, a in pairs(figure)]
        return sum(before) / len(before), sum(after) / len(after)

    reward_before, reward_after = means("reward")
    calls_before, calls_after = means("tool_calls")
    return Verdict(
        reward_before=reward_before,
        reward_after=reward_after,
        reward_gain=pooled_difference(pairs("reward"), rng),
        accuracy_gain=pooled_difference(pairs("right"), rng),
        calls_before=calls_before,
        calls_after=calls_after,
    )


def needs_more(result: SeedResult) -> bool:
    """Says whether a seed's calls are still away from the minimum after the steps so far."""
    calls = mean_of_tasks(by_task(_last(result), "tool_calls"))
    before = mean_of_tasks(by_task(result.before, "tool_calls"))
    return calls > MINIMUM_CALLS * (1 + NEAR_MINIMUM) and calls > before * (1 - CALLS_CUT)


def main() -> int:
    """Runs the proof; returns 0 if the claim holds."""
    began = time.monotonic()
    results: list[SeedResult] = []
    stop_on_sigterm()
    try:
        with demo_suite(FOLDER.absolute()) as suite:
            for seed in SEEDS:
                results.append(_seed(suite, seed))
                _keep(results)
                _print_seed(results[-1])
                print(f"{(time.monotonic() - began) / 60:.1f} minutes so far", flush=True)
    except CommandFailed as failed:
        print(f"the proof stopped: {failed}", file=sys.stderr)
        return failed.code
    except LostRolloutsError as lost:
        print(f"the proof stopped: {lost}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("the proof was interrupted; what is done is in", RESULT, file=sys.stderr)
        return 130
    return _conclude(results, time.monotonic() - began)


def _seed(suite: DemoSuite, seed: int) -> SeedResult:
    print(f"\n==== seed {seed}")
    overrides = (f"eval.max_tasks={EVAL_TASKS}", f"eval.samples={EVAL_SAMPLES}")
    job = SeedJob(suite, seed, overrides)
    at = job.warm_up()
    result = SeedResult(seed=seed, before=job.measure("after the warm-up", at), after={})
    for steps_before in (0, GRPO_STEPS):
        at = job.learn(at, steps_before)
        steps = steps_before + GRPO_STEPS
        result.after[steps] = job.measure(f"after {steps} steps of GRPO", at)
        if not needs_more(result):
            break
    job.audit()
    result.runs = job.runs
    return result


def _last(result: SeedResult) -> list[Measured]:
    return result.after[max(result.after)]


def _print_seed(result: SeedResult) -> None:
    columns = [("after SFT", figures(result.before, result.seed))]
    for steps, rollouts in result.after.items():
        columns.append((f"after {steps} GRPO steps", figures(rollouts, result.seed)))
    print(f"\n== seed {result.seed}, {len(result.before)} rollouts measured each time\n")
    print(comparison(columns, minimum_calls=MINIMUM_CALLS), flush=True)
    for name, rollouts in zip(
        (name for name, _ in columns), (result.before, *result.after.values()), strict=True
    ):
        if note := unreadable_note(rollouts):
            print(f"{name}: {note}", flush=True)


def _keep(results: Sequence[SeedResult]) -> None:
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps([asdict(result) for result in results]), encoding="utf-8")


def _conclude(results: Sequence[SeedResult], seconds: float) -> int:
    verdict = judge(results)
    for result in results:
        _print_seed(result)
    gain, right = verdict.reward_gain, verdict.accuracy_gain
    print(
        f"\n== all seeds together\n"
        f"reward      {verdict.reward_before:.3f} -> {verdict.reward_after:.3f} "
        f"({verdict.reward_after / max(verdict.reward_before, 1e-9) - 1:+.1%}), "
        f"gain {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]\n"
        f"accuracy    gain {right.value:+.3f} [{right.low:+.3f}, {right.high:+.3f}]\n"
        f"tool calls  {verdict.calls_before:.2f} -> {verdict.calls_after:.2f} "
        f"({verdict.calls_after / max(verdict.calls_before, 1e-9) - 1:+.1%}), "
        f"minimum {MINIMUM_CALLS:.2f}\n"
        f"{seconds / 60:.1f} minutes; every rollout is in {RESULT}"
    )
    if verdict.failures:
        print("the claim does NOT hold: " + "; ".join(verdict.failures))
        return 1
    print("the claim holds: reward up, accuracy not lower, tool calls down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
