import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hone.common.v1 import run_spec_pb2
from hone.common.v1.message_pb2 import ToolDefinition
from hone.learner.v1 import learner_pb2
from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc

from servicekit.errors import FailedPrecondition, HoneError, InvalidArgument, NotFound

RUN = """\
algorithm: grpo
name: tiny
model:
  path: ./no-model
data:
  train: tasks.jsonl
  eval: held-out.jsonl
train:
  max_steps: 2
  batch_size: 4
  group_size: 2
grader:
  type: answer
  name: right
  reference: "{{item.answer}}"
"""


def tasks(count: int, start: int = 0) -> str:
    rows = [
        {"id": f"t{i}", "messages": [{"role": "user", "content": f"{i} + 1?"}], "answer": i + 1}
        for i in range(start, start + count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def run_file(suite: Any) -> Path:
    suite.write("tasks.jsonl", tasks(60))
    suite.write("held-out.jsonl", tasks(5, 100))
    return suite.write("run.yaml", RUN)


def step(number: int, **metrics: float) -> learner_pb2.WatchRunResponse:
    figures = {name.replace("__", "/"): value for name, value in metrics.items()}
    return learner_pb2.WatchRunResponse(
        step=learner_pb2.StepReport(step=number, policy_version=number + 1, metrics=figures)
    )


def progress(number: int, stage: str, done: int, total: int) -> learner_pb2.WatchRunResponse:
    return learner_pb2.WatchRunResponse(
        progress=learner_pb2.ProgressReport(
            step=number, stage=stage, done_count=done, total_count=total
        )
    )


def ended(state: int, detail: str = "", steps: int = 2) -> learner_pb2.WatchRunResponse:
    return learner_pb2.WatchRunResponse(
        ended=learner_pb2.Run(
            run_id="tiny-1",
            state=state,  # type: ignore[arg-type]
            step=steps,
            detail=detail,
            create_time=Timestamp(seconds=1_700_000_000),
            end_time=Timestamp(seconds=1_700_000_090),
            metrics={"eval/reward/mean": 0.875},
            output_dir="/data/tiny-1",
        )
    )


def test_train_uploads_starts_and_shows_steps(suite: Any, run_file: Path) -> None:
    suite.learner.script = [
        progress(0, "rolling_out", 2, 8),
        step(0, reward__mean=0.5, kl=0.0),
        progress(1, "training", 1, 4),
        step(1, reward__mean=0.75, kl=0.001),
        ended(learner_pb2.RUN_STATE_COMPLETED),
    ]
    assert suite.hone("train", "run.yaml", "train.learning_rate=1e-5") == 0
    spec = suite.learner.started[0]
    assert spec.train.learning_rate == 1e-5
    assert suite.learner.uploads[spec.train_dataset_id].decode() == tasks(60)
    assert suite.learner.uploads[spec.eval_dataset_id].decode() == tasks(5, 100)
    assert suite.learner.kinds == [learner_pb2.DATASET_KIND_TASKS] * 2
    lines = suite.out.splitlines()
    assert lines[0] == "run tiny-1"
    assert "step 1/2, rolling out 2/8" in suite.out
    assert lines[2].split() == ["step", "reward", "kl"]
    assert lines[3].split() == ["1/2", "0.5", "0"]
    assert lines[5].split() == ["2/2", "0.75", "1.000e-03"] or "0.001" in lines[5]
    assert "run tiny-1 is complete in 1 min 30 s; its files are in /data/tiny-1" in suite.out


def test_outcome_says_how_to_start_from_what_was_trained(suite: Any, run_file: Path) -> None:
    completed = ended(learner_pb2.RUN_STATE_COMPLETED)
    suite.learner.script = [completed]
    assert suite.hone("train", "run.yaml") == 0
    assert "model.adapter=tiny-1" in suite.out
    completed.ended.spec.train.weights = "full"
    assert suite.hone("train", "run.yaml", "train.weights=full") == 0
    assert "model.path=/data/tiny-1/model" in suite.out


def test_json_is_one_object_a_line_and_nothing_else(suite: Any, run_file: Path) -> None:
    suite.learner.script = [step(0, reward__mean=0.5), ended(learner_pb2.RUN_STATE_COMPLETED)]
    assert suite.hone("train", "run.yaml", "--json") == 0
    events = [json.loads(line) for line in suite.out.splitlines()]
    assert [event["event"] for event in events] == ["started", "step", "ended"]
    assert events[1]["policy_version"] == 1
    assert events[2]["run"]["state"] == "completed"


def test_restart_of_the_learner_is_said_once_and_steps_are_not_repeated(
    suite: Any, run_file: Path
) -> None:
    suite.learner.script = [
        step(0, reward__mean=0.5),
        step(1, reward__mean=0.6),
        ended(learner_pb2.RUN_STATE_COMPLETED),
    ]
    suite.learner.break_after = 1
    assert suite.hone("train", "run.yaml") == 0
    assert suite.out.count("went away; waiting for it to come back") == 1
    assert suite.out.count("the learner is back; the run goes on") == 1
    assert suite.out.count("1/2") == 1


def test_ctrl_c_stops_the_run_and_says_how_to_go_on(suite: Any, run_file: Path) -> None:
    suite.learner.script = [
        step(0, reward__mean=0.5),
        "wait for stop",
        ended(learner_pb2.RUN_STATE_STOPPED, "stopped after step 1", steps=1),
    ]
    assert suite.hone("train", "run.yaml") == 130
    assert suite.learner.stop_asked.is_set()
    assert "stopping; an update under way is finished first" in suite.out
    assert suite.err == (
        "stopped after 1 steps, all saved; go on with `hone train --resume tiny-1`\n"
    )


def test_failed_run_is_exit_code_1_with_its_reason(suite: Any, run_file: Path) -> None:
    suite.learner.script = [ended(learner_pb2.RUN_STATE_FAILED, "loss is NaN in step 1")]
    assert suite.hone("train", "run.yaml") == 1
    assert "run tiny-1 failed: loss is NaN in step 1" in suite.err
    assert "--resume tiny-1" in suite.err


def test_resume_needs_only_the_id(suite: Any, run_file: Path) -> None:
    suite.learner.script = [ended(learner_pb2.RUN_STATE_COMPLETED)]
    suite.learner.runs["tiny-1"] = learner_pb2.Run(run_id="tiny-1", step=1)
    assert suite.hone("train", "--resume", "tiny-1") == 0
    assert suite.hone("train", "--resume", "other") == 2
    assert suite.err == "hone: there is no run other\n"
    assert suite.hone("train", "run.yaml", "--resume", "tiny-1") == 2
    assert suite.hone("train") == 2


def test_detach_leaves_the_run_going(suite: Any, run_file: Path) -> None:
    assert suite.hone("train", "run.yaml", "--detach") == 0
    assert "hone runs tiny-1 --watch" in suite.out
    assert suite.hone("train", "run.yaml", "--detach", "--json") == 0
    assert suite.json()["run"]["run_id"] == "tiny-1"


def test_dry_run_prints_the_whole_run_and_starts_nothing(suite: Any, run_file: Path) -> None:
    assert suite.hone("train", "run.yaml", "--dry-run") == 0
    assert "max_turns: 8" in suite.out
    assert "# rollouts: 16" in suite.out
    assert "# grader: rewards right (version v1)" in suite.out
    assert "rollout.tools is empty" in suite.out
    assert suite.learner.started == [] and suite.learner.uploads == {}
    assert suite.hone("train", "run.yaml", "--dry-run", "--json") == 0
    found = suite.json()
    assert found["figures"]["rollouts_per_step"] == 8
    assert found["spec"]["rollout"]["timeout"] == "300s"
    assert found["spec"]["lora"] == {"rank": 16, "alpha": 32.0, "target_modules": []}
    assert suite.hone("train", "run.yaml", "--dry-run", "--json", "model.adapter=run-1") == 0
    assert "lora" not in suite.json()["spec"]
    assert found["estimate"]["rollouts"] == 16
    assert found["estimate"]["tokens"] is None
    assert "no-model' is not a folder" in found["estimate"]["assumptions"][-1]
    assert suite.hone("train", "run.yaml", "--price-per-hour", "2") == 2
    assert suite.err.startswith("hone: prices are for the estimate of --dry-run")


class Gateway(tool_gateway_pb2_grpc.ToolGatewayServiceServicer):
    """Has the tools of these names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def ListTools(self, request: Any, context: Any) -> Any:
        tools = [ToolDefinition(name=name, parameters_json="{}") for name in self.names]
        return tool_gateway_pb2.ListToolsResponse(tools=tools)


def test_dry_run_refuses_tools_that_the_gateway_does_not_have(
    suite: Any, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.write("run.yaml", RUN + "rollout:\n  tools: [calculatr, shell, bash]\n")
    server = grpc.server(ThreadPoolExecutor(1))
    gateway = Gateway("shell", "calculator")
    tool_gateway_pb2_grpc.add_ToolGatewayServiceServicer_to_server(gateway, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("HONE_TOOL_GATEWAY_ADDRESS", f"127.0.0.1:{port}")
    try:
        assert suite.hone("train", "run.yaml", "--dry-run") == 2
        assert suite.err == (
            "hone: run.yaml:17: rollout.tools: 'calculatr' is unknown; the gateway has calculator, shell\n"
            "run.yaml:17: rollout.tools: 'bash' is unknown; the gateway has calculator, shell\n"
        )
        gateway.names = ()
        assert suite.hone("train", "run.yaml", "--dry-run", "rollout.tools=[shell]") == 2
        assert "'shell' is unknown; the gateway has no tool\n" in suite.err
    finally:
        server.stop(0).wait()


def test_dry_run_works_without_a_suite(suite: Any, run_file: Path) -> None:
    (suite.folder / ".hone" / "endpoints.json").unlink()
    assert suite.hone("train", "run.yaml", "--dry-run") == 0
    assert "not checked, as no grader service is running" in suite.out


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max_steps: 2", "max_stps: 2", "run.yaml:9: train.max_stps: unknown key; did you mean"),
        ("tasks.jsonl", "none.jsonl", "run.yaml:6: data.train: there is no file none.jsonl"),
        ("item.answer", "item.reply", "tasks.jsonl:1: reply: missing; the grader reads"),
        ("  name: right\n", "", "run.yaml:12: grader.name: missing"),
        (
            "algorithm: grpo",
            "algorithm: evaluate",
            "run.yaml:1: algorithm: is evaluate; use `hone ",
        ),
    ],
)
def test_bad_input_is_exit_code_2_with_its_place(
    suite: Any, run_file: Path, old: str, new: str, expected: str
) -> None:
    run_file.write_text(RUN.replace(old, new))
    assert suite.hone("train", "run.yaml") == 2
    assert suite.err.startswith(f"hone: {expected}")
    assert "Traceback" not in suite.err
    assert suite.learner.started == []


@pytest.mark.parametrize("refusal", [InvalidArgument, NotFound])
def test_what_the_learner_refuses_is_placed_in_the_file(
    suite: Any, run_file: Path, refusal: type[HoneError]
) -> None:
    suite.learner.refusal = refusal(
        "bad", violations={"train.batch_size": "more than the data set holds"}
    )
    assert suite.hone("train", "run.yaml") == 2
    assert suite.err == "hone: run.yaml:10: train.batch_size: more than the data set holds\n"


def test_model_that_the_learner_cannot_load_is_its_sentence(suite: Any, run_file: Path) -> None:
    suite.learner.refusal = FailedPrecondition("no model in /weights", reason="MODEL_UNUSABLE")
    assert suite.hone("train", "run.yaml") == 1
    assert suite.err == "hone: no model in /weights\n"


def test_learner_that_is_not_there_is_exit_code_3(suite: Any, run_file: Path) -> None:
    assert suite.hone("train", "run.yaml", "--endpoint", "127.0.0.1:1") == 3
    assert suite.err == (
        "hone: cannot reach the learner at 127.0.0.1:1; start the suite with `hone up`\n"
    )
    assert suite.hone("train", "run.yaml", "--endpoint", "nonsense") == 2


def test_evaluate_takes_a_training_file(suite: Any, run_file: Path) -> None:
    suite.learner.script = [ended(learner_pb2.RUN_STATE_COMPLETED)]
    assert suite.hone("evaluate", "run.yaml", "model.adapter=tiny-1") == 0
    (spec,) = suite.learner.started
    assert (spec.algorithm, spec.model.adapter) == ("evaluate", "tiny-1")
    assert spec.train_dataset_id == ""
    assert "eval/reward/mean  0.875" in suite.out


def test_evaluation_of_several_samples_says_which_tasks_can_teach(
    suite: Any, run_file: Path
) -> None:
    end = ended(learner_pb2.RUN_STATE_COMPLETED)
    spec = {"algorithm": "evaluate", "eval": {"samples": 4}, "train": {"group_size": 8}}
    end.ended.spec.MergeFrom(run_spec_pb2.RunSpec(**spec))
    figures = {
        "tasks/measured": 40.0,
        "tasks/too_few_samples": 2.0,
        "tasks/spread_share": 0.25,
        "tasks/always_right_share": 0.25,
        "tasks/always_wrong_share": 0.4,
        "tasks/constant_share": 0.1,
        "pass@1": 0.4,
        "pass@2": 0.5,
        "pass@4": 0.6,
        "reward/best_of_k": 0.5,
        "reward/potential_gain": 0.125,
        "groups/informative_share": 0.2,
    }
    end.ended.metrics.update(figures)
    suite.learner.script = [end]
    assert suite.hone("evaluate", "run.yaml", "eval.samples=4") == 0
    for line in (
        "40 tasks, 4 samples each\n",
        "  with spread 25.0% (95% interval 14.2% to 40.2%)\n",
        "  always right 25.0%, always wrong 40.0%, always the same in between 10.0%\n",
        "  pass@1 0.4, pass@2 0.5, pass@4 0.6\n",
        "  mean reward 0.375, best of 4 0.5; about 20.0% of groups of 8 would teach\n",
        "  left out: 2 tasks with fewer than 2 scored samples\n",
        "  verdict: 25.0% of tasks with spread is a good sign; fewer than 50 tasks make noisy estimates\n",
        "/data/tiny-1/tasks.jsonl   has the scores of each task\n",
    ):
        assert line in suite.out, line
    assert suite.hone("evaluate", "run.yaml", "eval.samples=4", "--json") == 0
    last = json.loads(suite.out.splitlines()[-1])
    assert last["run"]["metrics"]["pass@4"] == 0.6
    assert last["potential"]["spread"]["value"] == 0.25
    assert last["potential"]["pass_at"] == {"1": 0.4, "2": 0.5, "4": 0.6}
    assert last["potential"]["verdict"].startswith("25.0% of tasks with spread is a good sign")
    suite.learner.runs["tiny-1"] = end.ended
    assert suite.hone("runs", "tiny-1", "--json") == 0
    assert suite.json()["potential"] == last["potential"]


def test_sft_uploads_conversations(suite: Any) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    suite.write("rows.jsonl", json.dumps(row) + "\n")
    suite.write("sft.yaml", "algorithm: sft\nmodel: {path: ./m}\ndata: {train: rows.jsonl}\n")
    suite.learner.script = [ended(learner_pb2.RUN_STATE_COMPLETED)]
    assert suite.hone("sft", "sft.yaml") == 0
    assert suite.learner.kinds == [learner_pb2.DATASET_KIND_SFT]
    assert suite.learner.started[0].model.path == str(suite.folder / "m")
    suite.write("rows.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n')
    assert suite.hone("sft", "sft.yaml") == 2
    assert suite.err.startswith("hone: rows.jsonl:1: messages[0].role: ends with user")


def test_rows_of_other_files_are_uploaded_as_lines_and_named_by_file_and_row(
    suite: Any, run_file: Path
) -> None:
    rows = [json.loads(line) for line in tasks(60).splitlines()]
    suite.write("tasks.json", json.dumps(rows, indent=1))
    suite.learner.script = [ended(learner_pb2.RUN_STATE_COMPLETED)]
    assert suite.hone("train", "run.yaml", "data.train=tasks.json") == 0
    spec = suite.learner.started[0]
    assert suite.learner.uploads[spec.train_dataset_id].decode() == tasks(60)
    del rows[7]["answer"]
    suite.write("tasks.json", json.dumps(rows))
    assert suite.hone("train", "run.yaml", "data.train=tasks.json") == 2
    assert suite.err.startswith("hone: tasks.json:8: answer: missing; the grader reads")
    assert suite.hone("train", "run.yaml", "data.train=tasks.json", "data.train_split=a") == 2
    assert "data.train: names the split 'a', but tasks.json is one file" in suite.err


PAIR = {"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}


@pytest.fixture
def pairs_file(suite: Any) -> Path:
    suite.write("pairs.jsonl", (json.dumps(PAIR) + "\n") * 40)
    suite.write("held-out.jsonl", json.dumps(PAIR) + "\n")
    return suite.write(
        "pairs.yaml",
        "algorithm: dpo\nmodel: {path: ./no-model}\n"
        "data: {train: pairs.jsonl, eval: held-out.jsonl}\ntrain: {max_steps: 2}\n",
    )


@pytest.mark.parametrize(("verb", "algorithm"), [("dpo", "dpo"), ("reward-model", "reward_model")])
def test_run_over_pairs_uploads_them_and_shows_margins(
    suite: Any, pairs_file: Path, verb: str, algorithm: str
) -> None:
    suite.learner.script = [
        step(0, loss=0.69, rewards__margins=0.0, eval__rewards__margins=0.0),
        step(1, loss=0.5, rewards__margins=0.25),
        ended(learner_pb2.RUN_STATE_COMPLETED),
    ]
    assert suite.hone(verb, "pairs.yaml", f"algorithm={algorithm}") == 0
    assert suite.learner.kinds == [learner_pb2.DATASET_KIND_PREFERENCES] * 2
    assert suite.learner.started[0].algorithm == algorithm
    lines = [line.split() for line in suite.out.splitlines()]
    assert ["step", "loss", "margin", "eval", "margin"] in lines
    assert ["2/2", "0.5", "0.25", "-"] in lines


def test_dry_run_over_pairs_counts_them_and_starts_nothing(suite: Any, pairs_file: Path) -> None:
    assert suite.hone("dpo", "pairs.yaml", "--dry-run", "--json") == 0
    assert json.loads(suite.out)["figures"] == {
        "train_rows": 40,
        "eval_rows": 1,
        "rows_seen": 32,
        "epochs": 0.8,
    }
    assert json.loads(suite.out)["warnings"] == []
    assert not suite.learner.started


def test_wrong_command_for_pairs_names_the_right_one(suite: Any, pairs_file: Path) -> None:
    assert suite.hone("train", "pairs.yaml") == 2
    assert "is dpo; use `hone dpo` for it" in suite.err
    assert suite.hone("sft", "pairs.yaml", "algorithm=reward_model") == 2
    assert "is reward_model; use `hone reward-model` for it" in suite.err


def test_bad_pair_is_named_by_file_and_line(suite: Any, pairs_file: Path) -> None:
    suite.write("pairs.jsonl", json.dumps(PAIR) + "\n" + json.dumps({**PAIR, "rejected": "2"}))
    assert suite.hone("dpo", "pairs.yaml") == 2
    assert "pairs.jsonl:2: rejected: found the same as chosen" in suite.err


def test_alarms_are_shown_with_their_step_and_an_alarm_that_stopped_the_run_says_what_to_do(
    suite: Any, run_file: Path
) -> None:
    raised = learner_pb2.Alarm(kind="reward_hacking", step=1, detail="reward/mean rose while ...")
    second = step(1, reward__mean=0.75, alarms__reward_hacking=1.0)
    second.step.alarms.append(raised)
    detail = "stopped by an alarm in step 1: reward_hacking: reward/mean rose while ..."
    end = ended(learner_pb2.RUN_STATE_STOPPED, detail)
    end.ended.alarms.append(raised)
    suite.learner.script = [step(0, reward__mean=0.5), second, end]
    assert suite.hone("train", "run.yaml") == 1
    assert "! reward_hacking (step 2): reward/mean rose while ..." in suite.out
    assert "stopped by an alarm" in suite.err
    assert "--rollback tiny-1" in suite.err
    suite.learner.runs["tiny-1"] = end.ended
    assert suite.hone("runs") == 0
    assert "stopped !1" in suite.out
    assert suite.hone("runs", "tiny-1") == 0
    assert suite.out.count("! reward_hacking (step 2)") == 1


def test_off_task_rows_are_checked_and_uploaded_as_sft_rows(suite: Any, run_file: Path) -> None:
    suite.write("general.jsonl", '{"text": "Water boils at 100 degrees."}\n')
    suite.learner.script = [ended(learner_pb2.RUN_STATE_COMPLETED)]
    assert suite.hone("train", "run.yaml", "health.off_task=general.jsonl") == 0, suite.err
    (spec,) = suite.learner.started
    assert spec.health.off_task_dataset_id == "ds_2"
    assert suite.learner.kinds[2] == learner_pb2.DATASET_KIND_SFT
    suite.write("general.jsonl", '{"txt": "x"}\n')
    assert suite.hone("train", "run.yaml", "health.off_task=general.jsonl") == 2
    assert "general.jsonl:1" in suite.err
    assert suite.hone("train", "run.yaml", "health.off_task=missing.jsonl") == 2
    assert "health.off_task: there is no file missing.jsonl" in suite.err
