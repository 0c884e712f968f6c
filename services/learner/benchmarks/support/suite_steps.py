"""Whole steps through the running suite, in turn with whole steps of TRL."""

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from hone_cli.demo.suite import DemoSuite

from .sides import Side

WORDS = (
    "river",
    "stone",
    "garden",
    "winter",
    "letter",
    "music",
    "bridge",
    "window",
    "forest",
    "engine",
)
ASKED = "Tell a long story about"


def suite_steps(
    folder: Path,
    command: Sequence[str],
    *,
    model: Path,
    prompt_tokens: int,
    completion_tokens: int,
    threads: int,
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Returns figures by side.

    A run of two steps gives one figure: from the end of the first step, when version 1 was published, to the
    end of the second, when version 2 was.
    """
    folder.mkdir(parents=True)
    prompts = _prompts(model, prompt_tokens)
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    (folder / "run.yaml").write_text(json.dumps(_run(model, completion_tokens)), encoding="utf-8")
    walls = []
    name = "TRL, 8 rows"
    with (
        _suite(folder) as suite,
        Side(name, [*command, "--prompts", str(file)], threads) as side,
    ):
        side.step()
        for number in range(rounds):
            walls.append(_second_step(suite, number))
            side.step()
        theirs = side.figures()
    return {"Hone": {"wall": statistics.median(walls), "walls": walls}, name: theirs}


@contextmanager
def _suite(folder: Path) -> Iterator[DemoSuite]:
    """Starts the suite on ports of its own, so that it may run beside another, and stops it in the end."""
    suite = DemoSuite(folder)
    suite.show(
        "up", "--detach", "--first-port", str(random.SystemRandom().randrange(20_000, 45_000, 50))
    )
    try:
        yield suite
    finally:
        suite.show("down")


def _second_step(suite: DemoSuite, number: int) -> float:
    run_id = suite.run(f"run {number}", "train", "run.yaml", f"seed={number}")
    steps = suite.ask("runs", run_id)["steps"]
    first, second = (datetime.fromisoformat(step["end_time"]) for step in steps)
    assert all(step["metrics"]["updates"] == 1.0 for step in steps), "a step had nothing to learn"
    return (second - first).total_seconds()


def _prompts(model: Path, prompt_tokens: int) -> list[dict[str, Any]]:
    """Makes eight tasks whose rendered prompts are about `prompt_tokens` long and whose answers do not end early."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    rng = random.Random(0)
    rows = []
    for index in range(8):
        text = ASKED
        messages = [{"role": "user", "content": text}]
        while len(_ids(tokenizer, messages)) < prompt_tokens:
            text += f" a {rng.choice(WORDS)},"
            messages = [{"role": "user", "content": text}]
        rows.append({"id": f"story-{index}", "messages": messages, "answer": "the old river stone"})
    return rows


def _ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    )


def _run(model: Path, completion_tokens: int) -> dict[str, Any]:
    return {
        "name": "whole-steps",
        "algorithm": "grpo",
        "model": {"path": str(model)},
        "lora": {"rank": 16},
        "data": {"train": "tasks.jsonl"},
        "train": {"max_steps": 2, "batch_size": 8, "group_size": 8, "learning_rate": 1e-5},
        "rollout": {"max_turns": 1, "max_new_tokens": completion_tokens, "temperature": 1.0},
        "grader": {
            "name": "alike",
            "type": "text_similarity",
            "input": "{{sample.output_text}}",
            "reference": "{{item.answer}}",
            "evaluation_metric": "fuzzy_match",
        },
    }
