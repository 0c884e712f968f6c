"""A run that demands agreement of people: refused below the minimum, before anything is uploaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from hone.learner.v1 import learner_pb2

RUN = """\
algorithm: grpo
name: tiny
model:
  path: ./no-model
data:
  train: tasks.jsonl
  eval: tasks.jsonl
train:
  max_steps: 2
grader:
  type: answer
  name: right
  reference: "{{item.answer}}"
agreement:
  labels: labels.csv
  minimum: 0.6
"""


@pytest.fixture
def run_file(suite: Any) -> Path:
    rows = [
        {"id": f"t{i}", "messages": [{"role": "user", "content": "?"}], "answer": i}
        for i in range(60)
    ]
    suite.write("tasks.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return suite.write("run.yaml", RUN)


def _labels(suite: Any, wrong_every: int, judge: bool = False) -> None:
    """People say i mod 2, the second errs on every so many items; a judge always says 1."""
    head = "id,anna,ben,gpt\n" if judge else "id,anna,ben\n"
    rows = [
        f"{i},{i % 2},{i % 2 if i % wrong_every else 1 - i % 2}" + (",1" if judge else "")
        for i in range(60)
    ]
    suite.write("labels.csv", head + "\n".join(rows) + "\n")


def test_run_starts_where_the_minimum_is_met(suite: Any, run_file: Path) -> None:
    _labels(suite, 20)
    assert suite.hone("train", "run.yaml", "--dry-run") == 0
    assert "# agreement: anna ~ ben has kappa 0.900 [0." in suite.out
    assert "over 60 items, the lowest of 1; the minimum of 0.6 is met" in suite.out
    assert suite.hone("train", "run.yaml", "--dry-run", "--json") == 0
    assert suite.json()["agreement"].startswith("anna ~ ben has kappa 0.900")
    suite.learner.script = [
        learner_pb2.WatchRunResponse(
            ended=learner_pb2.Run(run_id="tiny-1", state=learner_pb2.RUN_STATE_COMPLETED)
        )
    ]
    assert suite.hone("train", "run.yaml") == 0
    assert suite.learner.started[0].agreement.minimum == 0.6


@pytest.mark.parametrize("verb", ["train", "evaluate"])
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_run_below_the_minimum_is_refused_before_anything_is_sent(
    suite: Any, run_file: Path, verb: str, dry_run: tuple[str, ...]
) -> None:
    _labels(suite, 5)
    assert suite.hone(verb, "run.yaml", *dry_run) == 1
    assert suite.err.startswith(
        "hone: run.yaml:16: agreement.minimum: labels.csv: anna ~ ben has kappa 0.600 [0."
    )
    assert "the lower end of the interval is below the minimum of 0.6" in suite.err
    assert "nothing was started; `hone kappa labels.csv` shows all figures" in suite.err
    assert suite.learner.uploads == {} and suite.learner.started == []
    assert suite.hone(verb, "run.yaml", *dry_run, "agreement.minimum=0.9") == 1
    assert "override 'agreement.minimum=0.9': agreement.minimum: labels.csv: " in suite.err


def test_judge_is_held_against_people_and_undefined_never_passes(
    suite: Any, run_file: Path
) -> None:
    _labels(suite, 10, judge=True)
    assert suite.hone("train", "run.yaml", "--dry-run", "agreement.judges=[gpt]") == 1
    assert "gpt ~ majority has kappa 0.000" in suite.err
    suite.write("labels.csv", "id,anna,ben\n" + "".join(f"{i},1,1\n" for i in range(60)))
    assert suite.hone("train", "run.yaml", "--dry-run", "agreement.minimum=0") == 1
    assert "undefined kappa (both always say '1') over 60 items" in suite.err


def test_warnings_of_the_labels_are_part_of_the_dry_run(suite: Any, run_file: Path) -> None:
    suite.write(
        "labels.csv", "id,anna,ben\n" + "".join(f"{i},{i % 2},{i % 2}\n" for i in range(21))
    )
    assert suite.hone("train", "run.yaml", "--dry-run") == 0
    assert "# warning: agreement: fewer than 30 items" in suite.out


@pytest.mark.parametrize(
    ("labels", "overrides", "expected"),
    [
        (None, (), "run.yaml:15: agreement.labels: there is no file labels.csv"),
        ("id,anna\n1,x\n", (), "raters: found only 'anna', expected at least two raters"),
        ("id,anna,ben\n1,x\n", (), "labels.csv:2: found 2 fields, expected 3"),
        ("id,anna,ben\n1,x,y\n", ("agreement.raters=[ana, ben]",), "no column 'ana'; did you mean anna"),
        ("id,anna,ben\n1,x,y\n2,z,z\n", ("agreement.weights=linear",),
         "run.yaml:15: agreement.labels: labels.csv: weights: linear needs labels in an order"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_compared_are_bad_input(
    suite: Any, run_file: Path, labels: str | None, overrides: tuple[str, ...], expected: str
) -> None:
    if labels is not None:
        suite.write("labels.csv", labels)
    assert suite.hone("train", "run.yaml", *overrides) == 2
    assert expected in suite.err
    assert suite.learner.started == []
