"""Reward functions of a plug-in package: found by entry point, run in processes of their own, never a zero by fault."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grader.definition import Definitions
from grader.functions.pool import FunctionPool
from grader.functions.styles import call
from grader.grading import grade
from grader.instruments.all import Instruments
from grader.instruments.functions import FunctionCall
from grader.kinds.function import completion_ids
from grader.results import GradingFaultError
from servicekit.errors import InvalidArgument
from trajectory.types import (
    GraderErrorKind,
    Masked,
    OutcomeKind,
    RolloutRecord,
    SamplingParams,
    Scored,
    TokenRecord,
    TokenRow,
    TokenSpan,
)

pytestmark = pytest.mark.slow

MakeRecord = Callable[..., RolloutRecord]

PLUGIN = '''
import os, subprocess, sys, time

def right(prompts, completions, answer, **columns):
    """As TRL calls it; columns of the data set are lists."""
    assert prompts == [[{"role": "user", "content": "How many clips?"}]], prompts
    return [float(said[-1]["content"].strip() == gold) for said, gold in zip(completions, answer)]

def texts(prompts, completions):
    assert prompts == ["How many clips?"], prompts
    return [len(text) / 10 for text in completions]

async def later(completions, **columns):
    return [0.25 for _ in completions]

def abstains(completions, **columns):
    return [None]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert extra_info == {"answer": "72"}, extra_info
    return {"score": solution_str == ground_truth, "length": len(solution_str), "source": data_source}

def raises(completions, **columns):
    raise KeyError("no such key")

def leaves(completions, **columns):
    sys.exit(3)

def dies(completions, **columns):
    os._exit(7)

def hangs(completions, marker, **columns):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(marker[0], "w").write(f"{os.getpid()} {child.pid}")
    while True:
        pass

def prints(completions, **columns):
    print("noise" * 10000)
    print(sys.stdin.read())
    return [float(os.getpid())]

def forks(completions, **columns):
    os.fork()
    return [float(len(completions[0]))]

def leaves_a_child(completions, marker, **columns):
    if os.fork() == 0:
        open(marker[0], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(7)

class Unspeakable(Exception):
    def __str__(self):
        raise ValueError

def unspeakable(completions, **columns):
    raise Unspeakable

def half(completions, **columns):
    raise ValueError("no file \\udcff")

NUMBER = 3
'''

ENTRY_POINTS = """[hone.reward_functions]
right = plugin_rewards:right
texts = plugin_rewards:texts
later = plugin_rewards:later
abstains = plugin_rewards:abstains
compute_score = plugin_rewards:compute_score
raises = plugin_rewards:raises
leaves = plugin_rewards:leaves
dies = plugin_rewards:dies
hangs = plugin_rewards:hangs
prints = plugin_rewards:prints
forks = plugin_rewards:forks
leaves_a_child = plugin_rewards:leaves_a_child
unspeakable = plugin_rewards:unspeakable
half = plugin_rewards:half
number = plugin_rewards:NUMBER
missing = plugin_rewards:missing
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is installed where this test alone looks."""
    folder = tmp_path / "site"
    info = folder / "plugin_rewards-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "plugin_rewards.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-rewards\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
async def pool(plugin: Path) -> AsyncIterator[FunctionPool]:
    pool = FunctionPool(workers=2)
    yield pool
    await pool.close()


async def _outcome(
    pool: FunctionPool, record: RolloutRecord, instruments: Instruments, **definition: Any
) -> Scored | Masked:
    text = json.dumps({"type": "function", "range": [0, 1e9], **definition})
    parsed = Definitions(package_version="1").parse(text)
    return await grade(record, parsed, replace(instruments, functions=pool))


async def _score(
    pool: FunctionPool, record: RolloutRecord, instruments: Instruments, **definition: Any
) -> Scored:
    outcome = await _outcome(pool, record, instruments, **definition)
    assert isinstance(outcome, Scored)
    return outcome


@pytest.mark.parametrize(
    ("text", "score", "kind"), [("72", 1.0, None), ("71", 0.0, OutcomeKind.REASONING)]
)
async def test_a_trl_function_gets_messages_and_columns(
    pool: FunctionPool,
    make_record: MakeRecord,
    instruments: Instruments,
    text: str,
    score: float,
    kind: OutcomeKind | None,
) -> None:
    outcome = await _score(pool, make_record(text), instruments, function="right")
    assert (outcome.score, outcome.kind) == (score, kind)


async def test_a_trl_function_may_want_texts_and_fewer_arguments(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments
) -> None:
    outcome = await _score(
        pool, make_record("12345"), instruments, function="texts", completions="text"
    )
    assert outcome.score == 0.5


async def test_an_async_function_is_awaited(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments
) -> None:
    assert (await _score(pool, make_record(), instruments, function="later")).score == 0.25


async def test_no_opinion_is_no_zero(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments
) -> None:
    outcome = await _outcome(pool, make_record(), instruments, function="abstains")
    assert isinstance(outcome, Masked)


async def test_a_verl_function_returns_a_score_with_figures(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments
) -> None:
    outcome = await _score(
        pool,
        make_record("72"),
        instruments,
        function="compute_score",
        style="verl",
        data_source="clips",
    )
    assert outcome.score == 1.0
    assert outcome.rewards[0].parts == {"length": 2.0}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "KeyError: 'no such key'"),
        ("leaves", "SystemExit: 3"),
        ("dies", "ended its process with code 7"),
        ("unspeakable", "Unspeakable"),
        ("half", "ValueError: no file"),
        ("number", "TypeError: plugin_rewards:NUMBER is int, not a function"),
        ("missing", "AttributeError"),
    ],
)
async def test_a_function_that_breaks_is_a_fault_and_the_next_one_runs(
    pool: FunctionPool,
    make_record: MakeRecord,
    instruments: Instruments,
    function: str,
    said: str,
) -> None:
    with pytest.raises(GradingFaultError) as raised:
        await _outcome(pool, make_record(), instruments, function=function)
    fault = raised.value
    assert (fault.kind, fault.retryable, fault.client) == (GraderErrorKind.CODE, False, True)
    assert said in fault.detail
    assert (await _score(pool, make_record(), instruments, function="later")).score == 0.25


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.slow
async def test_a_function_that_hangs_is_killed_with_what_it_started(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments, tmp_path: Path
) -> None:
    marker = tmp_path / "pids"
    record = make_record(item={"marker": str(marker)})
    with pytest.raises(GradingFaultError) as raised:
        await _outcome(pool, record, instruments, function="hangs", timeout_seconds=2)
    assert raised.value.kind is GraderErrorKind.TIMEOUT
    assert "within 2 s" in raised.value.detail
    pids = [int(pid) for pid in marker.read_text().split()]
    async with asyncio.timeout(10):
        while not all(_gone(pid) for pid in pids):
            await asyncio.sleep(0.01)
    assert (await _score(pool, make_record(), instruments, function="later")).score == 0.25


async def test_a_process_that_ends_leaves_nothing_behind(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments, tmp_path: Path
) -> None:
    marker = tmp_path / "pid"
    record = make_record(item={"marker": str(marker)})
    with pytest.raises(GradingFaultError, match="did not answer"):
        await _outcome(pool, record, instruments, function="leaves_a_child", timeout_seconds=1)
    async with asyncio.timeout(10):
        while not _gone(int(marker.read_text())):
            await asyncio.sleep(0.01)


async def test_a_function_that_forks_answers_once_per_question(pool: FunctionPool) -> None:
    """The copy returns as well, and its answer would be taken for that to the next question."""
    for length in (1, 2, 3, 4):
        asked = FunctionCall(
            function="forks", style="trl", arguments={"completions": [[1] * length]}
        )
        assert (await pool.call(asked)).value == length


async def test_a_grading_that_is_given_up_ends_its_function(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments, tmp_path: Path
) -> None:
    marker = tmp_path / "pids"
    record = make_record(item={"marker": str(marker)})
    grading = asyncio.create_task(_outcome(pool, record, instruments, function="hangs"))
    async with asyncio.timeout(20):
        while not marker.exists() or not marker.read_text():
            await asyncio.sleep(0.01)
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading
    assert _gone(int(marker.read_text().split()[0]))


async def test_prints_and_reads_of_a_function_do_not_disturb_it(
    pool: FunctionPool, make_record: MakeRecord, instruments: Instruments
) -> None:
    first = await _score(pool, make_record(), instruments, function="prints")
    second = await _score(pool, make_record(), instruments, function="prints")
    assert first.score == second.score != os.getpid()


@pytest.mark.parametrize(
    ("definition", "path", "said"),
    [
        ({}, "function", "is required"),
        ({"function": "rihgt"}, "function", "did you mean 'right'"),
        ({"function": "zzz"}, "function", "known are abstains, compute_score"),
        ({"function": "right", "style": "tlr"}, "style", "did you mean 'trl'"),
        ({"function": "right", "data_source": "x"}, "data_source", "is for style verl"),
        (
            {"function": "right", "style": "verl", "completions": "text"},
            "completions",
            "is for style trl",
        ),
    ],
)
def test_a_wrong_definition_is_named_by_field(
    plugin: Path, definition: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Definitions(package_version="1").parse(json.dumps({"type": "function", **definition}))
    assert said in raised.value.violations[path]


@pytest.mark.parametrize(
    ("style", "returned", "said"),
    [
        ("trl", 1.0, "must return a list of one reward per completion"),
        ("trl", [], "must return a list of one"),
        ("trl", [1.0, 2.0], "must return a list of one"),
        ("trl", ["1"], "must be a number"),
        ("trl", [float("nan")], "must be finite"),
        ("verl", {"acc": 1}, "a dict with score"),
        ("verl", {"score": "1"}, "must be a number"),
        ("verl", {"score": 1, **{str(i): i for i in range(65)}}, "at most 64 figures"),
        ("verl", {"score": 1, "a" * 101: 1}, "names of at most 100"),
        ("verl", [1], "must be a number"),
        ("verl", float("inf"), "must be finite"),
    ],
)
def test_what_is_no_score_is_named(style: str, returned: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call(lambda **_: returned, style, {})


class Tensor:
    """As of torch or numpy."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def tolist(self) -> list[float]:
        return self.values


@pytest.mark.parametrize(
    ("style", "returned", "score"),
    [
        ("trl", Tensor([0.5]), 0.5),
        ("trl", (True,), 1.0),
        ("verl", True, 1.0),
        ("verl", None, None),
        ("verl", {"score": None}, None),
        ("verl", {"score": 1, "count": 10**400, "share": float("nan")}, 1.0),
    ],
)
def test_what_functions_return_is_read(style: str, returned: Any, score: float | None) -> None:
    assert call(lambda **_: returned, style, {})[0] == score


def test_completion_ids_go_from_the_first_sampled_token_to_the_last(
    make_record: MakeRecord,
) -> None:
    row = TokenRow(
        token_ids=(1, 2, 3, 4, 5, 6),
        loss_mask=(False, False, True, False, True, False),
        logprobs=(0.0,) * 6,
        spans=(
            TokenSpan(start=2, end=3, turn=0, policy_version=1),
            TokenSpan(start=4, end=5, turn=1, policy_version=1),
        ),
    )
    record = replace(make_record(), tokens=TokenRecord(rows=(row,), sampling=SamplingParams()))
    assert completion_ids(record) == [3, 4, 5]
    assert completion_ids(make_record()) == []


async def test_two_functions_run_at_once(pool: FunctionPool) -> None:
    asked = FunctionCall(function="later", style="trl", arguments={"completions": [[]]})
    scores = await asyncio.gather(*(pool.call(asked) for _ in range(6)))
    assert [score.value for score in scores] == [0.25] * 6
