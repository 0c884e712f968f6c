"""Comparing runs: what differs, at the same steps, and held-out reward task by task."""

import json
import math
import random
from typing import Any

import pytest
from hone.common.v1 import identity_pb2
from hone.console.v1 import console_pb2
from hone.learner.v1 import learner_pb2

from hone_cli.bradley_terry import strengths
from hone_cli.compare import Comparison, HeldOut, RunFigures, compare, held_out_of, news
from hone_cli.render_compare import as_plain
from hone_cli.text import sparkline
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec


def run(name: str, rewards: list[float], **fields: Any) -> RunFigures:
    settings = {"algorithm": "grpo", "train.learning_rate": 1e-4, **fields.pop("settings", {})}
    steps = [
        (step, {"reward/mean": reward, "loss": -reward}) for step, reward in enumerate(rewards)
    ]
    return RunFigures(
        run_id=name,
        algorithm="grpo",
        state="completed",
        step=len(rewards),
        settings=settings,
        steps=fields.pop("steps", steps),
        **fields,
    )


def held(scores: dict[str, list[float]], data_set: str = "tasks-1") -> HeldOut:
    return HeldOut(step=2, data_set=data_set, scores=scores)


def test_only_settings_that_differ_are_told_with_those_that_a_run_lacks() -> None:
    one = run("a", [0.5], settings={"train.beta": 0.1, "seed": 0})
    other = run("b", [0.5], settings={"seed": 1})
    third = run("c", [0.5], settings={"seed": 0})
    found = compare([one, other, third])
    assert found.settings == {"seed": [0, 1, 0], "train.beta": [0.1, None, None]}


def test_figures_are_held_against_each_other_at_the_same_step_best_and_last() -> None:
    found = compare([run("a", [0.1, 0.9, 0.4]), run("b", [0.2, 0.3])])
    figures = {figure.name: figure for figure in found.figures}
    reward = figures["reward/mean"]
    assert reward.common_step == 1
    assert reward.at_common_step == [0.9, 0.3]
    assert [(e.step, e.value) for e in reward.best if e] == [(1, 0.9), (1, 0.3)]
    assert [(e.step, e.value) for e in reward.last if e] == [(2, 0.4), (1, 0.3)]
    assert [e.value for e in figures["loss"].best if e] == [-0.9, -0.3]
    assert found.curves == {0: [0.1, 0.2], 1: [0.9, 0.3], 2: [0.4, None]}


def test_figure_that_one_run_lacks_and_one_without_a_good_end_have_no_winner() -> None:
    one = run("a", [], steps=[(0, {"kl": 0.1, "reward/mean": 0.0})])
    other = run("b", [], steps=[(1, {"reward/mean": 0.0})])
    figures = {figure.name: figure for figure in compare([one, other]).figures}
    assert figures["kl"].common_step is None
    assert figures["kl"].best == [None, None]
    assert figures["kl"].last[1] is None
    assert figures["reward/mean"].at_common_step == [None, None]


def noisy(seed: int, gain: float) -> dict[str, list[float]]:
    """Tasks of very different difficulty, so that only pairing can show a small gain."""
    rng = random.Random(seed)
    return {f"t{i}": [i / 40 + gain + rng.uniform(-0.02, 0.02)] for i in range(40)}


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, "better"), (-0.05, "worse")])
def test_pairing_by_task_shows_a_gain_that_is_small_beside_the_spread(
    gain: float, verdict: str
) -> None:
    one, other = (
        run(n, [0.5], held_out=held(noisy(s, g))) for n, s, g in (("a", 1, 0), ("b", 2, gain))
    )
    (found,) = compare([one, other]).differences
    assert found.estimate is not None
    assert found.verdict == verdict
    assert found.estimate.low < gain < found.estimate.high
    assert found.estimate.high - found.estimate.low < 0.03
    assert compare([one, other]).differences == [found]


def test_same_policy_shows_no_difference() -> None:
    one, other = (run(n, [0.5], held_out=held(noisy(s, 0))) for n, s in (("a", 1), ("b", 2)))
    (found,) = compare([one, other]).differences
    assert found.verdict == "no clear difference"


def test_only_tasks_that_both_scored_are_paired() -> None:
    left = {f"t{i}": [0.0] for i in range(10)}
    right = {f"t{i}": [1.0, 0.0] for i in range(4, 12)}
    (found,) = compare(
        [run("a", [0.5], held_out=held(left)), run("b", [0.5], held_out=held(right))]
    ).differences
    assert found.estimate is not None
    assert (found.num_tasks, found.num_left_out, found.estimate.value) == (6, 6, 0.5)


def test_ids_that_people_gave_are_not_the_same_task_in_another_set_but_those_of_content_are() -> (
    None
):
    by_hand = {f"{i}": [float(i % 2)] for i in range(8)}
    by_content = {f"task_{i:016x}": [float(i % 2)] for i in range(8)}

    def found(scores: dict[str, list[float]]) -> Comparison:
        one = run("a", [0.5], held_out=held(scores))
        return compare([one, run("b", [0.5], held_out=held(scores, "tasks-2"))])

    assert (
        found(by_hand)
        .differences[0]
        .reason.startswith("both have scored 0 same tasks of different data sets")
    )
    assert found(by_content).differences[0].num_tasks == 8


def test_last_evaluation_counts_and_what_has_no_score_is_counted() -> None:
    found = held_out_of(
        [(0, "a", 0.0), (5, "a", 1.0), (5, "a", 0.0), (5, "b", None), (5, "c", 1.0)], "d"
    )
    assert found == HeldOut(
        step=5, data_set="d", scores={"a": [1.0, 0.0], "c": [1.0]}, num_unscored=1
    )
    assert held_out_of([], "d") is None


@pytest.mark.parametrize(
    ("values", "encoding", "drawn"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "utf-8", "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"),
        ([0, None, 7], "latin-1", "0 7"),
        ([5, 5], "ascii", "00"),
        ([], "utf-8", ""),
        ([float("nan"), 1, 2], None, " 07"),
    ],
)
def test_curve_in_a_line(values: list[Any], encoding: str | None, drawn: str) -> None:
    assert sparkline(values, encoding=encoding) == drawn


def test_long_curve_is_thinned_by_means() -> None:
    assert sparkline([0, 2] * 50 + [5, 7] * 50, width=2, encoding="ascii") == "07"


@pytest.fixture
def two_runs(suite: Any) -> Any:
    for name, rate, rewards in (
        ("tiny-1", 1e-4, [0.1, 0.2, 0.3]),
        ("tiny-2", 1e-5, [0.1, 0.5, 0.9]),
    ):
        spec = RunSpec.model_validate(
            {
                "algorithm": "grpo",
                "model": {"path": "m"},
                "data": {"train": "tasks-1", "eval": "tasks-2"},
                "train": {"learning_rate": rate},
                "grader": {"type": "answer", "reference": "{{item.answer}}"},
            }
        )
        suite.learner.runs[name] = learner_pb2.Run(
            run_id=name,
            spec=run_spec_to_proto(spec),
            state=learner_pb2.RUN_STATE_COMPLETED,
            step=3,
            metrics={"reward/mean": rewards[-1], "eval/reward/mean": rewards[-1]},
        )
        suite.learner.steps[name] = [
            learner_pb2.StepReport(step=i, metrics={"reward/mean": reward})
            for i, reward in enumerate(rewards)
        ]
        for task in range(12):
            for attempt, score in ((1, 0.0), (2, rewards[-1] + task % 3 / 10)):
                rollout_id = f"{name}-{task}-{attempt}"
                suite.console.rollouts[rollout_id] = console_pb2.GetRolloutResponse(
                    summary=console_pb2.RolloutSummary(
                        rollout_id=rollout_id,
                        task_id=f"t{task}",
                        attempt=attempt,
                        outcome="scored" if attempt == 2 else "failed",
                        score=score,
                        slot=identity_pb2.Slot(
                            run_id=name,
                            phase=identity_pb2.PHASE_EVALUATE,
                            step=3,
                            group_index=task,
                        ),
                    )
                )
    return suite


def test_compare_for_people(two_runs: Any) -> None:
    assert two_runs.hone("runs", "compare", "tiny-1", "tiny-2") == 0
    lines = [line.split() for line in two_runs.out.splitlines()]
    assert ["A", "tiny-1", "grpo", "completed", "3"] in lines
    assert ["train.learning_rate", "0.0001", "1e-05"] in lines
    assert ["reward/mean", "3", "0.3", "0.9", "+0.6", "0.3", "(3)", "0.9", "(3)", "0.3", "(3)",
            "0.9", "(3)"] in lines  # fmt: skip
    assert ["eval/reward/mean", "3", "0.3", "0.9", "+0.6", "0.3", "(3)", "0.9", "(3)", "0.3", "(3)",
            "0.9", "(3)"] in lines  # fmt: skip
    assert "held-out reward, B against A: +0.6, 95% interval +0.6 to +0.6: better" in two_runs.out
    assert "12 tasks that both evaluated, A after 3 updates and B after 3" in two_runs.out


def test_compare_for_programs(two_runs: Any) -> None:
    assert two_runs.hone("runs", "compare", "tiny-1", "tiny-2", "--json") == 0
    found = two_runs.json()
    assert found["settings"] == {"train.learning_rate": [1e-4, 1e-5]}
    assert found["figures"]["reward/mean"]["at_common_step"] == [0.3, 0.9]
    (one,) = found["held_out"]
    assert (one["run_id"], one["against"], one["verdict"]) == ("tiny-2", "tiny-1", "better")
    assert one["estimate"]["value"] == pytest.approx(0.6)


def test_runs_are_compared_by_the_number_types_that_they_were_trained_in(two_runs: Any) -> None:
    for name, dtype in (("tiny-1", "float32"), ("tiny-2", "bfloat16")):
        two_runs.learner.runs[name].spec.model.dtype = "auto"
        two_runs.learner.runs[name].dtype_choice.dtype = dtype
    assert two_runs.hone("runs", "compare", "tiny-1", "tiny-2", "--json") == 0
    assert two_runs.json()["settings"]["model.dtype"] == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    "arguments",
    [("compare", "tiny-1"), ("compare", "tiny-1", "tiny-1"), ("tiny-1", "tiny-2"), ("--all",)],
)
def test_compare_needs_different_runs(two_runs: Any, arguments: tuple[str, ...]) -> None:
    assert two_runs.hone("runs", *arguments) == 2


def test_curves_of_one_run_are_drawn(two_runs: Any) -> None:
    assert two_runs.hone("runs", "tiny-2") == 0
    (line,) = [
        line
        for line in two_runs.out.splitlines()
        if line.startswith("  reward/mean  ") and " to " in line
    ]
    assert line.endswith("0.1 to 0.9")


def test_three_runs_are_ranked_by_who_did_better_on_each_task() -> None:
    # Of ten tasks A beats B in 6, ties with it in 1 and loses 3; C has 0.4 everywhere, by two samples.
    a = {f"t{i}": [1.0] for i in range(7)} | {f"t{i}": [0.0] for i in range(7, 10)}
    b = {f"t{i}": [0.5] for i in range(6)} | {f"t{i}": [1.0] for i in range(6, 10)}
    c = {f"t{i}": [0.2, 0.6] for i in range(10)}
    runs = [run(n, [0.1], held_out=held(s)) for n, s in (("a", a), ("b", b), ("c", c))]
    found = compare(runs).ranking
    assert found is not None
    assert found.strengths is not None
    wins = [[0, 6.5, 7], [3.5, 0, 10], [3, 0, 0]]
    assert found.strengths == pytest.approx(strengths(wins))
    assert found.num_tasks == 10
    last = run("d", [0.1], held_out=held({task: [-1.0] for task in a}))
    beaten = compare([*runs[:2], last]).ranking
    assert beaten is not None
    assert beaten.strengths is None
    assert "won all games" in beaten.reason


def test_two_runs_are_not_ranked_and_three_need_the_same_tasks() -> None:
    scores = {f"t{i}": [0.5] for i in range(5)}
    runs = [run(name, [0.1], held_out=held(scores)) for name in "ab"]
    assert compare(runs).ranking is None
    other = run("c", [0.1], held_out=held({f"u{i}": [0.5] for i in range(5)}))
    ranking = compare([*runs, other]).ranking
    assert ranking is not None
    assert "scored 0 same tasks" in ranking.reason
    without = compare([*runs, run("c", [0.1])]).ranking
    assert without is not None
    assert without.strengths is None


def test_figure_that_is_not_a_number_is_as_one_that_was_not_told() -> None:
    nan = math.nan
    found = compare([run("a", [nan, 0.5, math.inf]), run("b", [0.2, 0.4, nan])])
    figures = {figure.name: figure for figure in found.figures}
    assert [(e.step, e.value) for e in figures["reward/mean"].best if e] == [(1, 0.5), (1, 0.4)]
    assert figures["reward/mean"].common_step == 1
    assert found.curves == {0: [None, 0.2], 1: [0.5, 0.4]}
    json.dumps(as_plain(found), allow_nan=False)
    nothing = compare([run("a", [nan]), run("b", [nan])])
    assert (nothing.figures, nothing.main, nothing.curves) == ([], "", {})


def test_figure_that_stays_no_number_is_no_news() -> None:
    nan = math.nan
    assert news({"kl": nan, "loss": 1.0}, {"kl": nan, "loss": 1.0}) == {}
    assert news({"loss": 1.0}, {"loss": 2.0}) == {"loss": 2.0}
    assert list(news({}, {"kl": nan})) == ["kl"]
    assert news({"kl": nan}, {"kl": 1.0}) == {"kl": 1.0}
