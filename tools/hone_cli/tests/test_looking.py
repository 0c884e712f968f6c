import json
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hone.common.v1 import identity_pb2, message_pb2, outcome_pb2, run_spec_pb2, token_record_pb2
from hone.console.v1 import console_pb2
from hone.events.v1 import events_pb2
from hone.learner.v1 import learner_pb2

from hone_cli.waterfall import SpanLine, tree, verdict, waterfall

ROLLOUT_ID = "0198c0de-1234-7abc-8def-0123456789ab"
TRACE_ID = ROLLOUT_ID.replace("-", "")


def span(span_id: str, parent: str, name: str, start: float, seconds: float) -> console_pb2.Span:
    begin = Timestamp()
    begin.FromNanoseconds(int((1_700_000_000 + start) * 1e9))
    length = Duration()
    length.FromNanoseconds(int(seconds * 1e9))
    return console_pb2.Span(
        trace_id=TRACE_ID,
        span_id=span_id,
        parent_span_id=parent,
        service_name=name.split(" ")[0].split(".")[0],
        name=name,
        start_time=begin,
        duration=length,
        status="ok",
    )


def whole_rollout() -> console_pb2.GetRolloutResponse:
    call = message_pb2.ToolCall(
        tool_call_id="c1", name="calculator", arguments_json='{"expression": "2+3"}'
    )
    text = message_pb2.ContentPart
    messages = [
        message_pb2.ChatMessage(role="ROLE_USER", parts=[text(text="What is 2 + 3?")]),
        message_pb2.ChatMessage(role="ROLE_ASSISTANT", tool_calls=[call]),
        message_pb2.ChatMessage(
            role="ROLE_TOOL", tool_call_id="c1", name="calculator", parts=[text(text="5")]
        ),
        message_pb2.ChatMessage(role="ROLE_ASSISTANT", parts=[text(text="It is \x1b[31m5")]),
    ]
    record = events_pb2.RolloutRecord(
        messages=messages,
        tokens=token_record_pb2.TokenRecord(
            rows=[
                token_record_pb2.TokenRow(
                    token_ids=[1, 2, 3], loss_mask=[False, True, True], logprobs=[0, -0.5, -0.1]
                )
            ],
            sampling={"temperature": 1.0},
        ),
        stop_reason="STOP_REASON_COMPLETED",
        turns=[
            events_pb2.TurnRecord(
                turn=0,
                policy_version=3,
                prompt_token_count=41,
                sampled_token_count=17,
                tool_calls=[events_pb2.ToolCallRecord(call=call, result="5")],
            )
        ],
    )
    reward = outcome_pb2.Reward(
        name="right", value=1, weight=1, grader_name="answer", grader_version="v1"
    )
    return console_pb2.GetRolloutResponse(
        summary=console_pb2.RolloutSummary(
            rollout_id=ROLLOUT_ID,
            slot=identity_pb2.Slot(
                run_id="tiny-1", phase=identity_pb2.PHASE_TRAIN, step=1, group_index=2
            ),
            task_id="t7",
            outcome="scored",
            score=1.0,
            turn_count=2,
            tool_call_count=1,
            sampled_token_count=2,
            policy_version=3,
            duration=Duration(seconds=2),
        ),
        record=record,
        reward_assigned=events_pb2.RewardAssigned(
            scored=outcome_pb2.Scored(rewards=[reward], score=1.0), grader_version="v1"
        ),
        spans=[
            span("a1", "", "request rollout", 0, 0.01),
            span("b1", "a1", "rollout.run", 0.1, 2.0),
            span("c1", "b1", "grader.grade", 2.1, 0.2),
            span("d1", "a1", "learner.train", 60.0, 3.0),
        ],
        trained_in_step=1,
    )


def test_rollout_is_shown_whole(suite: Any) -> None:
    suite.console.rollouts[ROLLOUT_ID] = whole_rollout()
    assert suite.hone("rollout", ROLLOUT_ID) == 0
    for part in (
        "run             tiny-1, slot train/1/2/0",
        "policy version  3",
        "trained in step 2",
        "What is 2 + 3?",
        'calls calculator({"expression": "2+3"})  id c1',
        "tool (calculator) answers c1",
        "It is \\x1b[31m5",
        "3 tokens in 1 training row, 2 sampled by the policy at temperature 1; stopped: completed",
        "answer@v1",
        f"all 4 spans share trace id {TRACE_ID}; no span lacks its parent",
    ):
        assert part in suite.out, part
    assert "\x1b" not in suite.out
    names = [line.strip().split("  ")[0] for line in suite.out.splitlines() if "|" in line]
    assert names == ["request rollout", "rollout.run", "grader.grade", "learner.train"]


def test_what_guards_flagged_is_shown(suite: Any) -> None:
    reply = whole_rollout()
    scored = reply.reward_assigned.scored
    scored.flags.add(name="lucky_guess", detail="no \x1b[31mworking", priced=True)
    scored.errors.add(name="style", detail="the judge was away")
    scored.abstained.append("taste")
    suite.console.rollouts[ROLLOUT_ID] = reply
    assert suite.hone("rollout", ROLLOUT_ID) == 0
    for part in (
        "flagged lucky_guess, in the score: no \\x1b[31mworking",
        "style could not be measured: the judge was away",
        "without an opinion: taste",
    ):
        assert part in suite.out, part


def test_trace_id_without_dashes_will_do(suite: Any) -> None:
    suite.console.rollouts[ROLLOUT_ID] = whole_rollout()
    assert suite.hone("rollout", TRACE_ID, "--json") == 0
    found = suite.json()
    assert found["summary"]["policy_version"] == 3
    assert found["summary"]["slot"]["phase"] == "train"
    assert found["trace"] == {"trace_id": TRACE_ID, "problems": []}


def test_missing_parent_is_flagged(suite: Any) -> None:
    reply = whole_rollout()
    del reply.spans[1]
    suite.console.rollouts[ROLLOUT_ID] = reply
    assert suite.hone("rollout", ROLLOUT_ID) == 0
    assert "1 spans have a missing parent: grader.grade (c1)" in suite.out
    assert "[parent missing]" in suite.out


def test_failed_rollout_shows_its_failure(suite: Any) -> None:
    reply = console_pb2.GetRolloutResponse(
        summary=console_pb2.RolloutSummary(rollout_id=ROLLOUT_ID, outcome="failed"),
        failure=outcome_pb2.Failure(
            kind=outcome_pb2.FAILURE_KIND_SANDBOX,
            retryable=True,
            attributable=outcome_pb2.ATTRIBUTION_INFRA,
            detail="no room",
        ),
    )
    suite.console.rollouts[ROLLOUT_ID] = reply
    assert suite.hone("rollout", ROLLOUT_ID) == 0
    assert "sandbox (infra, retryable): no room" in suite.out
    assert "no record: the rollout did not finish" in suite.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rollout"], "give a ROLLOUT_ID, or --run RUN_ID"),
        (["rollout", "abc"], "'abc' is no rollout_id"),
        (["rollout", ROLLOUT_ID], f"the archive has no rollout {ROLLOUT_ID}"),
        (
            ["rollout", "--run", "r", "--outcome", "lost"],
            "--outcome: found 'lost', expected one of",
        ),
        (["audit", "none"], "the log knows no run none"),
    ],
)
def test_wrong_question_is_exit_code_2(suite: Any, arguments: list[str], message: str) -> None:
    extra = ["--wait", "0"] if arguments[0] == "audit" else []
    assert suite.hone(*arguments, *extra) == 2
    assert suite.err.startswith(f"hone: {message}")


def test_rollouts_of_a_run_are_listed_and_filtered(suite: Any) -> None:
    suite.console.rollouts[ROLLOUT_ID] = whole_rollout()
    arguments = [
        "rollout",
        "--run",
        "tiny-1",
        "--outcome",
        "scored",
        "--phase",
        "train",
        "--step",
        "1",
    ]
    assert suite.hone(*arguments) == 0
    assert ROLLOUT_ID in suite.out and "train/1/2/0" in suite.out
    (request,) = suite.console.asked
    assert (request.outcome, request.phase, request.step) == (
        "scored",
        identity_pb2.PHASE_TRAIN,
        1,
    )
    assert suite.hone("rollout", "--run", "tiny-1", "--json") == 0
    assert len(suite.json()["rollouts"]) == 1
    assert not suite.console.asked[1].HasField("step")


def test_audit_waits_for_the_end_and_is_clean(suite: Any) -> None:
    suite.console.summaries = [console_pb2.RunSummary(run_id="tiny-1")]
    suite.console.ends_after = 2
    assert suite.hone("audit", "tiny-1") == 0
    assert "checked up to event 812: attempts 66, slots 64" in suite.out
    assert "clean: every invariant holds" in suite.out


def test_audit_with_findings_is_exit_code_1(suite: Any) -> None:
    suite.console.summaries = [console_pb2.RunSummary(run_id="tiny-1")]
    suite.console.findings = [
        console_pb2.AuditFinding(
            rule="slot_without_outcome", detail="slot train/1/2/0", rollout_ids=[ROLLOUT_ID]
        )
    ]
    assert suite.hone("audit", "tiny-1") == 1
    assert "slot_without_outcome: slot train/1/2/0" in suite.out
    assert suite.hone("audit", "tiny-1", "--json") == 1
    assert suite.json()["findings"][0]["rule"] == "slot_without_outcome"


def test_audit_of_a_run_that_goes_on_says_so(suite: Any) -> None:
    suite.console.summaries = [console_pb2.RunSummary(run_id="tiny-1")]
    suite.console.ends_after = 99
    assert suite.hone("audit", "tiny-1", "--wait", "0") == 0
    assert "this is the log so far" in suite.out


def test_runs_are_listed_over_pages(suite: Any) -> None:
    for number in range(5):
        run_id = f"tiny-{number}"
        suite.learner.runs[run_id] = learner_pb2.Run(
            run_id=run_id,
            spec=run_spec_pb2.RunSpec(algorithm="grpo", train={"max_steps": 10}),
            state=learner_pb2.RUN_STATE_COMPLETED,
            step=10,
            metrics={"eval/reward/mean": 0.9},
        )
    assert suite.hone("runs") == 0
    assert [line.split()[0] for line in suite.out.splitlines()[1:]] == list(suite.learner.runs)
    assert "10/10" in suite.out
    assert suite.hone("runs", "--json", "--limit", "3") == 0
    assert len(suite.json()["runs"]) == 3


def test_one_run_is_shown_with_steps_and_counts(suite: Any) -> None:
    suite.learner.runs["tiny-1"] = learner_pb2.Run(
        run_id="tiny-1", state=learner_pb2.RUN_STATE_RUNNING
    )
    suite.learner.script = [
        learner_pb2.WatchRunResponse(
            step=learner_pb2.StepReport(step=0, metrics={"reward/mean": 0.5})
        )
    ]
    suite.console.summaries = [console_pb2.RunSummary(run_id="tiny-1", rollouts_scored_count=8)]
    assert suite.hone("runs", "tiny-1") == 0
    assert "polluted" not in suite.out  # no environment was shared
    assert "state           running" in suite.out
    assert "8 scored, 0 masked, 0 failed" in suite.out
    suite.learner.script[0].step.metrics["rollouts/polluted_share"] = 0.25
    assert suite.hone("runs", "tiny-1") == 0
    heading, row = suite.out.splitlines()[-2:]
    assert (heading.split(), row.split()[-1]) == (["step", "reward", "polluted"], "0.25")
    assert suite.hone("runs", "tiny-2") == 2
    assert suite.err == "hone: there is no run tiny-2; did you mean tiny-1?\n"


def test_a_run_with_a_measured_number_type_shows_it_and_why(suite: Any) -> None:
    run = learner_pb2.Run(run_id="tiny-1", state=learner_pb2.RUN_STATE_RUNNING)
    suite.learner.runs["tiny-1"] = run
    assert suite.hone("runs", "tiny-1") == 0
    assert "dtype" not in suite.out
    run.spec.model.dtype = "auto"
    assert suite.hone("runs", "tiny-1") == 0
    assert "dtype           auto: not measured yet" in suite.out
    run.dtype_choice.dtype, run.dtype_choice.reason = "bfloat16", "2 s against 3 s"
    run.dtype_choice.float32_seconds, run.dtype_choice.bfloat16_seconds = 3.0, 2.0
    assert suite.hone("runs", "tiny-1") == 0
    assert "dtype           auto: bfloat16 (2 s against 3 s)" in suite.out
    assert suite.hone("runs", "tiny-1", "--json") == 0
    told = suite.json()["run"]["dtype_choice"]
    assert (told["dtype"], told["float32_seconds"], told["bfloat16_seconds"]) == ("bfloat16", 3, 2)


def test_a_run_is_stopped_by_its_id(suite: Any) -> None:
    suite.learner.runs["tiny-1"] = learner_pb2.Run(
        run_id="tiny-1", state=learner_pb2.RUN_STATE_STOPPED, step=4
    )
    assert suite.hone("stop", "tiny-2") == 2
    assert "did you mean tiny-1?" in suite.err
    assert not suite.learner.stop_asked.is_set()
    assert suite.hone("stop", "tiny-1") == 0
    assert suite.learner.stop_asked.is_set()
    assert suite.out == "run tiny-1 is stopped at step 4\n"


def line(span_id: str, parent: str, start: float = 0.0) -> SpanLine:
    return SpanLine(
        trace_id="t",
        span_id=span_id,
        parent_id=parent,
        service="s",
        name=span_id,
        start=start,
        seconds=1.0,
    )


def test_tree_follows_parents_and_time() -> None:
    spans = [line("c", "a", 2), line("b", "a", 1), line("a", ""), line("d", "b", 5)]
    assert [(row.line.span_id, row.depth) for row in tree(spans)] == [
        ("a", 0),
        ("b", 1),
        ("d", 2),
        ("c", 1),
    ]
    assert verdict(spans, "t") == []


def test_verdict_finds_foreign_ids_orphans_second_roots_and_cycles() -> None:
    spans = [line("a", ""), line("b", "x"), line("c", ""), line("d", "e"), line("e", "d")]
    problems = verdict(spans, "u")
    assert problems[0].startswith("5 spans have another trace id: a (a), b (b)")
    assert problems[1] == "1 spans have a missing parent: b (b)"
    assert problems[2] == "2 spans have no parent, expected one: a (a), c (c)"
    assert problems[3] == "2 spans are their own ancestors: d (d), e (e)"


def test_waterfall_of_no_length_has_bars() -> None:
    only = SpanLine(
        trace_id="t", span_id="a", parent_id="", service="s", name="n", start=1.0, seconds=0.0
    )
    assert "#" in waterfall([only])[0][0]
    assert waterfall([]) == []


def test_json_of_a_run_is_valid(suite: Any) -> None:
    suite.learner.runs["tiny-1"] = learner_pb2.Run(run_id="tiny-1", policy_version=7)
    assert suite.hone("runs", "tiny-1", "--json") == 0
    assert json.loads(suite.out)["run"]["policy_version"] == 7
