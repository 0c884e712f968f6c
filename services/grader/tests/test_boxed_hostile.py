"""Code that cheats, hangs or destroys, in real grading boxes: it scores 0 with a kind, soon, and forges nothing."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from hostile_code import HOSTILE
from real_rooms import RealSuite, real, service

from grader.definition import Definitions
from grader.instruments.all import Instruments
from grader.instruments.boxes import Origin
from grader.results import Graded, GradingFaultError
from grader.sample import sample_of
from trajectory.types import OutcomeKind

__all__ = ["real", "service"]

pytestmark = pytest.mark.slow

SECONDS = 30.0
"""A hostile grading may take this long: the time limit below, the grace, and a busy machine."""

CHECK = {
    "type": "tests",
    "entry_point": "add",
    "setup": "ZERO = 0",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert abs(candidate(2, 2) - 4) < 1e-6",
    "timeout_seconds": 4,
}


async def graded(
    suite: RealSuite,
    make_record: Callable[..., object],
    definition: dict[str, object],
    text: str = "",
    origin: Origin | None = None,
) -> Graded:
    (member,) = Definitions(package_version="1").parse(json.dumps(definition)).combination.members
    sample = sample_of(make_record(text))  # type: ignore[arg-type]
    async with suite.rooms.room(origin) as room:
        return await member.grader.grade(sample, Instruments(symbolic=None, boxes=room))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HOSTILE)
async def test_code_that_is_wrong_scores_0_whatever_it_does(
    real: RealSuite, make_record: Callable[..., object], name: str
) -> None:
    begun = time.monotonic()
    found = await graded(real, make_record, CHECK, f"```python{HOSTILE[name]}```")
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING), found.explanation
    assert time.monotonic() - begun < SECONDS


async def test_code_that_is_right_passes(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    found = await graded(real, make_record, CHECK, "```python\ndef add(a, b): return a + b\n```")
    assert found.value == 1.0, found.explanation


FILE_CHECK = {
    "type": "tests",
    "source": "files",
    "file": "calc.py",
    "test": "from calc import add\nassert add(1, 2) == 3",
    "timeout_seconds": 4,
}
COMMAND_CHECK = {
    "type": "tests",
    "source": "files",
    "command": ["sh", "check.sh"],
    "assets": {"check.sh": 'test "$(python3 calc.py)" = 3'},
    "timeout_seconds": 4,
}
EVIL = "#!/bin/sh\nexit 0\n"
OWN_MODULES = ("json", "sitecustomize", "usercustomize", "os", "types")
LEFT = {
    "takes over Python by its own modules": (
        {
            f"/work/{name}.py": b"import os\nos._exit(0)"
            for name in ("json", "sitecustomize", "usercustomize", "os", "types")
        },
        (),
    ),
    "takes over the loader": (
        {"/etc/ld.so.preload": b"/work/evil.so", "/work/evil.so": b"x"},
        ("cp -r /work /root/w; ln -sfn /work/none /lib64; true",),
    ),
    "takes over programs": (
        {"/work/python3": EVIL.encode(), "/work/sh": EVIL.encode()},
        ("chmod +x /work/*; ln -sfn /work /bin",),
    ),
    "leads assets astray": (
        {"/work/other": b"exit 0"},
        ("ln -s /work/other /work/check.sh; ln -s / /work/root",),
    ),
    "puts a folder in the way": ({"/work/check.sh/x": b""}, ()),
    "leaves pipes and devices": (
        {},
        ("mkfifo /work/fifo /work/report.xml; ln -s /dev/zero /work/zero",),
    ),
}


@pytest.mark.parametrize("definition", [FILE_CHECK, COMMAND_CHECK], ids=["file", "command"])
@pytest.mark.parametrize("name", LEFT)
async def test_what_an_agent_left_changes_no_verdict(
    real: RealSuite, make_record: Callable[..., object], name: str, definition: dict[str, object]
) -> None:
    files, commands = LEFT[name]
    for body, value in (("a + b", 1.0), ("a - b", 0.0)):
        calc = f"def add(a, b): return {body}\nif __name__ == '__main__': print(add(1, 2))"
        origin = await real.leave({"/work/calc.py": calc.encode(), **files}, *commands)
        found = await graded(real, make_record, definition, origin=origin)
        if "own modules" in name and definition is COMMAND_CHECK and value:
            continue  # what breaks right code of one's own is no fault of the grader's
        assert found.value == value, found.explanation


async def test_state_is_read_from_outside_whatever_the_agent_left(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    checks = [
        {"path": "/work/out", "equals": "right"},
        {"path": "/work/fifo", "matches": "x"},
        {"path": "/work/zero", "matches": "x"},
        {"path": "/work/passwd", "exists": True},
        {"path": "/work/loop/x", "exists": False},
    ]
    origin = await real.leave(
        {"/work/out": b"right"},
        "mkfifo /work/fifo; ln -s /dev/zero /work/zero; ln -s loop /work/loop",
        "ln -s ../../../../etc/shadow /work/passwd",
    )
    definition = {"type": "state", "checks": checks, "per_check": True}
    begun = time.monotonic()
    found = await graded(real, make_record, definition, origin=origin)
    assert found.value == 3 / 5, found.explanation
    assert time.monotonic() - begun < SECONDS


DIG = "import os\nfor _ in range({}): os.mkdir('d'); os.chdir('d')"
UNFIT = {
    "a link for its folder": "mv /work /x; ln -s /x /work",
    "a file for its folder": "mv /work /x; echo hello >/work",
    "no folder": "mv /work /x",
    "a link that leads nowhere": "mv /work /x; ln -s /work /work",
    "a tree that is deep": f'python3 -c "{DIG.format(1500)}"',
    "a tree that is too deep": f'python3 -c "{DIG.format(3000)}"',
    "no room for files": "cd /work; seq 100000 | xargs touch 2>/dev/null; true",
    "no room for bytes": "cat /dev/zero >/work/zero 2>/dev/null; true",
    "what may not be read": "chmod 0 /work/calc.py /work; true",
    "strange names": "cd /work; touch $(printf 'a\\377b') $(printf 'a\\nb') -- -rf; true",
}


@pytest.mark.parametrize("definition", [FILE_CHECK, COMMAND_CHECK], ids=["file", "command"])
@pytest.mark.parametrize("name", UNFIT)
async def test_an_agent_that_leaves_what_is_unfit_breaks_no_grading(
    real: RealSuite, make_record: Callable[..., object], name: str, definition: dict[str, object]
) -> None:
    origin = await real.leave({"/work/calc.py": b"def add(a, b): return 0"}, f"{UNFIT[name]}\ntrue")
    found = await graded(real, make_record, definition, origin=origin)
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING), found.explanation


async def test_a_program_that_the_agent_did_not_leave_is_its_own_doing(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    definition = {"type": "tests", "source": "files", "command": ["./prog"]}
    found = await graded(real, make_record, definition, origin=await real.leave({}))
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING)
    unknown = {**definition, "command": ["no-such-program"]}
    with pytest.raises(GradingFaultError, match="cannot be started"):
        await graded(real, make_record, unknown, origin=await real.leave({}))


async def test_an_agent_that_leaves_more_than_fits_scores_0_and_breaks_no_grading(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    origin = await real.leave(
        {"/work/calc.py": b"def add(a, b): return a + b"},
        "head -c 100000000 /dev/zero >/work/much",
    )
    found = await graded(real, make_record, {**FILE_CHECK, "memory_mb": 128}, origin=origin)
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING)
    assert "cannot be taken" in found.explanation


async def test_code_that_ends_itself_where_an_error_is_expected_does_not_pass(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    test = "try:\n    add(1, None)\nexcept Exception: pass\nelse: assert False"
    code = "```python\nimport os\ndef add(a, b): os._exit(0)\n```"
    found = await graded(real, make_record, {**CHECK, "test": test}, code)
    assert found.value == 0.0


async def test_commands_of_state_run_in_what_the_agent_left(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    checks = [
        {"command": ["cat", "/root/x"], "stdout_matches": "^left$"},
        {"command": ["sh", "-c", "test -e /work/none"], "exit_code": 1},
        {"command": ["sleep", "60"]},
    ]
    definition = {"type": "state", "checks": checks, "per_check": True, "timeout_seconds": 2}
    origin = await real.leave({"/root/x": b"left\n"})
    found = await graded(real, make_record, definition, origin=origin)
    assert found.value == 2 / 3, found.explanation


async def test_a_command_is_timed_against_another(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    definition = {
        "type": "performance",
        "tests": {"source": "files", "command": ["sh", "prog.sh"]},
        "command": ["sh", "prog.sh"],
        "reference_command": ["sleep", "0.5"],
        "runs": 3,
    }
    for program, low, high in (("sleep 1.5", 0.1, 0.5), ("true", 1.0, 1.0), ("exit 1", 0.0, 0.0)):
        origin = await real.leave({"/work/prog.sh": program.encode()})
        found = await graded(real, make_record, definition, origin=origin)
        assert low <= found.value <= high, found.explanation


SUMS = {
    "type": "performance",
    "tests": {"test": "assert total(10) == 45"},
    "call": "assert total(100_000) == 4999950000",
    "reference": "def total(n):\n    return sum(range(n))",
    "runs": 5,
}


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Four processes for each processor that take all they get, each in a session: Linux shares between those."""
    spin = [sys.executable, "-c", "while True: pass"]
    count = 4 * (os.cpu_count() or 1)
    processes = [subprocess.Popen(spin, start_new_session=True) for _ in range(count)]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("busy_machine")
async def test_a_busy_machine_changes_no_price(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    fast = "```python\ndef total(n): return n * (n - 1) // 2\n```"
    slow = "```python\ndef total(n): return sum(x for x in range(n) for _ in range(8)) // 8\n```"
    found = await graded(real, make_record, SUMS, fast)
    assert found.value == 1.0, found.explanation
    found = await graded(real, make_record, SUMS, slow)
    assert 0.025 < found.value < 0.1, found.explanation  # by the clock alone mostly less
    assert found.parts["spread"] < 0.5, found.explanation  # and unsteady


async def test_performance_cannot_be_gained_by_waiting_for_a_processor(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    code = (
        "import os\n"
        "def total(n):\n"
        "    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "    result, answer = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        found = sum(x for x in range(n) for _ in range(8)) // 8\n"
        "        os.write(answer, str(found).encode())\n"
        "        os._exit(0)\n"
        "    os.nice(19)\n"
        "    os.set_blocking(result, False)\n"
        "    while True:\n"
        "        try: return int(os.read(result, 99))\n"
        "        except BlockingIOError: pass\n"
    )
    found = await graded(real, make_record, SUMS, f"```python\n{code}```")
    assert 0.0 < found.value < 0.1, found.explanation  # about 0.05 without the trick


async def test_performance_cannot_be_gained_from_what_an_earlier_run_left(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    code = (
        "import os\n"
        "def total(n):\n"
        "    if n > 10 and os.path.exists('/work/kept'):\n"
        "        return int(open('/work/kept').read())\n"
        "    found = sum(x for x in range(n) for _ in range(8)) // 8\n"
        "    if n > 10:\n"
        "        open('/work/kept', 'w').write(str(found))\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            while True: pass\n"
        "    return found\n"
    )
    definition = {**SUMS, "call": "assert total(200_000) == 19999900000"}
    found = await graded(real, make_record, definition, f"```python\n{code}```")
    assert found.value < 0.9, found.explanation


async def test_performance_cannot_be_gained_from_modules_that_the_reference_imports(
    real: RealSuite, make_record: Callable[..., object]
) -> None:
    definition = {
        **SUMS,
        "tests": {"source": "files", "file": "calc.py", "test": "assert total(10) == 45"},
        "reference": f"import heapq\n{SUMS['reference']}",
        "runs": 1,
    }
    files = {
        "/work/calc.py": b"def total(n): return sum(x for x in range(n) for _ in range(8)) // 8",
        # What the reference imports, in the box's folder: it would make the reference slow.
        "/work/heapq.py": b"import time\ntime.sleep(1)",
    }
    found = await graded(real, make_record, definition, origin=await real.leave(files))
    assert 0.0 < found.value < 0.5, found.explanation


OBJECT = "import os, time\nclass X:\n    def __repr__(self): {}\n    __str__ = __repr__\ndef add(a, b): return X()"


@pytest.mark.parametrize("what", ["os._exit(0)", "time.sleep(60)", "raise SystemExit", "return 3"])
@pytest.mark.parametrize("test", ["assert r == 3, r", "{}[r]", "raise KeyboardInterrupt(r)"])
async def test_an_error_that_shows_an_object_of_the_codes_is_no_fault_and_ends_in_time(
    real: RealSuite, make_record: Callable[..., object], what: str, test: str
) -> None:
    definition = {**CHECK, "test": f"r = add(1, 2)\n{test}", "timeout_seconds": 1}
    begun = time.monotonic()
    found = await graded(real, make_record, definition, f"```python\n{OBJECT.format(what)}\n```")
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING), found.explanation
    assert time.monotonic() - begun < 8


TIMED = {
    "type": "performance",
    "tests": {"entry_point": "add", "test": "assert callable(add)"},
    "call": "assert add(1, 2) == 3, add(1, 2)",
    "reference": "def add(a, b): return 3",
    "runs": 1,
}


@pytest.mark.parametrize(
    "code",
    [
        OBJECT.format("os._exit(0)"),
        "import os, resource\ndef add(a, b):\n"
        "    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))\n    return 3",
    ],
    ids=["ends itself as it is shown", "takes the judging process's descriptors"],
)
async def test_code_cannot_break_its_timing(
    real: RealSuite, make_record: Callable[..., object], code: str
) -> None:
    found = await graded(real, make_record, TIMED, f"```python\n{code}\n```")
    assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING), found.explanation
