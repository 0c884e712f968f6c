"""The kind `tests`, over the stand-in for boxes."""

import pytest
from boxed_desk import ADD, Desk, desk, problems

from grader.results import Graded, GradingFaultError
from trajectory.types import GraderErrorKind, OutcomeKind, StopReason

__all__ = ["desk"]

pytestmark = pytest.mark.slow


def of_tests(**fields: object) -> dict[str, object]:
    return {"type": "tests", "test": "assert add(1, 2) == 3", **fields}


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        (ADD, 1.0, None),
        ("def add(a, b):\n    return a + b\n", 1.0, None),
        ("```\ndef add(a, b): return a + b\n```\nIt prints:\n```text\n3\n```", 1.0, None),
        ("```python:sums/add.py\ndef add(a, b): return a + b\n```", 1.0, None),
        ("```{.python .numbered}\ndef add(a, b): return a + b\n```", 1.0, None),
        ("```Python3.12\ndef add(a, b): return a + b\n```", 1.0, None),
        ("```pycon\n>>> add = lambda a, b: a + b\n```", 0.0, OutcomeKind.FORMAT),
        ("```python\ndef add(a, b): return 0\n```\nBetter:\n" + ADD, 1.0, None),
        (ADD + "\nUsage:\n```python\nprint(add(1, 2))\n```", 0.0, OutcomeKind.REASONING),
        ("```python\ndef add(a, b): return a - b\n```", 0.0, OutcomeKind.REASONING),
        ("```python\ndef add(a, b) return a + b\n```", 0.0, OutcomeKind.REASONING),
        ("```python\ndef sub(a, b): return a - b\n```", 0.0, OutcomeKind.REASONING),
        ("I would add the two numbers = simple.", 0.0, OutcomeKind.FORMAT),
        ("import this idea into\nyour mind", 0.0, OutcomeKind.FORMAT),
        ("", 0.0, OutcomeKind.FORMAT),
        ("```python\ndef add(a, b): return a + b", 0.0, OutcomeKind.FORMAT),
    ],
)
async def test_code_of_a_response_is_found_and_tested(
    desk: Desk, text: str, value: float, kind: OutcomeKind | None
) -> None:
    found = await desk.grade(of_tests(), text)
    assert (found.value, found.kind) == (value, kind), found.explanation


async def test_the_block_that_defines_the_entry_point_is_the_code(desk: Desk) -> None:
    text = ADD + "\nUsage:\n```python\nprint(add(1, 2))\n```"
    assert (await desk.grade(of_tests(entry_point="add"), text)).value == 1.0


async def test_code_that_was_cut_off_ran_out_of_budget(desk: Desk) -> None:
    text = "```python\ndef add(a, b):"
    found = await desk.grade(of_tests(), text, stop_reason=StopReason.MAX_TOKENS)
    assert found.kind is OutcomeKind.BUDGET


@pytest.mark.parametrize(
    "test",
    [
        "def check(candidate):\n    assert candidate(1, 2) == 3",
        "def test_one():\n    assert add(1, 2) == 3\ndef test_two():\n    assert add(a=0, b=0) == 0",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(add(1, 2), 3)",
        "from solution import add as plus\nassert plus(1, 2) == 3",
        "import solution\nassert solution.add(1, 2) == 3",
        "assert [add(x, x) for x in (1.5, 2**80, 1j)] == [3.0, 2**81, 2j]",
        "assert add([1], [{'a': (1, {2})}]) == [1, {'a': (1, {2})}]",
        "try:\n    add(1, 'x')\n    assert False\nexcept TypeError as err:\n    assert 'unsupported' in str(err)",
    ],
)
async def test_tests_of_every_shape_pass_right_code_and_fail_wrong_code(
    desk: Desk, test: str
) -> None:
    definition = of_tests(test=test, entry_point="add")
    wrong = ADD.replace("a + b", "(a, b)")
    assert (await desk.grade(definition, ADD)).value == 1.0
    assert (await desk.grade(definition, wrong)).value == 0.0


async def test_what_is_no_data_behaves_as_in_one_process(desk: Desk) -> None:
    code = (
        "```python\n"
        "import collections, functools\n"
        "class Wrong(ValueError): pass\n"
        "class Node:\n"
        "    def __init__(self, value): self.value, self.next = value, None\n"
        "    def __eq__(self, other): return self.value == other.value\n"
        "    def __lt__(self, other): return self.value < other.value\n"
        "def make(n): return Node(n)\n"
        "def count():\n"
        "    yield from (1, 2, 3)\n"
        "def sort(values): values.sort(); return None\n"
        "def apply(f, x): return f(x)\n"
        "def fail(): raise Wrong('no', 3)\n"
        "def name(kind): return kind.__name__\n"
        "Point = collections.namedtuple('Point', 'x y')\n"
        "def point(): return Point(1, 2)\n"
        "def tally(s): return collections.Counter(s)\n"
        "```"
    )
    test = (
        "node = Node(1); node.next = Node(2)\n"
        "assert node.next.value == 2 and node.next.next is None\n"
        "assert make(5) == Node(5) and not make(5) == Node(6) and isinstance(make(1), Node)\n"
        "assert [n.value for n in sorted([Node(2), Node(1)])] == [1, 2]\n"
        "assert list(count()) == [1, 2, 3] and sum(count()) == 6\n"
        "values = [3, 1, 2]\nsort(values)\nassert values == [1, 2, 3]\n"
        "assert apply(lambda x: make(x).value + 1, 4) == 5\n"
        "try:\n    fail()\n    assert False\nexcept Wrong as err:\n    assert err.args == ('no', 3)\n"
        "assert name(Wrong) == 'Wrong'\n"
        "assert point() == (1, 2)\n"
        "assert tally('aab').most_common(1) == [('a', 2)]\n"
    )
    found = await desk.grade(of_tests(test=test), code)
    assert found.value == 1.0, found.explanation


async def test_per_test_gives_the_share_and_its_figures(desk: Desk) -> None:
    listed = [
        "assert add(1, 1) == 2",
        "assert add(1, 1) == 3",
        "assert add(0, 0) == 0",
        "assert add()",
    ]
    found = await desk.grade(
        {"type": "tests", "test_list": "{{item.tests}}", "per_test": True},
        ADD,
        item={"tests": listed},
    )
    assert (found.value, dict(found.parts)) == (0.5, {"passed": 2.0, "tests": 4.0})
    assert found.kind is OutcomeKind.REASONING


async def test_code_cannot_hand_over_what_breaks_the_grading(desk: Desk) -> None:
    code = "```python\nclass Pair(Exception): pass\ndef add(a, b): return 3\n```"
    found = await desk.grade(of_tests(test="assert add(Pair(1), 2) == 4"), code)
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING)


async def test_setup_runs_before_the_code_and_a_broken_one_is_the_graders_fault(desk: Desk) -> None:
    code = "```python\ndef add(a, b):\n    return a + b + ZERO\n```"
    assert (await desk.grade(of_tests(setup="ZERO = 0"), code)).value == 1.0
    with pytest.raises(GradingFaultError, match="setup: NameError") as caught:
        await desk.grade(of_tests(setup="ZERO = zero"), code)
    assert caught.value.kind is GraderErrorKind.CODE


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("assert add(1, 2) == ", "no Python"),
        ("def test_it(tmp_path):\n    assert add(1, 2) == 3", "no fixtures"),
        ("def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point"),
        ("assert add(object(), 1) == 3", "cannot be handed"),
    ],
)
async def test_tests_that_cannot_be_run_are_the_graders_fault(
    desk: Desk, test: str, said: str
) -> None:
    with pytest.raises(GradingFaultError, match=said) as caught:
        await desk.grade(of_tests(test=test), ADD)
    assert (caught.value.kind, caught.value.client) == (GraderErrorKind.CODE, True)


async def test_a_task_without_its_tests_is_the_datasets_fault(desk: Desk) -> None:
    definition = {"type": "tests", "test_list": "{{item.tests}}"}
    with pytest.raises(GradingFaultError) as caught:
        await desk.grade(definition, ADD, item={"tests": "assert True"})
    assert caught.value.kind is GraderErrorKind.REFERENCE


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" + "x" * 1_000_000 + "\n```",
        "```python\n" + "(" * 200_000 + "\n```",
        "```python\n" + "-" * 200_000 + "1\n```",
        "```" * 300_000,
        "```" + "a" * 1_000_000 + "`",
        "```" + " " * 1_000_000 + "`\n```",
        "a" * 1_000_000 + "\n" + " " * 1_000_000,
        "```python\n\x00\x1b[2J\u202e\ud800\n```",
        "[" * 100_000 + "]" * 100_000,
    ],
)
async def test_hostile_responses_score_0(desk: Desk, text: str) -> None:
    found = await desk.grade(of_tests(), text)
    assert found.value == 0.0
    assert found.kind in (OutcomeKind.FORMAT, OutcomeKind.REASONING)


async def test_what_code_says_of_itself_is_text_that_can_be_stored(desk: Desk) -> None:
    code = "```python\ndef add(a, b): raise ValueError('\\ud800' * 9)\n```"
    found = await desk.grade(of_tests(), code)
    assert found.value == 0.0
    assert "ValueError: ?????????" in found.explanation


async def test_code_is_run_as_it_stands(desk: Desk) -> None:
    code = "```python\ndef add(a: int, b: int): return a + b\nkind = add.__annotations__['a']\n```"
    assert (await desk.grade(of_tests(test="assert kind == int"), code)).value == 1.0


async def test_files_of_the_agent_are_tested_as_a_module(desk: Desk) -> None:
    agent = desk.rooms.leave(
        "a",
        {
            "/work/src/calc.py": b"from helper import plus\ndef add(a, b): return plus(a, b)",
            "/work/src/helper.py": b"def plus(a, b): return a + b",
        },
    )
    definition = of_tests(
        source="files",
        folder="/work/src",
        file="calc.py",
        test="from calc import add\nassert add(1, 2) == 3",
    )
    assert (await desk.grade(definition, "", agent=agent)).value == 1.0
    missing = await desk.grade({**definition, "file": "gone.py"}, "", agent=agent)
    assert (missing.value, missing.kind) == (0.0, OutcomeKind.REASONING)


async def test_assets_are_there_for_the_code_of_a_response(desk: Desk) -> None:
    code = "```python\nLINES = open('data/x.txt').read().split()\ndef add(a, b): return int(LINES[a])\n```"
    definition = of_tests(
        assets={"data/x.txt": "0 {{item.answer}} 2"}, test="assert add(1, 0) == 72"
    )
    assert (await desk.grade(definition, code)).value == 1.0


async def test_assets_lie_over_the_agents_files_and_what_decides_tests_is_removed(
    desk: Desk,
) -> None:
    agent = desk.rooms.leave(
        "a",
        {
            "/work/check.sh": b"exit 0",
            "/work/conftest.py": b"",
            "/work/pkg/conftest.py": b"",
            "/work/answer": b"41",
        },
    )
    definition = {
        "type": "tests",
        "source": "files",
        "command": ["sh", "check.sh"],
        "assets": {
            "check.sh": "test ! -e conftest.py && test ! -e pkg/conftest.py && grep -qx {{item.n}} answer"
        },
    }
    right = await desk.grade(definition, "", agent=agent, item={"n": 41})
    wrong = await desk.grade(definition, "", agent=agent, item={"n": 42})
    assert (right.value, wrong.value) == (1.0, 0.0)


async def test_a_command_that_must_report_passes_only_by_its_report(desk: Desk) -> None:
    agent = desk.rooms.leave("a", {"/work/x": b""})
    report = '<testsuite><testcase name="a"/><testcase name="b">{}</testcase></testsuite>'

    async def graded(script: str, **fields: object) -> Graded:
        definition = {
            "type": "tests",
            "source": "files",
            "command": ["sh", "run.sh", "{report}"],
            "assets": {"run.sh": script},
            **fields,
        }
        return await desk.grade(definition, "", agent=agent)

    good = f"echo '{report.format('')}' > $1"
    bad = f"echo '{report.format('<failure/>')}' > $1; exit 1"
    assert (await graded(good)).value == 1.0
    assert (await graded("exit 0")).value == 0.0
    assert (await graded(f"{good}; exit 1")).value == 0.0
    assert (await graded(bad)).value == 0.0
    assert (await graded(bad, per_test=True)).value == 0.5


def test_a_command_whose_tests_could_be_ended_early_must_report() -> None:
    found = problems({"type": "tests", "source": "files", "command": ["python3", "-m", "pytest"]})
    assert "junitxml={report}" in found["command"]


def test_definitions_of_tests_name_what_is_wrong() -> None:
    found = problems(
        {
            "type": "tests",
            "source": "files",
            "file": "../x.py",
            "test": "{{item..}}",
            "language": "ruby",
        }
    )
    assert set(found) == {"file", "language", "test"}
    assert "test" in problems({"type": "tests"})
    assert "test_list" in problems({"type": "tests", "test_list": "assert {{item.x}}"})
