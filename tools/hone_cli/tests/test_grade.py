"""`hone grade` from the outside: files, stored rollouts, results on disk, validation and lint."""

import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hone.common.v1 import identity_pb2, outcome_pb2
from hone.console.v1 import console_pb2
from hone.events.v1 import events_pb2

from hone_cli.grading.results import results_at
from hone_cli.grading.sources import record_of
from hone_cli.plain import plain
from trajectory.convert import rollout_record_to_proto
from trajectory.types import ChatMessage, Role, Task

ANSWER = {"type": "answer", "reference": "{{item.answer}}"}
LENGTH = {
    "type": "multi",
    "graders": [
        {"name": "right", **ANSWER},
        {"name": "plain", "type": "string_check", "operation": "like", "input": "{{sample.output_text}}",
         "reference": "Final Answer", "weight": 0},
    ],
}  # fmt: skip


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def answered(response: str, answer: object = 72, **more: object) -> dict[str, object]:
    return {"prompt": "How many clips?", "answer": answer, "response": response, **more}


@pytest.fixture
def files(suite: Any) -> Any:
    suite.write("g.json", json.dumps(LENGTH))
    rows = [answered("Final Answer: 72"), answered("It is 71."), answered("no idea")]
    suite.write("f.jsonl", lines(*rows))
    return suite


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_of_a_file_are_graded_and_summed_up(files: Any) -> None:
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl") == 0
    assert "3 graded: 3 scored (1 successes), 0 masked, 0 failed" in files.out
    assert "not a success: reasoning 1, format 1" in files.out
    rows = {row["row_id"]: row for row in rows_in(files.folder / "o.jsonl")}
    assert [rows[f"f.jsonl:{i}"]["score"] for i in (1, 2, 3)] == [1.0, 0.0, 0.0]
    assert [reward["name"] for reward in rows["f.jsonl:1"]["rewards"]] == ["right", "plain"]


def test_json_is_the_only_thing_printed(files: Any) -> None:
    assert files.hone("grade", "g.json", "f.jsonl", "--json") == 0
    summary = files.json()["summary"]
    assert summary["score"]["value"] == pytest.approx(1 / 3)
    assert [(r["name"], r["weight"]) for r in summary["rewards"]] == [("right", 1), ("plain", 0)]
    assert files.err == ""


def test_needs_no_suite(files: Any) -> None:
    (files.folder / ".hone" / "endpoints.json").unlink()
    assert files.hone("grade", "g.json", "f.jsonl") == 0


def test_definition_may_come_from_a_run_file(files: Any) -> None:
    spec = {"algorithm": "evaluate", "model": {"path": "m"}, "data": {"eval": "f.jsonl"}}
    files.write("run.yaml", json.dumps({**spec, "grader": LENGTH}))
    assert files.hone("grade", "run.yaml", "f.jsonl") == 0, files.err


def test_byte_order_mark_before_a_definition_is_read_over(files: Any) -> None:
    (files.folder / "g.json").write_text(json.dumps(ANSWER), encoding="utf-8-sig")
    assert files.hone("grade", "g.json", "f.jsonl") == 0, files.err
    (files.folder / "g.json").write_text(json.dumps(ANSWER), encoding="utf-16")
    assert files.hone("grade", "g.json", "f.jsonl") == 2
    assert "g.json: is not UTF-8" in files.err


def test_wrong_definition_names_file_and_field(files: Any) -> None:
    files.write("g.json", json.dumps({"type": "answr", "reference": "1"}))
    assert files.hone("grade", "g.json", "f.jsonl") == 2
    assert "g.json: type:" in files.err and "did you mean 'answer'" in files.err


def test_wrong_row_names_file_line_and_field(files: Any) -> None:
    files.write("f.jsonl", lines(answered("1"), {"prompt": "q", "response": "1"}, {"prompt": "q"}))
    assert files.hone("grade", "g.json", "f.jsonl") == 2
    assert "f.jsonl:2: answer: missing" in files.err
    assert "f.jsonl:3: response: missing" in files.err


def test_results_are_not_overwritten(files: Any) -> None:
    files.write("o.jsonl", "precious\n")
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl") == 2
    assert "--resume" in files.err
    assert (files.folder / "o.jsonl").read_text() == "precious\n"


def test_file_that_another_command_writes_is_left_alone(files: Any) -> None:
    with results_at(files.folder / "o.jsonl", resume=False):
        for more in ((), ("--resume",)):
            assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl", *more) == 2
            assert "another hone grade is writing o.jsonl" in files.err
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl") == 0


@pytest.mark.parametrize(
    ("out", "expected"),
    [("/dev/full", "is no regular file"), (".", "is no regular file"), ("no/o", "cannot write")],
)
def test_place_that_takes_no_results_is_named_before_anything_is_graded(
    files: Any, scores: "Scores", out: str, expected: str
) -> None:
    files.write("g.json", json.dumps(scores.definition))
    assert files.hone("grade", "g.json", "f.jsonl", "--out", out) == 2
    assert (
        f"--out: {expected if expected.startswith('cannot') else f'{out} {expected}'}" in files.err
    )
    assert next(scores.scores) == 0


def test_full_disk_keeps_the_rows_before_and_resume_goes_on(files: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    command = ("grade", "g.json", "f.jsonl", "--out", "o.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert files.hone(*command) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "--out: File too large; o.jsonl keeps the rows before" in files.err
    assert (files.folder / "o.jsonl").stat().st_size == 1000
    assert files.hone(*command, "--resume") == 0, files.err
    assert len(rows_in(files.folder / "o.jsonl")) == 3


def test_resume_goes_on_after_the_last_whole_line(files: Any) -> None:
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl") == 0
    whole = (files.folder / "o.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    (files.folder / "o.jsonl").write_bytes(whole[: first + 40])
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl", "--resume") == 0
    assert "3 graded" in files.out
    again = rows_in(files.folder / "o.jsonl")
    assert sorted(row["row_id"] for row in again) == [f"f.jsonl:{i}" for i in (1, 2, 3)]
    assert (files.folder / "o.jsonl").read_bytes()[:first] == whole[:first]


def test_resume_refuses_rows_that_changed(files: Any) -> None:
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl") == 0
    files.write("f.jsonl", lines(answered("Final Answer: 1")))
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl", "--resume") == 2
    assert "f.jsonl:1 has changed since it was graded" in files.err


def test_resume_refuses_another_grader(files: Any) -> None:
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl") == 0
    files.write("g.json", json.dumps(ANSWER))
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl", "--resume") == 2
    assert "grader version" in files.err


def test_resume_names_the_line_that_is_no_row(files: Any) -> None:
    files.write("o.jsonl", '{"a": 1}\n')
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl", "--resume") == 2
    assert "o.jsonl:1: no graded row" in files.err


def test_grading_faults_are_counted_by_kind_and_graded_again(files: Any) -> None:
    broken = {"type": "multi", "graders": {"right": ANSWER}, "calculate_output": "1 / (right - 1)"}
    files.write("g.json", json.dumps(broken))
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl") == 1
    assert "2 scored" in files.out and "1 failed" in files.out
    assert "failed: grader (formula) 1" in files.out
    assert "grader (formula), for example f.jsonl:1: calculate_output: 1 / (right - 1)" in files.out
    assert files.hone("grade", "g.json", "f.jsonl", "--out", "o.jsonl", "--resume") == 1
    assert "3 graded: 2 scored" in files.out
    assert len(rows_in(files.folder / "o.jsonl")) == 4


def test_cut_off_response_is_out_of_budget(files: Any) -> None:
    files.write("f.jsonl", lines(answered("So we add", finish_reason="length")))
    assert files.hone("grade", "g.json", "f.jsonl", "--errors", "--json") == 0
    assert files.json()["errors"]["counts"]["budget"] == 1


def test_token_counts_are_not_made_up(files: Any) -> None:
    grader = {
        "type": "length",
        "unit": "policy_tokens",
        "target": 5,
        "alpha": 0.1,
        "answer": ANSWER,
    }
    files.write("g.json", json.dumps(grader))
    assert files.hone("grade", "g.json", "f.jsonl") == 2
    assert "f.jsonl:1: the grader counts policy_tokens" in files.err


def test_limit_grades_the_first_rows(files: Any) -> None:
    assert files.hone("grade", "g.json", "f.jsonl", "--limit", "2") == 0
    assert "2 graded" in files.out


def test_limit_does_not_look_at_later_rows(files: Any) -> None:
    files.write("f.jsonl", lines(answered("Final Answer: 72"), {"prompt": "q"}))
    assert files.hone("grade", "g.json", "f.jsonl", "--limit", "1") == 0, files.err


def test_single_task_has_no_interval(files: Any) -> None:
    assert files.hone("grade", "g.json", "f.jsonl", "--limit", "1") == 0
    (row,) = [line for line in files.out.splitlines() if line.startswith("score")]
    assert row.split() == ["score", "1.000", "-", "1", "1"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["grade"], "give GRADER.json and FILE.jsonl, or --run"),
        (["grade", "g.json"], "give GRADER.json and FILE.jsonl"),
        (["grade", "g.json", "f.jsonl", "--resume"], "--resume goes on with the file of --out"),
        (["grade", "g.json", "f.jsonl", "--step", "1"], "go with --run"),
        (["grade", "g.json", "f.jsonl", "--run", "r"], "with --run give no FILE"),
        (["grade", "g.json", "f.jsonl", "--gold", "x"], "--gold goes with --validate"),
        (["grade", "g.json", "f.jsonl", "--hacking"], "give --run RUN_ID"),
        (["grade", "g.json", "f.jsonl", "--validate", "--lint"], "--validate goes with"),
        (["grade", "--run", "r", "--phase", "training"], "found 'training', expected one of"),
        (["grade", "none.json", "f.jsonl"], "cannot read none.json: No such file"),
        (["grade", "f.jsonl", "g.json"], "f.jsonl: found a data file, expected a definition"),
        (["grade", "g.json", "none.jsonl"], "cannot read none.jsonl"),
    ],
)
def test_wrong_options_are_a_sentence(files: Any, arguments: list[str], expected: str) -> None:
    assert files.hone(*arguments) == 2
    assert expected in files.err


def test_lint_names_what_it_found_and_fails(files: Any) -> None:
    rows = [answered(f"Final Answer: {72 - i % 2}", id=i, note="x") for i in range(8)]
    files.write("f.jsonl", lines(*rows))
    assert files.hone("grade", "g.json", "f.jsonl", "--lint", "--json") == 1
    found = {warning["check"]: warning for warning in files.json()["lint"]}
    assert found.keys() == {"two_valued", "unused_field"}
    assert found["two_valued"]["rows"] == ["f.jsonl:2", "f.jsonl:1"]
    assert "note (in 8 of 8 rows)" in found["unused_field"]["text"]


def test_right_answers_that_only_a_held_out_grader_sees_are_named(files: Any) -> None:
    exact = {"type": "string_check", "operation": "eq", "reference": "{{item.answer}}"}
    style = {"type": "string_check", "operation": "like", "reference": "Final", "weight": 0}
    graders = [
        {"name": "reward", **exact},
        {**ANSWER, "weight": 0},
        {"name": "style", **style},
        {"name": "run", "type": "tests", "test": "assert True", "weight": 0},
    ]
    files.write("g.json", json.dumps({"type": "multi", "graders": graders}))
    assert files.hone("grade", "g.json", "f.jsonl", "--lint", "--json") == 1
    (found,) = [w for w in files.json()["lint"] if w["check"] == "uncounted_success"]
    assert found["text"].startswith("answer, which has weight 0, takes 1 of 3 rows for a success")
    assert found["rows"] == ["f.jsonl:1"]


def test_lint_of_a_healthy_grader_is_silent(files: Any) -> None:
    grader = {"type": "length", "unit": "characters", "target": 5, "alpha": 0.01, "answer": ANSWER}
    files.write("g.json", json.dumps(grader))
    files.write("f.jsonl", lines(*(answered("Final Answer: 72" + "." * i) for i in range(6))))
    assert files.hone("grade", "g.json", "f.jsonl", "--lint") == 0, files.out
    assert "nothing to warn of" in files.out


# A grader elsewhere.


class Scores(ThreadingHTTPServer):
    """Answers each question with the next score; a press of Ctrl-C may come with one."""

    # Who asks 256 at once finds room; a connection that is dropped is tried again seconds later.
    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.scores = iter(range(10**6))
        self.press_at = -1
        self.away = False

    @property
    def definition(self) -> dict[str, object]:
        return {"type": "endpoint", "url": f"http://127.0.0.1:{self.server_port}/"}


class Answer(BaseHTTPRequestHandler):
    server: Scores

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.away:
            self.send_error(503)
            return
        index = next(self.server.scores)
        if index == self.server.press_at:
            os.kill(os.getpid(), signal.SIGINT)
        body = json.dumps({"score": index / 1000}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def scores() -> Iterator[Scores]:
    with Scores() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_lint_judges_a_sample_again_and_shows_noise(files: Any, scores: Scores) -> None:
    files.write("g.json", json.dumps(scores.definition))
    assert files.hone("grade", "g.json", "f.jsonl", "--lint", "--json") == 1
    (noise,) = [w for w in files.json()["lint"] if w["check"] == "regrading_noise"]
    assert sorted(noise["rows"]) == ["f.jsonl:1", "f.jsonl:2", "f.jsonl:3"]
    assert "3 of 3" in noise["text"]


@pytest.mark.slow
def test_grader_that_stays_away_is_not_asked_for_every_row(files: Any, scores: Scores) -> None:
    files.write("g.json", json.dumps(scores.definition | {"max_tries": 1}))
    files.write("f.jsonl", lines(*(answered(f"it is {i}") for i in range(200))))
    scores.away = True
    command = ("grade", "g.json", "f.jsonl", "--out", "o.jsonl", "--parallel", "256")
    assert files.hone(*command) == 1
    assert "stopped: the last 32 could not be graded: " in files.err
    scores.away = False
    assert files.hone(*command, "--resume") == 0
    assert "200 scored" in files.out


def test_ctrl_c_keeps_what_was_graded_and_resume_goes_on(files: Any, scores: Scores) -> None:
    files.write("g.json", json.dumps(scores.definition))
    files.write("f.jsonl", lines(*(answered(f"it is {i}") for i in range(9))))
    scores.press_at = 3
    command = ("grade", "g.json", "f.jsonl", "--out", "o.jsonl", "--parallel", "1")
    assert files.hone(*command) == 130
    assert "4 graded" in files.out
    assert "the same command with --resume goes on" in files.err
    assert len(rows_in(files.folder / "o.jsonl")) == 4
    assert files.hone(*command, "--resume") == 0
    rows = rows_in(files.folder / "o.jsonl")
    assert [row["row_id"] for row in rows] == [f"f.jsonl:{i}" for i in range(1, 10)]
    assert next(scores.scores) == 9


# Gold answers.


def validate(files: Any, grader: object, *rows: object, more: tuple[str, ...] = ()) -> int:
    files.write("g.json", json.dumps(grader))
    files.write("t.jsonl", lines(*rows))
    return int(files.hone("grade", "g.json", "t.jsonl", "--validate", "--json", *more))


def task(answer: object, **more: object) -> dict[str, object]:
    return {"prompt": f"q {answer}", "answer": answer, **more}


def test_sound_grader_passes_validation(files: Any) -> None:
    assert validate(files, LENGTH, task(72), task("1/2"), task("28%")) == 0
    assert files.json() == {"num_tasks": 3, "mistakes": [], "complete": True}


def test_validation_looks_at_the_graders_and_not_at_their_guards(files: Any) -> None:
    guarded = {**ANSWER, "guards": {"lucky_guess": {"action": "zero"}}}
    assert validate(files, guarded, task(72, id="a"), task(5, id="b")) == 0


def test_gold_answer_that_is_refused_is_named_with_what_was_found(files: Any) -> None:
    exact = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}"}
    grader = {**exact, "reference": "the answer is {{item.answer}}"}
    assert validate(files, grader, task(72, id="t1"), task(5, id="t2")) == 1
    mistakes = files.json()["mistakes"]
    assert [(m["task_id"], m["check"]) for m in mistakes] == [("t1", "gold"), ("t2", "gold")]
    assert "'72' does not score 1: score 0" in mistakes[0]["text"]
    assert files.hone("grade", "g.json", "t.jsonl", "--validate") == 1
    assert "t.jsonl:2 (t2): gold: the gold answer '5' does not score 1" in files.out
    assert "2 tasks tried: 2 with a mistake (gold 2, empty 0, other 0)" in files.out


def test_grader_that_takes_anything_is_caught_by_empty_and_other_answers(files: Any) -> None:
    grader = {"type": "string_check", "operation": "ne", "input": "{{sample.output_text}}"}
    found = validate(files, {**grader, "reference": "x{{item.answer}}"}, task(1), task(2))
    assert found == 1
    assert [m["check"] for m in files.json()["mistakes"]] == ["empty", "other"] * 2


def test_same_gold_answer_is_no_opposite(files: Any) -> None:
    assert validate(files, ANSWER, task(18, id="a"), task("18.0", id="b")) == 0


def test_another_solution_with_the_same_answer_is_no_opposite(files: Any) -> None:
    rows = [task(7, solution=f"{7 - i} + {i}.\n#### 7", id=i) for i in range(3)]
    assert validate(files, ANSWER, *rows) == 0


def test_solution_goes_before_the_reference(files: Any) -> None:
    rows = [task(7, solution="We add 3 and 4.\n#### 7", id="a"), task(8, solution="#### 9", id="b")]
    assert validate(files, ANSWER, *rows) == 1
    assert [(m["task_id"], m["check"]) for m in files.json()["mistakes"]] == [("b", "gold")]


def test_gold_field_may_be_named(files: Any) -> None:
    rows = [{"prompt": "q", "answer": 7, "worked": {"text": "#### 7"}}]
    assert validate(files, ANSWER, *rows, more=("--gold", "worked.text")) == 0
    assert validate(files, ANSWER, *rows, more=("--gold", "worked.txt")) == 2
    assert "worked.txt: missing" in files.err


def test_gold_answer_may_be_messages_with_calls(files: Any) -> None:
    call = {"id": "c", "function": {"name": "calculator", "arguments": {"e": "3+4"}}}
    gold = [
        {"role": "assistant", "tool_calls": [call, {**call, "id": "d"}]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {"role": "assistant", "content": "Final Answer: 7"},
    ]
    grader = {"type": "efficiency", "answer": ANSWER, "penalty": 0.1, "minimum": 1}
    assert validate(files, grader, task(7, gold=gold)) == 1
    assert "score 0.9" in files.json()["mistakes"][0]["text"]


def test_gold_calls_are_what_the_grader_expects(files: Any) -> None:
    grader = {"type": "tool_use", "expected": "{{item.calls}}"}
    rows = [
        {"prompt": "q", "id": "a", "calls": [{"name": "cell", "arguments": {"year": 2013}}]},
        {"prompt": "q", "id": "b", "calls": [{"cell": {"year": [2012, "2012"], "unit": ["", "m"]}}]},
        {"prompt": "q", "id": "c", "calls": ["stop"]},
        {"prompt": "q", "id": "d", "calls": []},
    ]  # fmt: skip
    assert validate(files, grader, *rows) == 0, files.out
    assert validate(files, {**grader, "match": "names"}, *rows) == 1
    assert [m["task_id"] for m in files.json()["mistakes"]] == ["a"]


def test_answer_that_breaks_the_grader_is_told(files: Any) -> None:
    graders = {"right": ANSWER, "wrong": {**ANSWER, "reference": "-1"}}
    grader = {"type": "multi", "graders": graders, "calculate_output": "right / (right + wrong)"}
    assert validate(files, grader, task(1, id="a"), task(2, id="b")) == 1
    checks = [(m["task_id"], m["check"]) for m in files.json()["mistakes"]]
    assert checks == [("a", "empty"), ("a", "other"), ("b", "empty"), ("b", "other")]
    assert "an empty message breaks the grader: could not be graded (formula)" in files.out


def test_task_without_a_gold_answer_is_said(files: Any) -> None:
    assert validate(files, {**ANSWER, "reference": "72"}, {"prompt": "q", "id": "t"}) == 2
    assert "t.jsonl:1: the task has neither gold nor solution" in files.err
    assert "--gold FIELD" in files.err


# Stored rollouts.


def stored(
    suite: Any, index: int, said: str, *, step: int = 0, outcome: str = "scored", keep: bool = True
) -> str:
    rollout_id = f"0198c0de-1234-7abc-8def-{index:012d}"
    slot = identity_pb2.Slot(run_id="r", phase=identity_pb2.PHASE_TRAIN, step=step)
    summary = console_pb2.RolloutSummary(
        rollout_id=rollout_id, slot=slot, task_id=f"t{index}", outcome=outcome
    )
    if outcome == "failed":
        summary.failure_kind = outcome_pb2.FAILURE_KIND_SANDBOX
    suite.console.rollouts[rollout_id] = console_pb2.GetRolloutResponse(summary=summary)
    if keep:
        user = ChatMessage(role=Role.USER, content=("How many?",))
        record = record_of(
            Task(task_id=f"t{index}", messages=(user,), reference={"answer": "72"}),
            (ChatMessage(role=Role.ASSISTANT, content=(said,)),),
            grader_json=json.dumps(ANSWER),
        )
        finished = events_pb2.RolloutFinished(inline=rollout_record_to_proto(record))
        event = events_pb2.Envelope(
            run_id="r", rollout_id=rollout_id, slot=slot, rollout_finished=finished
        )
        suite.console.events.append(event)
    return rollout_id


def test_stored_rollouts_are_graded_by_their_own_definition(suite: Any) -> None:
    for index, said in enumerate(["Final Answer: 72", "Final Answer: 7", "72", "no idea"]):
        stored(suite, index, said, step=index // 2)
    lost = stored(suite, 8, "", outcome="failed", keep=False)
    stored(suite, 9, "", outcome="open", keep=False)
    assert suite.hone("grade", "--run", "r", "--errors", "--json") == 0
    found = suite.json()
    assert found["summary"]["num_rows"] == 5
    assert found["summary"]["failed"] == {"sandbox": 1}
    assert found["errors"]["by_step"]["train 1"]["format"] == 1
    assert found["errors"]["examples"]["infrastructure"] == [lost]


def test_stored_rollouts_are_graded_by_another_definition(suite: Any) -> None:
    stored(suite, 0, "Final Answer: 72")
    suite.write("g.json", json.dumps({**ANSWER, "reference": "5"}))
    assert suite.hone("grade", "--run", "r", "--grader", "g.json", "--out", "o.jsonl") == 0
    assert "not a success: reasoning 1" in suite.out
    assert suite.hone("grade", "--run", "r", "--out", "o.jsonl", "--resume") == 2


def test_reward_that_rises_while_the_held_out_grader_stays_is_an_alarm(suite: Any) -> None:
    said = {"type": "string_check", "operation": "like", "input": "{{sample.output_text}}"}
    graders = [
        {"name": "style", "weight": 1, **said, "reference": "therefore"},
        {"name": "accuracy", "weight": 0, **ANSWER},
    ]
    suite.write("g.json", json.dumps({"type": "multi", "graders": graders}))
    for step in range(6):
        for index in range(8):
            word = "therefore " if index <= step + (index + step) % 2 else ""
            text = f"{word}Final Answer: {72 if (index + step) % 2 else 7}"
            stored(suite, 10 * step + index, text, step=step)
    assert suite.hone("grade", "g.json", "--run", "r", "--hacking", "--json") == 1, suite.err
    (first, *_) = suite.json()["hacking"]["alarms"]
    assert first["held_out"] == "accuracy"
    assert suite.hone("grade", "g.json", "--run", "r", "--hacking") == 1
    assert "ALARM" in suite.out


def test_step_and_phase_are_asked_of_the_archive(suite: Any) -> None:
    stored(suite, 0, "Final Answer: 72")
    assert suite.hone("grade", "--run", "r", "--step", "0", "--phase", "train") == 0
    asked = suite.console.asked[0]
    assert (asked.run_id, asked.step, asked.phase) == ("r", 0, identity_pb2.PHASE_TRAIN)


def test_rollout_whose_record_is_lost_is_a_failure(suite: Any) -> None:
    stored(suite, 0, "Final Answer: 72")
    stored(suite, 1, "", keep=False)
    assert suite.hone("grade", "--run", "r") == 1
    assert "failed: grader (internal) 1" in suite.out


def test_run_without_rollouts_is_said(suite: Any) -> None:
    assert suite.hone("grade", "--run", "nope", "--step", "0") == 2
    assert "no rollouts of step 0 of run nope" in suite.err


def test_record_as_hone_rollout_prints_it_is_graded(suite: Any) -> None:
    stored(suite, 0, "Final Answer: 72")
    record = suite.console.events[0].rollout_finished.inline
    record.start_time.FromDatetime(datetime(2026, 1, 31, tzinfo=UTC))
    suite.write("g.json", json.dumps(ANSWER))
    printed = json.dumps({"summary": {}, "record": plain(record)}, indent=2)
    suite.write("f.jsonl", f"{printed}\n{printed}\n{lines(plain(record))}")
    assert suite.hone("grade", "g.json", "f.jsonl") == 0, suite.err
    assert "3 scored (3 successes)" in suite.out


def test_record_with_a_wrong_field_is_named(suite: Any) -> None:
    suite.write("g.json", json.dumps(ANSWER))
    wrong = {"stop_reason": "finished", "task": {}}
    suite.write("f.jsonl", lines({"record": wrong}))
    assert suite.hone("grade", "g.json", "f.jsonl") == 2
    assert "f.jsonl:1: record.stop_reason: found 'finished', expected one of completed" in suite.err


def test_errors_of_a_run_come_from_the_archive_without_grading(suite: Any) -> None:
    for index, kind in enumerate(("REASONING", "FORMAT", "UNSPECIFIED")):
        rollout_id = stored(suite, index, "", keep=False)
        summary = suite.console.rollouts[rollout_id].summary
        summary.kind = outcome_pb2.OutcomeKind.Value(f"OUTCOME_KIND_{kind}")
    stored(suite, 8, "", outcome="failed", keep=False)
    stored(suite, 9, "", outcome="open", keep=False)
    assert suite.hone("runs", "r", "--errors") == 0
    assert "errors of 4 rollouts" in suite.out
    # People count steps from 1, JSON from 0.
    assert "\ntrain 1 " in suite.out
    assert "accuracy 0.333" in suite.out
    assert "causes of infrastructure errors: sandbox 1" in suite.out
    assert suite.hone("runs", "--errors") == 2
