"""Responses made to hang a grader, to fill its memory or to make it fail, and the kinds that grade text alone.

Run as a program it grades each response with each kind and prints what that took, as JSON.
"""

import asyncio
import json
import resource
import sys
import time
from datetime import UTC, datetime

MEGABYTE = 1_000_000

HOSTILE = {
    "power tower": "Final Answer: 9**9**9**9",
    "latex tower": "\\boxed{9^{9^{9^{9}}}}",
    "factorial": "\\boxed{100000!}",
    "factorial of factorials": "\\boxed{(((9!)!)!)!}",
    "binomial": "\\boxed{\\binom{99999999}{44444444}}",
    "root of a large number": "\\boxed{\\sqrt{" + "9" * 300 + "}}",
    "power of a sum": "\\boxed{(a+b+c+d+f+g)^{60}}",
    "product of sums": "\\boxed{" + "(a+b+c)" * 40 + "}",
    "many roots": "\\boxed{" + "+".join(f"\\sqrt{{{n}}}" for n in range(2, 60)) + "}",
    "sum of reciprocals": "\\boxed{" + "+".join(f"\\frac{{1}}{{x+{n}}}" for n in range(30)) + "}",
    "a million digits": "9" * MEGABYTE,
    "a million digits, stated": "Final Answer: " + "9" * MEGABYTE,
    "a million digits behind a point": "Final Answer: 0." + "3" * MEGABYTE,
    "a million groups of thousands": "Final Answer: 1" + ",000" * (MEGABYTE // 4),
    "nested fractions": "\\boxed{" + "\\frac{1}{" * 300 + "1" + "}" * 300 + "}",
    "nested boxes": "\\boxed{" * 30_000 + "72" + "}" * 30_000,
    "nested brackets": "Final Answer: " + "(" * 400_000 + "72" + ")" * 400_000,
    "nested lists": "Final Answer: " + "[1, " * 400 + "2" + "]" * 400,
    "open braces": "Final Answer: " + "{" * 5000,
    "backslashes": "\\boxed{" + "\\" * MEGABYTE,
    "dollars": "$" * MEGABYTE,
    "control characters": "Final Answer: \x00\x1b[2J\x07" + "\x00" * MEGABYTE,
    "right to left": "Final Answer: \u202e27",
    "right to left, long": "Final Answer: " + "\u202e\u202d27" * 200_000,
    "zero width": "Final Answer: " + "7\u200b\u200c\u200d\ufeff2" * 100_000,
    "combining marks": "Final Answer: 72" + "\u0301" * 500_000,
    "half surrogates": "Final Answer: 72\ud800\udfff",
    "full-width digits": "Final Answer: " + "\uff17\uff12" * 300_000,
    "arabic digits": "Final Answer: " + "\u0667\u0662" * 300_000,
    "expanding ligatures": "Final Answer: " + "\ufdfa" * 300_000,
    "superscripts": "Final Answer: 7" + "\u00b2" * 500_000,
    "json bomb": '{"answer": ' + "[" * 500_000,
    "json of many keys": '{"answer": {' + ", ".join(f'"k{n}": 1' for n in range(80_000)) + "}}",
    "json of one key, often": "{" + ", ".join('"answer": 72' for _ in range(60_000)) + "}",
    "json with a huge number": '{"answer": ' + "7" * MEGABYTE + "}",
    "json with a huge exponent": '{"answer": 1e999999999}',
    "json with a long escape": '{"answer": "' + "\\u0037" * 150_000 + '"}',
    "json objects": '{"a":' * 100_000,
    "json quotes": '"answer": "' * 90_000,
    "many statements": "Final Answer: 72 " * 60_000,
    "many statements on lines": "Final Answer:\n" * 70_000,
    "many hashes": "#" * MEGABYTE,
    "many boxes": "\\boxed{1" * 120_000,
    "boxes joined": "\\boxed{1} and " * 70_000,
    "many tags": "<answer>" * 120_000,
    "many thoughts": "<think>" * 140_000,
    "many questions": "Question: 1\n" * 80_000,
    "many corrections": "wait, no, " * 100_000,
    "many negations": "not " * 250_000,
    "spaces": "Final Answer:" + " " * MEGABYTE + "x",
    "newlines": "Final Answer:" + "\n" * MEGABYTE + "x",
    "tabs and stars": "Final Answer:" + "\t*" * 500_000,
    "commas": "Final Answer: " + "1, " * 300_000,
    "short list": "Final Answer: " + ", ".join(str(n) for n in range(190)),
    "semicolons": "Final Answer: " + "1;" * 900,
    "sums": "Final Answer: " + "1+" * 900 + "1",
    "sums, long": "so " + "1+" * 400_000 + "1",
    "equals": "so " + "1=" * 400_000 + "1",
    "minus signs": "Final Answer: " + "-" * 1900 + "1",
    "huge exponent": "Final Answer: 1e999999999",
    "huge power": "Final Answer: 10^{999999999}",
    "words": "Final Answer: " + "one " * 250_000,
    "hyphens": "Final Answer: " + "one-" * 250_000 + "one",
    "hundreds": "So it is " + "hundred " * 120_000,
    "chinese numerals": "\u6700\u7ec8\u7b54\u6848\uff1a" + "\u4e00\u4ebf" * 300_000,
    "chinese numerals, short": "\u6700\u7ec8\u7b54\u6848\uff1a" + "\u4e07\u4ebf" * 900,
    "units": "Final Answer: 72 " + "km per " * 140_000,
    "one long word": "a" * MEGABYTE,
    "one long word and a mark": "a" * MEGABYTE + "!",
    "alternating": "ab" * 500_000,
    "quotes": "'\"" * 500_000,
    "markdown": "**" * 500_000,
    "sentences": "It is 7. " * 110_000,
    "colons": "1:" * 500_000,
    "percent signs": "Final Answer: 72" + "%" * MEGABYTE,
    "inequalities": "Final Answer: " + "x < " * 900 + "1",
    "unions": "Final Answer: " + "\\cup".join(["(1,2)"] * 300),
    "matrix": "\\boxed{\\begin{pmatrix}" + "1&" * 900 + "1\\end{pmatrix}}",
}  # fmt: skip
"""By what they attack."""

REFERENCES = ("72", "\\sqrt{2}", "(x+1)^2", "Paris", "A", "{1, 2, 3}", "(1, 2)", "x > 3", "10-12", "28%",
    "y = 2x+1", "3:45 pm")  # fmt: skip
_ANSWER = {"type": "answer", "reference": "72"}
_ALPHABET = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "number"}}}
GRADERS: dict[str, dict[str, object]] = {
    **{f"answer {text}": {"type": "answer", "reference": text} for text in REFERENCES},
    "answer near": {**_ANSWER, "tolerance": {"relative": 0.1}},
    "answer boxed": {**_ANSWER, "extract": "boxed"},
    "answer hash": {**_ANSWER, "extract": "hash"},
    "answer last number": {**_ANSWER, "extract": "last_number"},
    "answer json": {**_ANSWER, "extract": {"json_field": "answer"}},
    "answer pattern": {**_ANSWER, "extract": {"pattern": r"(?:Answer|answer)\W+(\w+)"}},
    "string_check eq": {"type": "string_check", "reference": "72"},
    "string_check ilike": {"type": "string_check", "reference": "72", "operation": "ilike"},
    "efficiency": {"type": "efficiency", "answer": _ANSWER, "penalty": 0.1, "minimum": 0},
    "length": {"type": "length", "answer": _ANSWER, "target": 200, "alpha": 0.001},
    "format": {"type": "format", "must": {"json_schema": {"schema": _ALPHABET}, "tags": {"names": ["answer"]}}},
    "grounding": {"type": "grounding"},
    "safety": {"type": "safety", "forbidden": [{"name": "n", "pattern": r"\b(?:\d[ -]?){15}\d\b"}]},
    "step": {"type": "step", "rules": [{"when": {"ok": True}, "reward": 0.1}], "final": _ANSWER},
    "tool_use": {"type": "tool_use", "expected": ["calculator"]},
    **{
        f"text_similarity {metric}": {"type": "text_similarity", "reference": "It is 72.", "evaluation_metric": metric}
        for metric in ("fuzzy_match", "bleu", "gleu", "meteor", "cosine", "rouge_1", "rouge_l")
    },
    "multi": {
        "type": "multi",
        "graders": {"accuracy": _ANSWER, "form": {"type": "format", "must": "json"}},
        "calculate_output": "accuracy * form",
    },
}  # fmt: skip
"""The kinds that need nothing but the record."""
MAX_SHORT = 20_000
SHORT_ONLY = frozenset(f"answer {text}" for text in REFERENCES[4:]) | {
    "efficiency",
    "length",
    "step",
}
"""What would only repeat the work on responses longer than that."""


async def _grade_all(names: list[str]) -> dict[str, object]:
    from grader.answer.symbolic import SymbolicProcess
    from grader.definition import Definitions
    from grader.desk import GradingDesk
    from grader.instruments.all import Instruments

    symbolic = SymbolicProcess(timeout_seconds=0.3)
    desk = GradingDesk(Definitions(package_version="1"), Instruments(symbolic=symbolic))
    for name in GRADERS:
        await desk.judge(_record("Final Answer: 72"), json.dumps(GRADERS[name]))
    before = _peak_megabytes()
    took: list[tuple[float, str, str, str]] = []
    failed: list[tuple[str, str, str]] = []
    for attack in names:
        record = _record(HOSTILE[attack])
        long = len(HOSTILE[attack]) > MAX_SHORT
        for name, definition in GRADERS.items():
            if long and name in SHORT_ONLY:
                continue
            begun = time.monotonic()
            try:
                outcome = (await desk.judge(record, json.dumps(definition))).outcome
                took.append((time.monotonic() - begun, attack, name, type(outcome).__name__))
            except Exception as err:
                failed.append((attack, name, repr(err)[:300]))
    symbolic.close()
    slowest = sorted(took, reverse=True)[:10]
    grown = _peak_megabytes() - before
    return {"gradings": len(took), "slowest": slowest, "failed": failed, "megabytes": grown}


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _record(text: str) -> object:
    from trajectory.types import (
        ChatMessage,
        Role,
        RolloutRecord,
        SamplingParams,
        StopReason,
        Task,
        TokenRecord,
    )

    asked = ChatMessage(role=Role.USER, content=("How many clips?",))
    return RolloutRecord(
        task=Task(task_id="t", messages=(asked,), reference={"answer": "72"}),
        messages=(asked, ChatMessage(role=Role.ASSISTANT, content=(text,))),
        tokens=TokenRecord(rows=(), sampling=SamplingParams()),
        stop_reason=StopReason.COMPLETED,
        sandbox_id="",
        turns=(),
        grader_json="{}",
        start_time=datetime(2026, 1, 31, tzinfo=UTC),
        end_time=datetime(2026, 1, 31, tzinfo=UTC),
    )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_grade_all(sys.argv[1:] or list(HOSTILE)))))
