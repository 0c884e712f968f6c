"""Every row of the shared judge cases, exactly."""

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from critic.verdicts.binary import BinaryGrammar
from critic.verdicts.grammar import Grammar
from critic.verdicts.pairwise import PairwiseGrammar
from critic.verdicts.reader import UnreadableError, read
from critic.verdicts.score import ScoreGrammar

SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
CASES = SHARED / "cases" / "judges.jsonl"
HANNA = SHARED / "data" / "hanna" / "user_study.csv"
GRAMMARS: dict[str, Grammar[Any]] = {
    "pairwise": PairwiseGrammar(ties_allowed=True),
    "binary": BinaryGrammar(),
    "score": ScoreGrammar(),
}


@pytest.mark.skipif(not CASES.exists(), reason=f"{CASES} is not there; set HONE_SHARED")
def test_every_shared_case_is_read_as_expected() -> None:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    wrong = []
    for row in map(json.loads, lines):
        expected = None if row["expected"] == "invalid" else row["expected"]
        flagged = False
        try:
            reading = read(row["text"], GRAMMARS[row["kind"]])
            found, flagged = reading.verdict, reading.contradicted
        except UnreadableError:
            found = None
        if found != expected or flagged != (row.get("flag") == "contradiction"):
            wrong.append((row["id"], row["text"], expected, found, flagged))
    assert len(lines) >= 38
    assert wrong == []


@pytest.mark.skipif(not HANNA.exists(), reason=f"{HANNA} is not there; set HONE_SHARED")
def test_ratings_that_models_gave_to_stories_are_read_and_none_wrongly() -> None:
    with HANNA.open(encoding="utf-8", newline="") as file:
        texts = {row["Input.explanation"] for row in csv.DictReader(file)}
    right = 0
    for text in sorted(texts):
        begun = re.match(r"\s*(?:I would rate th(?:is|e) story a )?([0-9.]*[0-9])", text)
        try:
            found = read(text, ScoreGrammar(low=1, high=5)).verdict
        except UnreadableError:
            continue
        assert begun is not None and found == float(begun[1]), text
        right += 1
    print(f"{right} of {len(texts)} ratings read, none wrongly")
    assert right / len(texts) >= 0.95
