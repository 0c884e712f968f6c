"""Programs of HumanEval and MBPP, wrong ones made of them, and what plain Python says of either.

One place of a program is changed: an operator, a comparison, a constant, what is returned, a bound by one, or a loop's
end. Some mutants are right all the same; plain Python says so.
"""

import ast
import copy
import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HUMANEVAL = {"type": "tests", "test": "{{item.test}}", "entry_point": "{{item.entry_point}}"}
MBPP = {
    "type": "tests",
    "test": "{{item.test_setup_code}}",
    "test_list": "{{item.test_list}}",
    "entry_point": "{{item.entry_point}}",
}
MEMORY_BYTES = 768 * 1024 * 1024
_OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and its tests."""

    name: str
    code: str
    definition: Mapping[str, object]
    item: dict[str, object]

    def whole(self) -> str:
        """Return code and tests as one program, as the data sets run them."""
        if "test_list" in self.item:
            tests = [str(self.item["test_setup_code"]), *map(str, self.item["test_list"])]  # type: ignore[call-overload]  # a list of texts
            return "\n".join([self.code, *tests])
        return f"{self.code}\n{self.item['test']}\ncheck({self.item['entry_point']})"


def humaneval(folder: Path) -> list[Program]:
    """Read HumanEval: each with its canonical solution."""
    with gzip.open(folder / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        Program(
            name=row["task_id"],
            code=row["prompt"] + row["canonical_solution"],
            definition=HUMANEVAL,
            item={key: row[key] for key in ("test", "entry_point")},
        )
        for row in rows
    ]


def mbpp(folder: Path) -> list[Program]:
    """Read MBPP: each with its solution; the entry point is what the first test calls first."""
    programs = []
    for line in (folder / "mbpp" / "mbpp.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        called = re.search(r"assert\s+\(*(?:set\()?([A-Za-z_]\w*)\(", row["test_list"][0])
        item = {key: row[key] for key in ("test_setup_code", "test_list")}
        item["entry_point"] = called.group(1) if called is not None else ""
        name = f"MBPP/{row['task_id']}"
        programs.append(Program(name=name, code=row["code"], definition=MBPP, item=item))
    return programs


def mutants(programs: list[Program], count: int, rng: random.Random) -> Iterator[Program]:
    """Yield changed programs, each of another place."""
    seen = set()
    while len(seen) < count:
        program = rng.choice(programs)
        code = _mutated(program.code, rng)
        if code is not None and code not in seen:
            seen.add(code)
            yield Program(
                name=f"{program.name} mutant {len(seen)}",
                code=code,
                definition=program.definition,
                item=program.item,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """What plain Python says of a program."""

    passed: bool
    seconds: float
    """Processor time where it passed, else 0."""

    def is_decided(self, limit_seconds: float) -> bool:
        """Whether it is far from the time limit, or fails: only then must others say the same on a busy machine."""
        return not self.passed or self.seconds < limit_seconds / 5


def run_plainly(program: Program, seconds: float) -> Plain:
    """Run code and tests in one process of plain Python, with a limit of processor time."""
    started = (
        "import os, resource\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES},) * 2)\n"
        f"resource.setrlimit(resource.RLIMIT_CPU, ({seconds:.0f},) * 2)\n"
        f"exec(compile({program.whole()!r}, '<program>', 'exec'), {{'__name__': 'program'}})\n"
        "os.write(2, b'\\n%f' % time.process_time())\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", f"import time\n{started}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=20 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Plain(passed=False, seconds=0.0)
    if done.returncode:
        return Plain(passed=False, seconds=0.0)
    return Plain(passed=True, seconds=float(done.stderr.splitlines()[-1]))


def _mutated(code: str, rng: random.Random) -> str | None:
    tree = copy.deepcopy(ast.parse(code))
    places = [change for node in ast.walk(tree) for change in _changes(node, rng)]
    if not places:
        return None
    rng.choice(places)()
    return ast.unparse(ast.fix_missing_locations(tree))


def _changes(node: ast.AST, rng: random.Random) -> list[Callable[[], None]]:
    """Return what can be changed at a node."""
    found: list[Callable[[], None]] = []

    def put(where: ast.AST, field: str, value: object) -> None:
        found.append(lambda: setattr(where, field, value))

    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        put(node, "op", _OPERATORS[type(node.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        put(node, "ops", [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            put(node, "value", not node.value)
        elif isinstance(node.value, int) and abs(node.value) < 1000:
            put(node, "value", node.value + rng.choice((-1, 1)))
    if isinstance(node, ast.BoolOp):
        put(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.Return) and node.value is not None:
        put(node, "value", None)
        put(node, "value", ast.UnaryOp(op=ast.Not(), operand=node.value))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        last = node.args[-1]
        less = ast.BinOp(left=last, op=ast.Sub(), right=ast.Constant(value=1))
        put(node, "args", [*node.args[:-1], less])
    if isinstance(node, ast.While):
        put(node, "test", ast.Constant(value=True))
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        put(node, "test", ast.UnaryOp(op=ast.Not(), operand=node.test))
    return found
