"""`make demo`: trains a real agent in at most twelve minutes on two cores and shows what it learned."""

import random
import sys
import time
from pathlib import Path

from hone_cli.demo.measure import LostRolloutsError, Measured, by_task, unreadable_note
from hone_cli.demo.pipeline import GRPO_STEPS, SeedJob, figures
from hone_cli.demo.statistics import paired_difference
from hone_cli.demo.suite import CommandFailed, DemoSuite, demo_suite, stop_on_sigterm
from hone_cli.demo.table import comparison

FOLDER = Path(".hone/demo")
SEED = 0
EVAL_TASKS = 120
MINIMUM_CALLS = 1.0
"""One call can hold the whole expression of every task."""


def main() -> int:
    """Runs the demo; returns the exit code."""
    began = time.monotonic()
    stop_on_sigterm()
    try:
        with demo_suite(FOLDER.absolute()) as suite:
            _demo(suite)
            _print_times(suite, time.monotonic() - began)
    except CommandFailed as failed:
        print(f"the demo stopped: {failed}", file=sys.stderr)
        return failed.code
    except LostRolloutsError as lost:
        print(f"the demo stopped: {lost}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            'the demo was interrupted; to go on with its run: export PATH="$PWD/.venv/bin:$PATH" && '
            f"cd {FOLDER} && hone up --detach && hone runs && hone train --resume RUN_ID",
            file=sys.stderr,
        )
        return 130
    return 0


def _demo(suite: DemoSuite) -> None:
    job = SeedJob(suite, SEED, (f"eval.max_tasks={EVAL_TASKS}",))
    warmed = job.warm_up()
    before = job.measure("after the warm-up", warmed)
    learned = job.learn(warmed, steps_before=0)
    after = job.measure(f"after {GRPO_STEPS} steps of GRPO", learned)
    print("\n== checking the event log of every run")
    job.audit()
    _print_result(before, after)
    rows = suite.rollouts(learned)
    example = next((row for row in reversed(rows) if not row["kind"]), rows[-1])["rollout_id"]
    print(f"\n== one rollout from request to weight update: hone rollout {example}\n")
    suite.show("rollout", example)
    print(
        f'\n== look further: export PATH="$PWD/.venv/bin:$PATH" && cd {FOLDER} && hone up\n'
        f"   hone rollout --run {learned}      every rollout that was trained on\n"
        "   the page and the traces are where `hone up` says"
    )


def _print_result(before: list[Measured], after: list[Measured]) -> None:
    tasks = len(by_task(before, "reward"))
    print(f"\n== what it learned, on {tasks} held-out tasks, with 95 % intervals over tasks\n")
    columns = [
        ("after SFT", figures(before, SEED)),
        (f"after {GRPO_STEPS} GRPO steps", figures(after, SEED)),
    ]
    print(comparison(columns, minimum_calls=MINIMUM_CALLS))
    for name, rollouts in ((columns[0][0], before), (columns[1][0], after)):
        if note := unreadable_note(rollouts):
            print(f"{name}: {note}")
    gain = paired_difference(
        by_task(before, "reward"), by_task(after, "reward"), random.Random(f"hone-demo/{SEED}")
    )
    print(
        f"\nreward gained on the same tasks: {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    )


def _print_times(suite: DemoSuite, total: float) -> None:
    print("\n== time")
    for phase, seconds in suite.seconds.items():
        print(f"{seconds:8.1f} s  {phase}")
    print(f"{total:8.1f} s  in all")


if __name__ == "__main__":
    sys.exit(main())
