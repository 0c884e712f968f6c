"""Judges answers as lm-eval does in its task gsm8k, flexible-extract; run with .venv-lm-eval's Python.

Reads a JSON list of [response, reference] from standard input and prints {"version", "verdicts": [[correct, found]],
"seconds"}. The filter, its pattern and the rules of comparison are those that the package ships.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.metrics import exact_match_fn
from lm_eval.filters.extraction import RegexFilter


def main() -> None:
    """Judge all rows."""
    task = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml").read_text())
    flexible = next(f for f in task["filter_list"] if f["name"] == "flexible-extract")
    regex = dict(flexible["filter"][0])
    regex.pop("function")
    metric = dict(task["metric_list"][0])
    rules = {key: metric[key] for key in ("regexes_to_ignore", "ignore_case", "ignore_punctuation")}
    extract = RegexFilter(**regex)
    rows = json.load(sys.stdin)
    verdicts = []
    begun = time.perf_counter()
    for response, reference in rows:
        found = next(iter(extract.apply([[response]], [{}])))[0]
        score = exact_match_fn(predictions=[found], references=[reference], **rules)
        verdicts.append([bool(score["exact_match"]), found != extract.fallback])
    seconds = time.perf_counter() - begun
    version = importlib.metadata.version("lm-eval")
    json.dump({"version": version, "verdicts": verdicts, "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
