import subprocess
import sys
from pathlib import Path

import pytest
from hone.learner.v1 import learner_pb2

from hone_cli.addresses import AddressBook
from hone_cli.errors import CliError, service_error
from hone_cli.progress import RunProgress
from hone_cli.runview import StepTable, progress_text
from hone_cli.text import number, safe, span
from servicekit.errors import InvalidArgument


def test_address_comes_from_the_option_then_the_environment_then_the_file(tmp_path: Path) -> None:
    (tmp_path / ".hone").mkdir()
    (tmp_path / ".hone" / "endpoints.json").write_text('{"learner": "127.0.0.1:3"}')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    environ = {"HONE_LEARNER_ADDRESS": "learner:2"}
    assert AddressBook("one:1", folder=inner, environ=environ).find("learner") == "one:1"
    assert AddressBook(folder=inner, environ=environ).find("learner") == "learner:2"
    assert AddressBook(folder=inner, environ={}).find("learner") == "127.0.0.1:3"
    with pytest.raises(CliError, match="names no console; it names learner"):
        AddressBook(folder=inner, environ={}).find("console")


def test_address_of_another_service_is_not_the_option(tmp_path: Path) -> None:
    book = AddressBook("one:1", folder=tmp_path, environ={"HONE_GRADER_ADDRESS": "g:2"})
    assert book.find("grader", own=False) == "g:2"


def test_fields_are_named_once_and_none_is_left_out() -> None:
    known = InvalidArgument("data: is required", violations={"data": "is required"})
    assert str(service_error(known, "learner", "a:1")) == "data: is required"
    second = InvalidArgument(
        "data: is required", violations={"data": "is required", "model.path": "is required"}
    )
    assert str(service_error(second, "learner", "a:1")) == (
        "data: is required\n  model.path: is required"
    )


@pytest.mark.parametrize(
    ("flat", "updates", "said"), [(1.0, 0.0, True), (1.0, 2.0, False), (0.5, 2.0, False)]
)
def test_step_that_taught_nothing_says_so(flat: float, updates: float, said: bool) -> None:
    figures = {"reward/mean": 1.0, "frac_reward_zero_std": flat, "updates": updates}
    lines = StepTable("grpo", 10).rows(learner_pb2.StepReport(step=0, metrics=figures))
    assert any(line.startswith("  no update: ") for line in lines) is said


def test_progress_tells_stage_rate_and_time_left() -> None:
    progress = RunProgress(num_steps=10)
    progress.begin(0, 0.0)
    progress.step_done(0, 30.0)
    progress.step_done(1, 60.0)
    progress.progressed(2, "rolling_out", 0, 64, 60.0)
    progress.progressed(2, "rolling_out", 32, 64, 64.0)
    standing = progress.standing(64.0)
    assert standing.rate == 8.0
    assert standing.seconds_left == 8 * 30.0 - 4.0
    assert progress_text(standing) == "step 3/10, rolling out 32/64, 8/s, about 3 min 56 s left"
    assert standing.fraction == 0.2


def test_steps_that_are_told_together_count_one_by_one() -> None:
    progress = RunProgress(num_steps=20)
    progress.begin(0, 0.0)
    progress.progressed(7, "training", 1, 4, 75.0)
    assert progress.standing(75.0).step == 8
    for step in range(10):
        progress.step_done(step, 100.0 + step / 1000)
    progress.progressed(12, "training", 1, 4, 120.0)
    standing = progress.standing(120.0)
    assert (standing.step, standing.fraction) == (13, 0.6)
    assert standing.seconds_left == pytest.approx(80.0)


def test_what_comes_before_the_first_step_is_no_part_of_a_step() -> None:
    progress = RunProgress(num_steps=4)
    progress.begin(0, 0.0)
    progress.progressed(0, "measuring", 0, 0, 5.0)
    progress.progressed(0, "training", 0, 16, 100.0)
    progress.progressed(0, "training", 8, 16, 105.0)
    progress.step_done(0, 110.0)
    assert progress.standing(110.0).seconds_left == 3 * 10.0


def test_progress_of_an_evaluation_counts_its_rollouts() -> None:
    progress = RunProgress(num_steps=0)
    progress.begin(0, 0.0)
    progress.progressed(0, "evaluating", 0, 100, 0.0)
    progress.progressed(0, "evaluating", 20, 100, 10.0)
    assert progress.standing(10.0).seconds_left == 40.0


def test_steps_from_before_watching_say_nothing_about_speed() -> None:
    progress = RunProgress(num_steps=10)
    progress.begin(5, 0.0)
    for step in range(5):
        progress.step_done(step, 0.1)
    assert progress.standing(1.0).seconds_left is None
    assert progress.standing(1.0).step == 6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (12.34, "12.3 s"), (250, "4 min 10 s"), (7500, "2 h 5 min"), (-1, "?")],
)
def test_spans_have_two_units_at_most(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (0.123456, "0.1235"), (0.00002, "2.00e-05"), (float("nan"), "nan")],
)
def test_numbers_keep_what_matters(value: float, text: str) -> None:
    assert number(value) == text


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert safe("a\x1b[2Jb\n") == "a\\x1b[2Jb\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom hone_cli.main import main\nassert main(['--help']) == 0\n"
        "heavy = {'torch', 'grpc', 'google.protobuf', 'pydantic', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for verb in (
        "init",
        "up",
        "down",
        "doctor",
        "sft",
        "train",
        "evaluate",
        "runs",
        "audit",
        "kappa",
    ):
        assert verb in ran.stdout
