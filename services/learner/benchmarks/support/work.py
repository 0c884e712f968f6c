"""The work that both sides do, and how a side takes orders and answers. Read by both interpreters.

A side is a process that says {"ready": ...} on its standard output, then takes one step for every line on its standard
input and answers with a line of JSON: {"wall": s, "cpu": s, ...}; at the end of the input it tells its peak of memory.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

GROUPS, GROUP_SIZE = 8, 8
FIRST_ID, LAST_ID = 1000, 40_000
"""Ordinary tokens of SmolLM2."""
LEARNING_RATE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Rollouts that are given: 8 prompts, 8 completions of each, and what each of these earned."""

    prompts: list[list[int]]
    completions: list[list[list[int]]]
    rewards: list[list[float]]


def rollouts(prompt_tokens: int, completion_tokens: int, step: int) -> Rollouts:
    """Makes the rollouts of one step, the same for both sides. Groups share nothing with each other."""
    rng = random.Random(step)

    def ids(count: int) -> list[int]:
        return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(count)]

    prompts = [ids(prompt_tokens) for _ in range(GROUPS)]
    completions = [[ids(completion_tokens) for _ in range(GROUP_SIZE)] for _ in range(GROUPS)]
    rewards = [[float(rng.random() < 0.5) for _ in range(GROUP_SIZE)] for _ in range(GROUPS)]
    for group in rewards:
        # Every group teaches: a silent one would be no work for Hone.
        group[0], group[1] = 1.0, 0.0
    return Rollouts(prompts=prompts, completions=completions, rewards=rewards)


class Meter:
    """Wall time and time of this process, from its making on."""

    def __init__(self) -> None:
        """Begins."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Returns the seconds since."""
        return {
            "wall": time.perf_counter() - self._wall,
            "cpu": time.process_time() - self._cpu,
        }


class Orders:
    """The pipe to the benchmark; whatever else is printed goes to standard error."""

    def __init__(self) -> None:
        """Takes standard output for the answers alone."""
        self._out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def tell(self, **figures: object) -> None:
        """Answers."""
        self._out.write(json.dumps(figures) + "\n")
        self._out.flush()

    def __iter__(self) -> Iterator[int]:
        """Gives a number for every order."""
        for number, _ in enumerate(sys.stdin):
            yield number


def peak_bytes() -> int:
    """Returns the most memory that this process ever held (VmHWM of Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")
