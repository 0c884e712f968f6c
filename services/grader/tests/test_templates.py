"""Templates: what each hole becomes, what is the dataset's fault and what is the response's doing."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from grader.desk import GradingDesk
from grader.results import GradingFaultError
from grader.sample import Sample, sample_of
from grader.templates import (
    ResponseLacksError,
    TemplateError,
    parse_template,
    parse_value_template,
)
from trajectory.types import (
    GraderErrorKind,
    OutcomeKind,
    RolloutRecord,
    Scored,
    ToolCall,
    ToolCallRecord,
)

MakeRecord = Callable[..., RolloutRecord]
ITEM = {
    "x": {"y": "deep", "list": ["a", {"k-1": 7}]},
    "n": 2,
    "half": 0.5,
    "yes": True,
    "none": None,
    "calls": [{"name": "f", "arguments": {"a": 1}}],
}


def _sample(make_record: MakeRecord, text: str = "", *, calls: tuple[str, ...] = ()) -> Sample:
    record = make_record(text, item=ITEM)
    made = tuple(
        ToolCallRecord(call=ToolCall(tool_call_id="c", name="f", arguments_json=a), result="1")
        for a in calls
    )
    return sample_of(replace(record, turns=(replace(record.turns[0], tool_calls=made),)))


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{{item.x.y}}", "deep"),
        ("{{  item.x.y }}!", "deep!"),
        ("{{item.x.list[0]}}{{item.x.list[1].k-1}}", "a7"),
        ("{{item.x.list[-1]}}", '{"k-1": 7}'),
        ("{{item.n}} {{item.half}} {{item.yes}}", "2 0.5 true"),
        ("{{sample.output_text}}", '{"answer": {"value": [1, "two"]}}'),
        ("{{sample.output_json.answer.value[1]}}", "two"),
        ("{{sample.output_json.answer}}", '{"value": [1, "two"]}'),
        ("{{sample.output_tools[0].function.name}}", "f"),
        ("{{sample.output_tools[1].function.arguments}}", '{"a": [2]}'),
        ("{{sample.output_tools[-1].function.arguments.a[0]}}", "2"),
        ("no hole, { one } brace", "no hole, { one } brace"),
    ],
)
def test_a_hole_becomes_what_it_names(
    make_record: MakeRecord, template: str, rendered: str
) -> None:
    text = '{"answer": {"value": [1, "two"]}}'
    sample = _sample(make_record, text, calls=('{"a": 1}', '{"a": [2]}'))
    assert parse_template(template).render(sample) == rendered
    assert parse_template(template).lack(sample) is None


def test_all_tool_calls_are_the_openai_shape(make_record: MakeRecord) -> None:
    sample = _sample(make_record, calls=('{"a": 1}',))
    function = {"name": "f", "arguments": '{"a": 1}'}
    wanted = [{"id": "c", "type": "function", "function": function}]
    assert json.loads(parse_template("{{sample.output_tools}}").render(sample)) == wanted


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("item.z", "item has calls, half"),
        ("item.x.list[2]", "item.x.list has 2 elements"),
        ("item.x.y.z", "item.x.y is no object"),
        ("item.x[0]", "item.x is no list"),
        ("item.none", "null"),
    ],
)
def test_what_the_task_lacks_is_the_datasets_fault(
    make_record: MakeRecord, path: str, found: str
) -> None:
    with pytest.raises(GradingFaultError, match="the grader needs") as caught:
        parse_template(f"{{{{{path}}}}}").render(_sample(make_record))
    assert (caught.value.kind, caught.value.client) == (GraderErrorKind.REFERENCE, True)
    assert found in caught.value.detail


@pytest.mark.parametrize(
    ("text", "path", "kind"),
    [
        ("no json", "output_json", OutcomeKind.FORMAT),
        ("no json", "output_json.a", OutcomeKind.FORMAT),
        ('{"b": 1}', "output_json.a", OutcomeKind.FORMAT),
        ('{"a": null}', "output_json.a", OutcomeKind.FORMAT),
        ('{"a": [1]}', "output_json.a[1]", OutcomeKind.FORMAT),
        ('{"arguments": "{\\"x\\": 1}"}', "output_json.arguments.x", OutcomeKind.FORMAT),
        ('{"a": 1e999}', "output_json.a", OutcomeKind.FORMAT),
        ('{"a": NaN}', "output_json.a", OutcomeKind.FORMAT),
        ('{"a": "\\ud800"}', "output_json.a", OutcomeKind.FORMAT),
        ("[" * 70 + "]" * 70, "output_json", OutcomeKind.FORMAT),
        ("[" * 100_000, "output_json", OutcomeKind.FORMAT),
        ('{"a": ' + "9" * 5000 + "}", "output_json.a", OutcomeKind.FORMAT),
        ("", "output_tools[1]", OutcomeKind.TOOL_USE),
        ("", "output_tools[0].function.arguments.a", OutcomeKind.TOOL_USE),
    ],
)
def test_what_the_response_lacks_is_its_own_doing(
    make_record: MakeRecord, text: str, path: str, kind: OutcomeKind
) -> None:
    sample = _sample(make_record, text, calls=("no json",))
    template = parse_template(f"<{{{{sample.{path}}}}}>")
    assert template.render(sample) == "<>"
    lack = template.lack(sample)
    assert lack is not None and lack.kind is kind


@pytest.mark.parametrize("operation", ["eq", "ne", "like", "ilike"])
async def test_a_response_without_json_scores_zero_whatever_the_operation(
    desk: GradingDesk, make_record: MakeRecord, operation: str
) -> None:
    grader = {"type": "string_check", "operation": operation, "reference": "x"}
    text = json.dumps({**grader, "input": "{{sample.output_json.a}}"})
    outcome = (await desk.judge(make_record("no json"), text)).outcome
    assert isinstance(outcome, Scored)
    assert (outcome.score, outcome.kind) == (0.0, OutcomeKind.FORMAT)
    assert "no JSON" in outcome.rewards[0].explanation


@pytest.mark.parametrize(
    "text",
    [
        "{{item}}",
        "{{item.}}",
        "{{item[0]}}",
        "{{item.x[a]}}",
        "{{items.x}}",
        "{{sample.text}}",
        "{{sample.output_text.x}}",
        "{{sample.output_txt}}",
        "{{item.x",
        "item.x}}",
        "{{}}",
        "{{" + " " * 200_000,
        "{{ " * 80_000,
        "{{item.x}}" * 101,
    ],
)
def test_what_no_sample_can_have_is_refused(text: str) -> None:
    with pytest.raises(TemplateError):
        parse_template(text)


def test_a_single_hole_is_the_value_itself(make_record: MakeRecord) -> None:
    sample = _sample(make_record, "hello")
    assert parse_template(" {{item.calls}} ").value(sample) == ITEM["calls"]
    assert parse_template("{{item.n}}{{item.n}}").value(sample) == "22"
    made = parse_value_template([{"name": "f", "n": "{{item.n}}", "ok": True}, "{{item.x.y}}!"])
    assert made.value(sample) == [{"name": "f", "n": 2, "ok": True}, "deep!"]
    with pytest.raises(ResponseLacksError):
        parse_value_template({"a": "{{sample.output_json.b}}"}).value(sample)


def test_a_value_with_a_bad_or_bottomless_template_is_refused() -> None:
    bottomless: list[object] = []
    for _ in range(200):
        bottomless = [bottomless]
    for value in ([{"a": "{{items.x}}"}], bottomless):
        with pytest.raises(TemplateError):
            parse_value_template(value)
