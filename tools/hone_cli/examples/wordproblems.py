"""Word problems of two to four steps for an agent with a calculator, and honest traces that solve them.

A problem is a product (so many boxes of so many things) to which things happen; text and expression are built piece by
piece from the same numbers, so they cannot drift apart. No two problems of one `ProblemSource` share their expression,
so held-out tasks are new problems and not only new names.

What has to be learned is which operations a text asks for, and that one call can hold them all: the calculator does the
arithmetic. There are more words and shapes than thirty steps of imitation can teach, so rewards have something to add.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hone_cli.examples.arithmetic import Step, steps_of
from hone_cli.examples.jobs import write_jobs

Style = Literal["whole", "stepwise"]
"""How a trace solves a problem: one call for the whole expression, or one call per step."""

TOOL = "calculator"
NUM_TASKS, NUM_HELD_OUT, NUM_TRACES = 400, 200, 480
LARGEST = 400
"""Results on the way stay within 1 and this."""

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Emma", "Finn", "Hugo", "Iris", "Jack", "Kim", "Leo", "Maya", "Noah", "Olga",
         "Paul", "Rosa", "Sam", "Tina", "Vera", "Will")  # fmt: skip
ITEMS = ("apples", "beads", "books", "buttons", "cards", "coins", "cups", "eggs", "keys", "lemons", "nuts", "pears",
         "pens", "plates", "rings", "seeds", "shells", "stamps", "stones", "toys")  # fmt: skip
BOXES = ("bags", "baskets", "boxes", "cases", "crates", "jars", "packs", "trays")

OPENERS = (
    "{name} has {a} {boxes} of {b} {items}",
    "{name} buys {a} {boxes} of {b} {items}",
    "{name} fills {a} {boxes} with {b} {items} each",
)
MORE = ("gets {x} more", "finds {x} more", "buys {x} more")
LESS = ("loses {x}", "sells {x}", "gives away {x}")
MORE_TIMES = ("gets {x} {boxes} of {y} more", "buys {x} {boxes} of {y} more")
LESS_TIMES = ("gives {x} friends {y} each", "sells {x} {boxes} of {y}")
QUESTIONS = ("How many {items} does {name} have now?", "How many {items} are there now?")

SHAPES: Sequence[tuple[tuple[str, ...], int]] = (
    (("+",), 3),
    (("-",), 3),
    (("+", "-"), 2),
    (("-", "+"), 2),
    (("-", "-"), 2),
    (("+*",), 3),
    (("-*",), 3),
    (("+*", "-"), 2),
    (("-*", "+"), 2),
)
"""What happens to the boxes, and how often: a sign alone takes one step, with a star two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One word problem."""

    text: str
    expression: str
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        """The value of the expression."""
        return self.steps[-1].result


class ProblemSource:
    """Draws problems, none of them twice."""

    def __init__(self, rng: random.Random) -> None:
        """Draws from `rng`."""
        self._rng = rng
        self._seen: set[str] = set()

    def draw(self) -> Problem:
        """Returns a problem whose expression was not drawn before."""
        shapes, weights = zip(*SHAPES, strict=True)
        while True:
            problem = self._build(self._rng.choices(shapes, weights)[0])
            sound = all(1 <= step.result <= LARGEST for step in problem.steps)
            if sound and problem.expression not in self._seen:
                self._seen.add(problem.expression)
                return problem

    def _build(self, shape: tuple[str, ...]) -> Problem:
        rng = self._rng
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        name, items = rng.choice(NAMES), rng.choice(ITEMS)
        boxes, others = rng.sample(BOXES, 2)
        expression = f"{a}*{b}"
        parts = [rng.choice(OPENERS).format(name=name, a=a, boxes=boxes, b=b, items=items)]
        for change in shape:
            sign, times = change[0], change.endswith("*")
            x, y = (rng.randint(2, 6), rng.randint(2, 9)) if times else (rng.randint(2, 30), 0)
            forms = {
                "+": MORE, "-": LESS, "+*": MORE_TIMES, "-*": LESS_TIMES,
            }[change]  # fmt: skip
            parts.append(rng.choice(forms).format(x=x, y=y, boxes=others))
            expression += f"{sign}{x}*{y}" if times else f"{sign}{x}"
        story = ", ".join(parts[:-1]) + " and " + parts[-1]
        question = rng.choice(QUESTIONS).format(items=items, name=name)
        return Problem(
            text=f"{story}. {question}", expression=expression, steps=steps_of(expression)
        )


def task_row(problem: Problem, task_id: str) -> dict[str, Any]:
    """Returns the problem as a task: what the agent sees, and what only the grader sees."""
    return {
        "id": task_id,
        "messages": [{"role": "user", "content": problem.text}],
        "answer": str(problem.answer),
        "steps": len(problem.steps),
        "min_calls": 1,
    }


def trace_row(problem: Problem, style: Style) -> dict[str, Any]:
    """Returns a conversation that solves the problem with no redundant call."""
    whole = (Step(problem.expression, problem.answer),)
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem.text}]
    for number, step in enumerate(whole if style == "whole" else problem.steps):
        function = {"name": TOOL, "arguments": json.dumps({"expression": step.expression})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result = str(step.result)
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": result})
    messages.append({"role": "assistant", "content": f"Final Answer: {problem.answer}"})
    return {"messages": messages}


def write_example(folder: Path, seed: int) -> None:
    """Writes tasks, held-out tasks, traces in both styles, and the files of three runs.

    Everything is a function of `seed`; the files of one folder share no problem.
    """
    rng = random.Random(f"hone-wordproblems/{seed}")
    source = ProblemSource(rng)
    held_out = [task_row(source.draw(), f"held-out-{i}") for i in range(NUM_HELD_OUT)]
    tasks = [task_row(source.draw(), f"task-{i}") for i in range(NUM_TASKS)]
    styles: list[Style] = ["whole", "stepwise"]
    traces = [trace_row(source.draw(), styles[i % 2]) for i in range(NUM_TRACES)]
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "heldout.jsonl", held_out)
    write_jsonl(folder / "tasks.jsonl", tasks)
    write_jsonl(folder / "sft.jsonl", traces)
    write_jobs(folder, seed)


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes one JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
