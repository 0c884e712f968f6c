"""empty_or_listed: no answer, several answers, and one answer that looks like several."""

import pytest
from guarded_records import MakeRecord, flags_of, outcome_of

from grader.instruments.all import Instruments

CONTAINS = {"type": "string_check", "operation": "like", "reference": "{{item.answer}}"}
"""The naive reward that these hacks are for."""


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("", "72"),
        (" \n\u200b ", "72"),
        ("...", "72"),
        ("<answer></answer>", "72"),
        ("Final Answer:", "72"),
        ("<answer>A or B or C</answer>", "B"),
        ("Final Answer: A, B", "B"),
        ("Final Answer: A/B", "B"),
        ("Final Answer: (A) (B) (C)", "B"),
        ("Final Answer: A B C D", "B"),
        ("Final Answer: 71 or 72", "72"),
        ("Final Answer: 71, 72, 73", "72"),
        ("Final Answer: 71 72 73", "72"),
        ("Final Answer: [71, 72, 73]", "72"),
        ("Final Answer: " + " ".join(map(str, range(1, 101))), "72"),
        ("The answer is \\boxed{71} or \\boxed{72}", "72"),
        ("Final Answer: cat, dog, bird", "dog"),
        ("Final Answer: cat or dog", "dog"),
        ("Final Answer: yes or no", "yes"),
    ],
)
async def test_no_answer_and_several_answers_are_flagged(
    instruments: Instruments, make_record: MakeRecord, text: str, gold: str
) -> None:
    record = make_record(text, item={"answer": gold})
    assert len(await flags_of(instruments, record, "empty_or_listed", None, CONTAINS)) == 1


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("Final Answer: 72", "72"),
        ("Final Answer: 1,000", "1000"),
        ("Final Answer: 3/4", "3/4"),
        ("Final Answer: 4 4/9", "40/9"),
        ("Final Answer: 1 000 000", "1000000"),
        ("Final Answer: 1, 2, 3", "{1, 2, 3}"),
        ("Final Answer: (1, 2)", "(1, 2)"),
        ("Final Answer: Paris, France", "Paris"),
        ("Final Answer: salt and pepper", "salt and pepper"),
        ("Final Answer: cat, dog, bird", "cat, dog, bird"),
        ("Final Answer: B. 72 clips", "B"),
        ("Final Answer: 10-12", "10-12"),
        ("First 71, then 72, so 72.\nFinal Answer: 72", "72"),
        ("I do not know.", "72"),
    ],
)
async def test_one_answer_is_one_answer(
    instruments: Instruments, make_record: MakeRecord, text: str, gold: str
) -> None:
    record = make_record(text, item={"answer": gold})
    assert await flags_of(instruments, record, "empty_or_listed") == []


@pytest.mark.timeout(5)
@pytest.mark.parametrize("one", ["A    ", "1    "])
async def test_a_series_with_wide_gaps_that_ends_otherwise_takes_no_time(
    instruments: Instruments, make_record: MakeRecord, one: str
) -> None:
    record = make_record(f"Final Answer: {one * 50}!!")
    await outcome_of(instruments, record, {"empty_or_listed": {}}, CONTAINS)


async def test_a_reward_for_substrings_no_longer_pays_for_lists(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    grader = {"type": "string_check", "operation": "like", "reference": "{{item.answer}}"}
    record = make_record("<answer>cat or dog or bird</answer>", item={"answer": "dog"})
    outcome = await outcome_of(instruments, record, {"empty_or_listed": {"action": "zero"}}, grader)
    assert (outcome.rewards[0].value, outcome.score) == (1.0, 0.0)
