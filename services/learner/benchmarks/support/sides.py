"""Processes of the two sides, and steps that alternate between them."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).parents[4]
FOLDER = Path(__file__).parent
HONE = (sys.executable, str(FOLDER / "hone_side.py"))
TRL = (str(ROOT / ".venv-trl" / "bin" / "python"), str(FOLDER / "trl_side.py"))


@dataclass(slots=True)
class Side:
    """One process, its answers, and what it needs."""

    name: str
    command: Sequence[str]
    threads: int
    warm_up: int = 1
    """Steps that are not counted."""
    answers: list[dict[str, float]] = field(default_factory=list)
    _process: "subprocess.Popen[str] | None" = None
    _errors: IO[str] | None = None

    def __enter__(self) -> Self:
        """Starts it and waits until its model is loaded."""
        self._errors = tempfile.TemporaryFile("w+")
        # Threads that wait sleep, so that the side whose turn it is not takes no time.
        environment = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(self.threads)}
        self._process = subprocess.Popen(
            [*self.command, "--threads", str(self.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **environment},
        )
        self._answer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it."""
        self.end()

    def end(self) -> None:
        """Ends it, and gives its memory to the others; may be repeated."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def step(self) -> None:
        """Lets it take a step."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.answers.append(self._answer())

    def _answer(self) -> dict[str, float]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._errors is not None
            self._errors.seek(0)
            sys.exit(f"{self.name} ended early:\n{self._errors.read()[-3000:]}")
        return dict(json.loads(line))

    def figures(self) -> dict[str, Any]:
        """Returns medians over the steps that count, and the peak of memory."""
        counted = self.answers[self.warm_up :]
        found = {
            name: statistics.median(answer[name] for answer in counted)
            for name in ("wall", "cpu", "tokens")
            if name in counted[0]
        }
        norms = [answer["grad_norm"] for answer in self.answers if "grad_norm" in answer]
        return {**found, "peak": self.answers[-1]["peak"], "grad_norms": norms}


def alternate(
    sides: Mapping[str, Sequence[str]], *, threads: int, rounds: int, warm_up: int = 1
) -> dict[str, dict[str, Any]]:
    """Lets the sides take a step each in turn, and returns figures by side.

    Each lives from its first step to its last, so that sides of one step have the memory to themselves.
    """
    steps = warm_up + rounds
    taking = [Side(name, command, threads, warm_up) for name, command in sides.items()]
    with ExitStack() as stack:
        for number in range(steps):
            for side in taking:
                if number == 0:
                    stack.enter_context(side)
                side.step()
                if number == steps - 1:
                    side.end()
                told = side.answers[-1]
                print(
                    f"   {side.name:28} {told['wall']:7.1f} s wall {told['cpu']:7.1f} s CPU "
                    f"{told['peak'] / 1e9:6.2f} GB",
                    flush=True,
                )
    return {side.name: side.figures() for side in taking}


def difference(left: Path, right: Path) -> float:
    """Returns the length of the difference of two gradients over that of the second."""
    from safetensors.torch import load_file

    def plain(file: Path) -> dict[str, Any]:
        # One side names the adapter, the other the model that holds it.
        return {
            name.replace(".default", "").removeprefix("base_model.model."): value.double()
            for name, value in load_file(file).items()
        }

    ours, theirs = plain(left), plain(right)
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())[:4]
    apart = sum(float(((ours[name] - theirs[name]) ** 2).sum()) for name in theirs)
    return float((apart / sum(float((value**2).sum()) for value in theirs.values())) ** 0.5)
