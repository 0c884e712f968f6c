"""What all cross-service tests share: a tiny model, an example, and a running suite."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite import Suite, running_suite

ANSWER_CALL = (
    '<tool_call>{{"name":"calculator","arguments":{{"expression":"{expression}"}}}}</tool_call>'
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from modelstore.tiny import make_tiny_model

    folder = tmp_path_factory.mktemp("tiny-model") / "model"
    make_tiny_model(folder, seed=0)
    return folder


def scripted_tasks(count: int) -> list[dict[str, Any]]:
    """Sums whose samples differ: right with one call, right with two, wrong, and without an answer."""
    rows = []
    for i in range(count):
        a, b = i + 2, 2 * i + 3
        call = ANSWER_CALL.format(expression=f"{a}+{b}")
        rows.append(
            {
                "id": f"sum-{i}",
                "messages": [{"role": "user", "content": f"What is {a}+{b}?"}],
                "answer": str(a + b),
                "script": [
                    [call, f"Final Answer: {a + b}"],
                    [call, call, f"Final Answer: {a + b}"],
                    [call, f"Final Answer: {a + b + 1}"],
                    ["I do not know."],
                ],
            }
        )
    return rows


RUN = {
    "name": "scripted",
    "algorithm": "grpo",
    "data": {"train": "tasks.jsonl", "eval": "tasks.jsonl"},
    "train": {"max_steps": 3, "batch_size": 3, "group_size": 4, "learning_rate": 0.0001},
    "lora": {"rank": 4},
    "rollout": {"tools": ["calculator"], "max_turns": 4, "max_new_tokens": 64, "timeout": "60s"},
    "grader": {
        "type": "multi",
        "graders": [
            {
                "name": "reward",
                "type": "efficiency",
                "weight": 1,
                "answer": {"type": "answer", "reference": "{{item.answer}}"},
                "penalty": 0.15,
                "minimum": 1,
            },
            {"name": "accuracy", "type": "answer", "reference": "{{item.answer}}", "weight": 0},
        ],
    },
}


def write_job(folder: Path, model: Path, *, tasks: int = 12, **changes: Any) -> Path:
    """Writes run.yaml and tasks.jsonl; `changes` replace or extend top-level keys of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps(row) + "\n" for row in scripted_tasks(tasks))
    (folder / "tasks.jsonl").write_text(rows)
    run: dict[str, Any] = {**RUN, "model": {"path": str(model)}}
    for key, value in changes.items():
        old = run.get(key)
        run[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def scripted_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("suite")
    with running_suite(folder, "--engine", "scripted") as suite:
        yield suite
