"""One seed from warm-up to proof: SFT, evaluation, GRPO, evaluation."""

import random
from dataclasses import dataclass, field
from pathlib import Path

from hone_cli.demo.measure import Measured, estimates, measured_from
from hone_cli.demo.statistics import Estimate
from hone_cli.demo.suite import DemoSuite
from hone_cli.examples.wordproblems import write_example

GRPO_STEPS = 10


@dataclass(slots=True, kw_only=True)
class SeedResult:
    """What one seed gave; `after` holds the rollouts measured after so many GRPO steps."""

    seed: int
    before: list[Measured]
    after: dict[int, list[Measured]]
    runs: dict[str, str] = field(default_factory=dict)
    """Phase to run_id."""


class SeedJob:
    """The work of one seed, phase by phase, in a folder of its own below the suite's."""

    def __init__(self, suite: DemoSuite, seed: int, eval_overrides: tuple[str, ...]) -> None:
        """Writes the example of this seed."""
        self._suite = suite
        self._seed = seed
        self._eval_overrides = eval_overrides
        self._name = f"seed-{seed}"
        write_example(suite.folder / self._name, seed)
        self.runs: dict[str, str] = {}

    def warm_up(self) -> str:
        """Imitates traces in two styles; returns the run."""
        return self._run("warm-up by example (SFT)", "sft", "sft.yaml")

    def learn(self, start: str, steps_before: int) -> str:
        """Learns from rewards for GRPO_STEPS more steps; returns the run.

        The second ten steps start from the first ten's weights with a seed of their own, so that they see other tasks.
        """
        last = steps_before + GRPO_STEPS
        return self._run(
            f"learning from rewards (GRPO), to step {last}",
            "train",
            "run.yaml",
            f"model.adapter={start}",
            f"train.max_steps={GRPO_STEPS}",
            f"seed={self._seed + 1000 * steps_before}",
        )

    def measure(self, label: str, adapter: str) -> list[Measured]:
        """Measures weights on the held-out tasks; every measurement draws with the same seeds."""
        run_id = self._run(
            f"measuring {label}",
            "evaluate",
            "evaluate.yaml",
            f"model.adapter={adapter}",
            *self._eval_overrides,
        )
        return measured_from(self._suite.rollouts(run_id))

    def audit(self) -> None:
        """Checks the log of every run of this seed.

        Raises:
            CommandFailed: an invariant does not hold; the findings have been printed.
        """
        for run_id in self.runs.values():
            self._suite.show("audit", run_id)

    def _run(self, phase: str, verb: str, file: str, *overrides: str) -> str:
        path = str(Path(self._name) / file)
        self.runs[phase] = self._suite.run(phase, verb, path, *overrides)
        return self.runs[phase]


def figures(rollouts: list[Measured], seed: int) -> dict[str, Estimate]:
    """Returns the figures of a measurement with intervals, the same for the same seed."""
    return estimates(rollouts, random.Random(f"hone-demo/{seed}"))
