"""Each warning fires on rows that show its fault, names them, and stays silent on healthy ones."""

from dataclasses import replace

import pytest

from grader.analysis import lint
from grader.analysis.rows import GradedRow
from trajectory.types import Masked, OutcomeKind, Reward, Scored


def reward(name: str, value: float, weight: float = 1.0) -> Reward:
    return Reward(name=name, value=value, weight=weight, grader_name="x", grader_version="v")


def row(
    index: int,
    score: float,
    *rewards: Reward,
    turns: int = 1,
    unbounded: float | None = None,
    fields: tuple[str, ...] = ("answer",),
) -> GradedRow:
    return GradedRow(
        row_id=f"r{index}",
        task_id=f"t{index}",
        turn_count=turns,
        fields=fields,
        unbounded=score if unbounded is None else unbounded,
        outcome=Scored(rewards=rewards or (reward("reward", score),), score=score),
    )


def rows_of(*scores: float) -> list[GradedRow]:
    return [row(index, score) for index, score in enumerate(scores)]


def checks(found: list[lint.LintWarning]) -> list[str]:
    return [warning.check for warning in found]


def test_healthy_rows_raise_no_warning() -> None:
    rows = rows_of(0.0, 0.2, 0.5, 0.7, 1.0, 0.3)
    assert lint.lint(rows, regraded=rows[:3], read_fields={"answer"}) == []


def test_two_values_are_named_with_a_row_of_each() -> None:
    (warning,) = lint.spread(rows_of(0, 1, 0, 1, 1))
    assert (warning.check, warning.rows) == ("two_valued", ("r0", "r1"))
    assert "0 and 1" in warning.text


def test_two_values_that_differ_by_rounding_alone_are_one() -> None:
    assert checks(lint.spread(rows_of(0.3, 0.1 + 0.2, 0.3, 0.3, 0.3))) == ["constant"]


def test_constant_scores_are_not_also_called_saturated() -> None:
    (warning,) = lint.spread(rows_of(1, 1, 1, 1, 1, 1, 1))
    assert warning.check == "constant"
    assert len(warning.rows) == lint.NUM_EXAMPLES


@pytest.mark.parametrize(("num_top", "expected"), [(10, False), (9, False), (19, True)])
def test_saturation_starts_above_nine_in_ten_at_the_maximum(num_top: int, expected: bool) -> None:
    rest = {10: [0.5, 0.25], 9: [0.5], 19: [0.5]}[num_top]
    found = checks(lint.spread(rows_of(*[1.0] * num_top, *rest)))
    assert ("saturated" in found) is expected


def test_the_maximum_is_that_of_the_declared_range() -> None:
    rows = [replace(r, high=10.0) for r in rows_of(*[1.0] * 19, 0.5)]
    assert "saturated" not in checks(lint.spread(rows))


def test_too_few_scores_say_nothing_about_their_spread() -> None:
    assert lint.spread(rows_of(1, 1)) == []


def test_long_rollouts_with_a_final_reward_only_are_named() -> None:
    long, short = row(0, 0.5, turns=4), row(1, 0.5, turns=3)
    stepped = row(2, 0.5, turns=9)
    assert isinstance(stepped.outcome, Scored)
    stepped = replace(stepped, outcome=replace(stepped.outcome, step_rewards=(0.1, 0.4)))
    (warning,) = lint.final_only([long, short, stepped])
    assert warning.rows == ("r0",)
    assert "1 of 3" in warning.text


def paired(pairs: list[tuple[float, float]], weight: float = 1.0) -> list[GradedRow]:
    return [
        row(index, a, reward("brief", a), reward("right", b, weight))
        for index, (a, b) in enumerate(pairs)
    ]


def test_components_that_conflict_are_named_with_their_correlation_and_n() -> None:
    (warning,) = lint.conflicts(paired([(0, 1), (1, 0), (0, 1), (1, 0), (0.5, 0.5)]))
    assert warning.check == "conflict"
    assert "brief and right" in warning.text
    assert "correlation -1.00 over n = 5 rows; few rows" in warning.text
    assert "r4" not in warning.rows


def test_a_measured_component_may_conflict_with_a_counted_one() -> None:
    assert len(lint.conflicts(paired([(0, 1), (1, 0), (0, 1), (1, 0), (1, 0)], weight=0))) == 1


def test_few_rows_say_nothing_about_a_correlation() -> None:
    assert lint.conflicts(paired([(0, 1), (1, 0), (0, 1), (1, 0)])) == []


def test_two_measured_components_may_disagree() -> None:
    rows = [row(i, 0, reward("a", i, 0), reward("b", -i, 0), reward("c", 1)) for i in range(6)]
    assert lint.conflicts(rows) == []


def test_correlation_at_the_limit_is_no_conflict() -> None:
    # r = -0.3 exactly: sums of products -3, spreads 10 and 10.
    xs, ys = [2.0, 1.0, 0.0, -1.0, -2.0], [1.0, -2.0, 0.0, -1.0, 2.0]
    assert lint.pearson(xs, ys) == pytest.approx(-0.3)
    assert lint.conflicts(paired(list(zip(xs, ys, strict=True)))) == []


def test_correlation_with_a_constant_is_undefined() -> None:
    assert lint.pearson([1, 2, 3], [5, 5, 5]) is None


def test_clipping_counts_both_ends_and_shows_the_rows() -> None:
    rows = [row(i, 1.0, unbounded=1.5) for i in range(2)] + [row(2, 0.0, unbounded=-0.5)]
    rows += [row(i, 0.5) for i in range(3, 10)]
    (warning,) = lint.clipping(rows)
    assert warning.rows == ("r2", "r0", "r1")
    assert "3 of 10" in warning.text and "1 below, 2 above" in warning.text


def test_rare_clipping_is_no_warning() -> None:
    rows = [row(0, 1.0, unbounded=1.5)] + [row(i, 0.5) for i in range(1, 20)]
    assert lint.clipping(rows) == []


def test_success_of_a_measured_grader_alone_is_named() -> None:
    unpaid = row(0, 0.0, reward("reward", 0.0), reward("accuracy", 1.0, 0))
    paid = row(1, 0.9, reward("reward", 0.9), reward("accuracy", 1.0, 0))
    (warning,) = lint.lint([unpaid, paid], result_names={"accuracy"})
    assert (warning.check, warning.rows) == ("uncounted_success", ("r0",))
    assert "accuracy" in warning.text


def test_style_of_a_wrong_answer_is_no_success() -> None:
    wrong = row(0, 0.0, reward("reward", 0.0), reward("polite", 1.0, 0), reward("accuracy", 0.0, 0))
    assert lint.uncounted_success([wrong], {"reward", "accuracy"}) == []


def test_component_that_varies_by_rounding_alone_correlates_with_nothing() -> None:
    left = [0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2]
    right = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert lint.pearson(left, right) is None
    assert lint.pearson(right, left) is None


def test_regrading_noise_tells_size_and_rows() -> None:
    rows = rows_of(0.5, 0.5, 0.5, 0.5)
    masked = replace(rows[3], outcome=Masked(kind=OutcomeKind.EXTRACTION, reason="?"))
    (warning,) = lint.regrading_noise(rows, [row(0, 0.5), row(1, 0.7), row(2, 0.4), masked])
    assert warning.rows == ("r1", "r2", "r3")
    assert "3 of 4" in warning.text
    assert "mean difference 0.075, largest 0.2" in warning.text
    assert "1 had a score only once" in warning.text


def test_regrading_noise_of_a_measured_component_counts() -> None:
    first = [row(0, 1, reward("a", 1), reward("m", 0.2, 0))]
    again = [row(0, 1, reward("a", 1), reward("m", 0.3, 0))]
    assert checks(lint.regrading_noise(first, again)) == ["regrading_noise"]


def test_unused_reference_fields_are_counted() -> None:
    rows = [row(0, 0.1, fields=("answer", "hint")), row(1, 0.2)]
    (warning,) = lint.lint(rows, read_fields={"answer"})
    assert warning.rows == ("r0",)
    assert "hint (in 1 of 2 rows)" in warning.text


def test_graders_that_read_the_whole_item_leave_no_field_unused() -> None:
    rows = [row(0, 0.1, fields=("answer", "hint")), row(1, 0.2)]
    assert lint.lint(rows, read_fields=None) == []
