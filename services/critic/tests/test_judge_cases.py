"""Every row of the shared judge cases, exactly."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from critic.verdicts.binary import BinaryGrammar
from critic.verdicts.grammar import Grammar
from critic.verdicts.pairwise import PairwiseGrammar
from critic.verdicts.reader import UnreadableError, read
from critic.verdicts.score import ScoreGrammar

CASES = (
    Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
    / "cases"
    / "judges.jsonl"
)
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
