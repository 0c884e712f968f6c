"""Strengths from games: the shared case, the equation, and games that have no maximum."""

import json
import math
import os
import random
from fractions import Fraction
from pathlib import Path

import pytest

from hone_cli.bradley_terry import NoStrengths, strengths

SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
CASES = SHARED / "cases" / "losses.json"


@pytest.mark.skipif(not CASES.exists(), reason=f"{CASES} is not there; set HONE_SHARED")
def test_three_players_are_the_shared_case() -> None:
    cases = {case["id"]: case for case in json.loads(CASES.read_text(encoding="utf-8"))["cases"]}
    case = cases["bt_three_player_mle"]
    found = strengths(case["inputs"]["wins_row_beats_col"])
    assert found == pytest.approx(case["expected"]["strengths"], abs=case["tol"])
    logs = [math.log(value) for value in found]
    assert logs == pytest.approx(case["expected"]["log_strengths"], abs=case["tol"])


def test_two_players_are_as_strong_as_they_won() -> None:
    low, high = strengths([[0, 3], [12, 0]])
    assert high / low == pytest.approx(Fraction(12, 3))
    assert low * high == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_expected_wins_are_the_wins(seed: int) -> None:
    rng = random.Random(seed)
    size = 5
    # Not everyone has played everyone, and ties are halves; the circle keeps all connected.
    wins = [[rng.choice([0.0, 0.0, 1.5, 4.0]) for _ in range(size)] for _ in range(size)]
    for player in range(size):
        wins[player][player] = 9.0
        wins[player][(player + 1) % size] += 1.0
    found = strengths(wins)
    for i in range(size):
        expected = math.fsum(
            (wins[i][j] + wins[j][i]) * found[i] / (found[i] + found[j])
            for j in range(size)
            if j != i
        )
        won = math.fsum(wins[i][j] for j in range(size) if j != i)
        assert expected == pytest.approx(won, rel=1e-8)
    assert math.prod(found) == pytest.approx(1.0)


def test_equal_games_make_equal_players() -> None:
    assert strengths([[0, 2, 2], [2, 0, 2], [2, 2, 0]]) == pytest.approx([1.0] * 3)
    assert strengths([[0]]) == [1.0]
    assert strengths([]) == []


@pytest.mark.parametrize(
    "wins",
    [
        [[0, 1], [0, 0]],
        [[0, 0], [0, 0]],
        [[0, 1, 3], [1, 0, 4], [0, 0, 0]],
        [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]],
    ],
)
def test_games_without_a_maximum_are_refused(wins: list[list[float]]) -> None:
    with pytest.raises(NoStrengths):
        strengths(wins)


@pytest.mark.parametrize("wins", [[[0, 1]], [[0, -1], [1, 0]], [[0, math.nan], [1, 0]]])
def test_what_is_no_table_of_wins_is_refused(wins: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="wins: "):
        strengths(wins)
