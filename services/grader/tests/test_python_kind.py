"""The kind `python`, over the stand-in for boxes."""

import pytest
from boxed_desk import Desk, desk, problems

from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind, OutcomeKind

__all__ = ["desk"]

pytestmark = pytest.mark.slow


def code_grader(source: str, **fields: object) -> dict[str, object]:
    return {"type": "python", "source": source, **fields}


async def test_python_gets_sample_and_item_as_people_know_them(desk: Desk) -> None:
    source = (
        "def grade(sample, item):\n"
        "    print('noise', flush=True)\n"
        "    same = sample['choices'][0]['message']['content'] == sample['output_text']\n"
        "    return 0.25 * same + 0.5 * (sample['output_json']['x'] == item['x']) + 0.25 * len(sample['output_tools'])"
    )
    found = await desk.grade(code_grader(source), '{"x": 3}', item={"x": 3}, calls=1)
    assert (found.value, found.kind) == (1.0, None)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("return 1 / 0", GraderErrorKind.CODE, "ZeroDivisionError"),
        ("return float('nan')", GraderErrorKind.CODE, "nan"),
        ("return 'good'", GraderErrorKind.CODE, "must return a number"),
        ("import sys; sys.exit(0)", GraderErrorKind.CODE, "SystemExit"),
        ("import os; os._exit(0)", GraderErrorKind.CODE, "returned nothing"),
        pytest.param(
            "while True: pass", GraderErrorKind.TIMEOUT, "within 1 s", marks=pytest.mark.slow
        ),
    ],
)
async def test_python_that_breaks_is_a_typed_error_and_no_zero(
    desk: Desk, body: str, kind: GraderErrorKind, said: str
) -> None:
    with pytest.raises(GradingFaultError, match=said) as caught:
        await desk.grade(code_grader(f"def grade(s, i):\n    {body}", timeout_seconds=1), "x")
    fault = caught.value
    assert (fault.kind, fault.retryable, fault.client) == (kind, False, True)


async def test_python_may_abstain_and_be_async(desk: Desk) -> None:
    none = await desk.grade(code_grader("def grade(s, i): return None"), "x")
    waited = await desk.grade(code_grader("async def grade(s, i): return True"), "x")
    assert (none.abstained, waited.value) == (True, 1.0)


async def test_python_reads_what_the_agent_left(desk: Desk) -> None:
    agent = desk.rooms.leave("a", {"/work/out.txt": b"7"})
    source = "def grade(s, i): return float(open('/work/out.txt').read()) / 7"
    found = await desk.grade(code_grader(source, folders=["/work"]), "x", agent=agent)
    assert found.value == 1.0


@pytest.mark.parametrize(("size", "value"), [(1_500_000, 1.0), (4_000_000, 0.0)])
async def test_python_grades_long_responses_and_never_fails_for_their_length(
    desk: Desk, size: int, value: float
) -> None:
    found = await desk.grade(code_grader("def grade(s, i): return 1"), "x" * size)
    assert (found.value, found.kind) == (value, None if value else OutcomeKind.FORMAT)


def test_python_that_is_no_python_is_found_before_anything_is_graded() -> None:
    assert "no Python" in problems(code_grader("def grade(sample, item) return 1"))["source"]
    assert "must define grade" in problems(code_grader("x = 1"))["source"]
    long = "def grade(s, i): return 1 #" + "x" * 256 * 1024
    assert problems(code_grader(long))  # the definition itself is too long, too
