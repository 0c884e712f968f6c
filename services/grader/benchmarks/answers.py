"""Answers judged right, and answers per second, against math-verify and lm-eval in the same run.

    python services/grader/benchmarks/answers.py [--rounds 3] [--json FILE]

Accuracy is on the shared cases (HONE_SHARED, default ../shared beside the checkout). math-verify parses reference and
response with its default extractors, the reference as LaTeX where the case has LaTeX. lm-eval is the filter
flexible-extract of its task gsm8k with that task's comparison, in an environment of its own, made on first use. Speed
is on one core, in this process, rounds of Hone and math-verify alternating, medians; LaTeX rows are those that the
cases mark, with the answers of MATH-500 boxed, each against itself and against the next.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from math_verify import parse, verify

from grader.answer.judge import judge_answer
from grader.answer.symbolic import SymbolicProcess
from trajectory.types import OutcomeKind

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("HONE_SHARED") or ROOT.parent / "shared")
PEER = Path(__file__).parent / "support" / "lm_eval_peer.py"
PEER_PYTHON = ROOT / ".venv-lm-eval" / "bin" / "python"
AIM_PLAIN, AIM_LATEX = 2000, 200

Row = dict[str, object]
Verdict = tuple[bool, bool]
"""Whether the answer counts as right, and whether one was found."""


def _text(row: Row, key: str) -> str:
    value = row[key]
    assert isinstance(value, str)
    return value


def judge_by_hone(row: Row, symbolic: SymbolicProcess) -> Verdict:
    """Judge as the grader kind `answer` does."""
    found = judge_answer(_text(row, "prediction_text"), _text(row, "gold"), symbolic)
    return found.correct, not (found.kind is OutcomeKind.FORMAT and found.extracted is None)


def judge_by_math_verify(row: Row) -> Verdict:
    """Judge with math-verify alone."""
    gold = _text(row, "gold")
    wanted = parse(f"${gold}$" if row["latex"] and "$" not in gold else gold)
    found = parse(_text(row, "prediction_text"))
    return verify(wanted, found), bool(found)


def judge_by_lm_eval(rows: list[Row]) -> tuple[str, list[Verdict], float]:
    """Judge with lm-eval's flexible-extract; returns its version, the verdicts and the seconds."""
    subprocess.run([ROOT / "tools" / "make" / "setup_lm_eval.sh"], check=True)
    asked = json.dumps([[row["prediction_text"], row["gold"]] for row in rows])
    done = subprocess.run(
        [PEER_PYTHON, PEER], input=asked, capture_output=True, text=True, check=True, timeout=300
    )
    answer = json.loads(done.stdout)
    return answer["version"], [(c, f) for c, f in answer["verdicts"]], answer["seconds"]


def accuracy(rows: list[Row], verdicts: list[Verdict]) -> dict[str, object]:
    """Count what was judged as the cases say."""
    judged = list(zip(rows, verdicts, strict=True))
    right = [row["expected_equal"] == correct for row, (correct, _) in judged]
    core = [ok for ok, row in zip(right, rows, strict=True) if row["tier"] == "core"]
    silent = [found for row, (_, found) in judged if row["verdict"] == "no_answer"]
    return {
        "core": f"{sum(core)}/{len(core)}",
        "core_share": sum(core) / len(core),
        "all": f"{sum(right)}/{len(right)}",
        "all_share": sum(right) / len(right),
        "wrong_accepts": sum(c and not row["expected_equal"] for row, (c, _) in judged),
        "wrong_rejects": sum(bool(row["expected_equal"]) and not c for row, (c, _) in judged),
        "no_answer_seen": f"{len(silent) - sum(silent)}/{len(silent)}",
    }


def speed(judge: Callable[[Row], object], rows: list[Row]) -> float:
    """Return rows judged per second."""
    begun = time.perf_counter()
    for row in rows:
        judge(row)
    return len(rows) / (time.perf_counter() - begun)


def _latex_rows(rows: list[Row]) -> list[Row]:
    made = [row for row in rows if row["latex"]]
    path = SHARED / "data" / "math500" / "test.jsonl"
    if path.exists():
        answers = [
            json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()
        ]
        answers = [answer for answer in answers if "\\" in answer]
        for gold, other in zip(answers, answers[1:] + answers[:1], strict=True):
            for stated in (gold, other):
                made.append(
                    {"prediction_text": f"\\boxed{{{stated}}}", "gold": gold, "latex": True}
                )
    return made


def main() -> None:
    """Measure, print the tables and write the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    logging.disable(logging.CRITICAL)
    cases = SHARED / "cases" / "answers.jsonl"
    if not cases.exists():
        print(f"not measured: {cases} is not there; set HONE_SHARED")
        return
    rows: list[Row] = [json.loads(line) for line in cases.read_text(encoding="utf-8").splitlines()]
    # Nothing is remembered, so that every round does the work.
    symbolic = SymbolicProcess(remembered=0)
    try:
        figures = _measured(rows, symbolic, chosen.rounds)
    finally:
        symbolic.close()
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _measured(rows: list[Row], symbolic: SymbolicProcess, rounds: int) -> dict[str, object]:
    lm_version, lm_verdicts, lm_seconds = judge_by_lm_eval(rows)
    names = (
        "Hone",
        f"math-verify {version('math-verify')}",
        f"lm-eval {lm_version} flexible-extract",
    )
    table = {
        names[0]: accuracy(rows, [judge_by_hone(row, symbolic) for row in rows]),
        names[1]: accuracy(rows, [judge_by_math_verify(row) for row in rows]),
        names[2]: accuracy(rows, lm_verdicts),
    }
    print(
        f"{'':34}{'core':>10}{'all':>10}{'wrong accepts':>15}{'wrong rejects':>15}{'no answer seen':>16}"
    )
    for name, found in table.items():
        print(
            f"{name:34}{found['core']:>10}{found['all']:>10}{found['wrong_accepts']:>15}"
            f"{found['wrong_rejects']:>15}{found['no_answer_seen']:>16}"
        )
    speeds: dict[str, dict[str, float]] = {}
    plain = [row for row in rows if not row["latex"]]
    print(
        f"\n{'answers per second, one core':34}{'Hone':>10}{'math-verify':>14}{'ratio':>8}{'aim':>8}"
    )
    for kind, chosen, aim in (("plain", plain, AIM_PLAIN), ("LaTeX", _latex_rows(rows), AIM_LATEX)):
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(speed(lambda row: judge_by_hone(row, symbolic), chosen))
            theirs.append(speed(judge_by_math_verify, chosen))
        hone, peer = statistics.median(ours), statistics.median(theirs)
        speeds[kind] = {
            "hone": hone,
            "math_verify": peer,
            "ratio": hone / peer,
            "rows": len(chosen),
        }
        label = f"{kind} ({len(chosen)} rows)"
        print(f"{label:34}{hone:>10.0f}{peer:>14.0f}{hone / peer:>8.1f}{aim:>8}")
    lm_speed = len(rows) / lm_seconds
    print(f"{'lm-eval, all rows':34}{lm_speed:>10.0f}")
    return {"accuracy": table, "answers_per_second": speeds, "lm_eval_per_second": lm_speed}


if __name__ == "__main__":
    main()
