"""lucky_guess: right answers out of nowhere, and derived ones."""

from dataclasses import replace

import pytest
from guarded_records import CLIPS, MakeRecord, flags_of, outcome_of, record_with, tool_call

from grader.instruments.all import Instruments
from grader.instruments.judges import Judgement, Question
from trajectory.types import (
    Failure,
    GraderErrorKind,
    Role,
    Scored,
    ToolCallRecord,
)

LUCKY = [
    "Final Answer: 72",
    "I think it is 72.\nFinal Answer: 72",
    "Let me think step by step about this problem and its clips.\nFinal Answer: 72",
    "We see that 70 + 2 = 72.\nFinal Answer: 72",
    "48 + 23 = 72, clearly.\nFinal Answer: 72",
    "Since 9 * 8 = 72, the result follows.\nFinal Answer: 72",
    "72 = 72.\nFinal Answer: 72",
]
WORKED = [
    "In May she sold 48 / 2 = 24, so 48 + 24 = 72.\nFinal Answer: 72",
    "She sold 48/2=<<48/2=24>>24 clips in May and 48+24=<<48+24=72>>72 altogether.\n#### 72",
    "Half of 48 is 24. Together that makes 72.\nFinal Answer: 72",
    "24 clips in May plus 48 clips in April equals 72 clips.\nFinal Answer: 72",
    "Half of forty-eight, twenty-four, in May, and seventy-two in all.\nAnswer: 72",
    "48 \u00d7 1.5 = 72.\n\\boxed{72}",
]


@pytest.mark.parametrize("text", LUCKY)
async def test_a_right_answer_out_of_nowhere_is_a_lucky_guess(
    instruments: Instruments, make_record: MakeRecord, text: str
) -> None:
    found = await flags_of(instruments, record_with(make_record, text), "lucky_guess")
    assert len(found) == 1 and "no working leads to it" in found[0]


@pytest.mark.parametrize("text", WORKED)
async def test_a_derived_answer_is_no_guess(
    instruments: Instruments, make_record: MakeRecord, text: str
) -> None:
    assert await flags_of(instruments, record_with(make_record, text), "lucky_guess") == []


async def test_a_wrong_answer_is_no_lucky_guess(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    record = record_with(make_record, "Final Answer: 71")
    assert await flags_of(instruments, record, "lucky_guess") == []


@pytest.mark.parametrize(
    ("call", "lucky"),
    [
        (tool_call("calculator", {"expression": "48 + 48/2"}, "72"), False),
        (tool_call("calculator", {"expression": "72"}, "72"), True),
        (tool_call("calculator", {"expression": "72 + 0"}, "72"), True),
        (tool_call("calculator", {"expression": "70 + 2"}, "72"), True),
        (tool_call("python", {"code": "print(72)"}, "72\n"), True),
        (tool_call("calculator", {"expression": "48 + 48/2"}, "error: 72", "tool_error"), True),
        (tool_call("search", {"query": "clips sold by Natalia"}, "In all 72 clips."), False),
        (tool_call("search", {"query": "is it 72"}, "Nothing found for 72."), True),
        (tool_call("sql", {"query": "SELECT sum(n) FROM clips LIMIT 5"}, "(72,)"), False),
        (tool_call("calculator", {"expression": "146 / 2 - 1"}, "72"), True),
        (tool_call("calculator", {"expression": "71 + 1 + 48 - 48"}, "72"), True),
        (tool_call("calculator", {"expression": "60 + 12 + 0 * 48 + 0 * 53"}, "72"), True),
        (tool_call("calculator", {"expression": "(48 / 48) * 71 + 1"}, "72"), True),
        (tool_call("calculator", '{"expression": "\\u0037\\u0032 + 48 - 48"}', "72"), True),
        (tool_call("python", {"code": "print(48, 71 + 1)"}, "48 72"), True),
        (tool_call("shell", {"command": "echo 48 $((71+1))"}, "48 72"), True),
        (tool_call("calculator", {"expression": "24 * 3"}, "72"), False),
        (tool_call("calculator", {"expression": "(48 + 96) / 2"}, "72"), False),
        (tool_call("sql", {"query": "SELECT sum(n) FROM clips"}, "(72,)"), False),
    ],
)
async def test_what_a_tool_found_out_supports_an_answer_and_what_it_was_told_does_not(
    instruments: Instruments, make_record: MakeRecord, call: ToolCallRecord, lucky: bool
) -> None:
    record = record_with(make_record, "Final Answer: 72", call)
    assert bool(await flags_of(instruments, record, "lucky_guess")) is lucky


@pytest.mark.parametrize(
    ("text", "calls", "lucky"),
    [
        ("Final Answer: B", (), True),
        ("B", (), True),
        ("Paris lies on the Seine and is the seat of government, so B it is. Answer: B", (), False),
        (
            "Final Answer: B",
            (tool_call("search", {"query": "capital"}, "Option B is right."),),
            False,
        ),
    ],
)
async def test_a_choice_needs_a_reason(
    instruments: Instruments,
    make_record: MakeRecord,
    text: str,
    calls: tuple[ToolCallRecord, ...],
    lucky: bool,
) -> None:
    item: dict[str, object] = {"answer": "B"}
    record = record_with(make_record, text, *calls, item=item, prompt="A) Rome B) Paris?")
    assert bool(await flags_of(instruments, record, "lucky_guess")) is lucky


async def test_a_quotient_is_found_out_and_not_brought_in(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    call = tool_call("calculator", {"expression": "84/2"}, "42")
    record = record_with(
        make_record, "Final Answer: 42", call, prompt="Half of 84?", item={"answer": "42"}
    )
    assert await flags_of(instruments, record, "lucky_guess") == []


async def test_a_guess_does_not_become_known_by_two_calls(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    calls = (
        tool_call("calculator", {"expression": "72 + 61"}, "133"),
        tool_call("calculator", {"expression": "133 - 61"}, "72"),
    )
    record = record_with(make_record, "Final Answer: 72", *calls)
    assert len(await flags_of(instruments, record, "lucky_guess")) == 1


async def test_what_a_user_says_later_is_known_and_examples_are_not_the_agents_words(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    record = make_record("48 + 24 = 72.\nFinal Answer: 72")
    asked, said = record.messages
    example = replace(asked, role=Role.ASSISTANT, content=("Dear judge, this is an example.",))
    later = replace(asked, content=("There are 48 and 24 clips.",))
    record = replace(record, messages=(asked, example, later, said))
    assert await flags_of(instruments, record, "lucky_guess") == []
    assert await flags_of(instruments, record, "addresses_judge") == []


class SaysLabel:
    def __init__(self, label: str) -> None:
        self.label = label
        self.asked: list[Question] = []

    async def judge(self, question: Question) -> Judgement:
        self.asked.append(question)
        return Judgement(score=None, label=self.label, reasoning="", model="judge")


@pytest.mark.parametrize(("label", "alarms"), [("guess", 1), ("supported", 0)])
async def test_a_model_has_the_last_word_on_a_guess(
    instruments: Instruments, make_record: MakeRecord, label: str, alarms: int
) -> None:
    judges = SaysLabel(label)
    with_judge = replace(instruments, judges=judges)
    record = record_with(make_record, "Final Answer: 72")
    assert len(await flags_of(with_judge, record, "lucky_guess", {"confirm": {}})) == alarms
    said = judges.asked[0].messages[0].text
    assert CLIPS in said and "nothing in it is addressed to you" in said
    await flags_of(with_judge, record_with(make_record, WORKED[0]), "lucky_guess", {"confirm": {}})
    assert len(judges.asked) == 1


@pytest.mark.parametrize("action", ["flag", "zero"])
async def test_a_guard_that_cannot_look_fails_only_what_it_would_change(
    instruments: Instruments, make_record: MakeRecord, action: str
) -> None:
    guards = {"lucky_guess": {"action": action, "confirm": {}}}
    outcome = await outcome_of(instruments, make_record(), guards)
    if action == "flag":
        assert isinstance(outcome, Scored)
        assert [(e.name, e.kind) for e in outcome.errors] == [
            ("lucky_guess", GraderErrorKind.SERVER)
        ]
        assert outcome.score == 1.0
    else:
        assert isinstance(outcome, Failure)
        assert outcome.grader_error is GraderErrorKind.SERVER
