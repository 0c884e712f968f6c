"""The share of repeated n-grams counts policy tokens only, over all turns of a rollout."""

import pytest

from learner.figures.repetition import repeated_share
from trajectory.types import SamplingParams, TokenRecord, TokenRow, TokenSpan


def record(*rows: tuple[list[int], list[int]]) -> TokenRecord:
    made = []
    for ids, mask in rows:
        spans = tuple(
            TokenSpan(start=at, end=at + 1, turn=0, policy_version=0)
            for at, one in enumerate(mask)
            if one
        )
        made.append(
            TokenRow(
                token_ids=tuple(ids),
                loss_mask=tuple(map(bool, mask)),
                logprobs=(0.0,) * len(ids),
                spans=spans,
            )
        )
    return TokenRecord(rows=tuple(made), sampling=SamplingParams())


def test_loop_of_one_token_repeats_all_but_its_first() -> None:
    assert repeated_share(record(([9, *[5] * 13], [0, *[1] * 13]))) == pytest.approx(0.9)


def test_text_without_repeats_has_none() -> None:
    assert repeated_share(record((list(range(20)), [0] * 5 + [1] * 15))) == 0.0


def test_prompt_and_tool_result_that_repeat_are_not_counted() -> None:
    same = [1, 2, 3, 4]
    ids, mask = same * 4, [0] * 4 + [1] * 4 + [0] * 8
    assert repeated_share(record((ids, mask))) == 0.0


def test_turn_that_says_what_an_earlier_one_said_is_a_repeat() -> None:
    same = [1, 2, 3, 4]
    assert repeated_share(record(([*same, 0, *same], [1] * 4 + [0] + [1] * 4))) == 0.5
    assert repeated_share(record((same, [1] * 4), (same, [1] * 4))) == 0.5


def test_ngrams_do_not_reach_over_a_tool_result() -> None:
    assert repeated_share(record(([1, 2, 0, 3, 4], [1, 1, 0, 1, 1]))) is None
    assert repeated_share(record()) is None
