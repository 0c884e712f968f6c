import json

import pytest

from grader.definition import Definitions
from servicekit.errors import InvalidArgument

ANSWER = {"type": "answer", "reference": "{{item.answer}}"}


def _violations(definition: object) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps(definition))
    return caught.value.violations


def test_demo_definition_names_its_rewards(demo_json: str) -> None:
    parsed = Definitions(package_version="1").parse(demo_json)
    assert [(c.name, c.weight) for c in parsed.combination.members] == [
        ("reward", 1.0),
        ("accuracy", 0.0),
    ]


def test_single_grader_has_weight_1_and_its_type_as_name() -> None:
    parsed = Definitions(package_version="1").parse(json.dumps(ANSWER))
    assert [(c.name, c.weight) for c in parsed.combination.members] == [("answer", 1.0)]


def test_version_ignores_key_order_and_space_but_no_value() -> None:
    definitions = Definitions(package_version="1")
    one = definitions.parse('{"type": "answer", "reference": "{{item.a}}"}').version
    same = definitions.parse('{"reference":"{{item.a}}","type":"answer"}').version
    other = definitions.parse('{"reference":"{{item.b}}","type":"answer"}').version
    assert one == same != other
    assert (
        one
        != Definitions(package_version="2")
        .parse('{"reference":"{{item.a}}","type":"answer"}')
        .version
    )


def test_unknown_key_names_its_path_and_the_nearest_known() -> None:
    found = _violations({"type": "multi", "graders": [{**ANSWER, "referense": "x"}]})
    assert found == {"graders[0].referense": "unknown key 'referense'; did you mean 'reference'?"}


def test_unknown_type_names_the_nearest_known() -> None:
    found = _violations({"type": "awnser", "reference": "x"})
    assert found["type"] == "\"awnser\" is not a grader type; did you mean 'answer'?"


def test_every_wrong_field_is_named_at_once() -> None:
    found = _violations(
        {
            "type": "multi",
            "range": [1, 0],
            "rule": "clamp",
            "graders": [
                {
                    "type": "efficiency",
                    "answer": ANSWER,
                    "penalty": -1,
                    "minimum": "calls",
                    "weight": "1",
                },
                {"type": "string_check", "reference": "{{itme.x}}"},
                {"type": "answer"},
                3,
            ],
        }
    )
    assert set(found) == {
        "range",
        "rule",
        "graders[0].penalty",
        "graders[0].minimum",
        "graders[0].weight",
        "graders[1].reference",
        "graders[2].reference",
        "graders[3]",
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"type": NaN}', "[" * 10_000])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Definitions(package_version="1").parse(text)


def test_weights_that_add_up_to_0_are_refused() -> None:
    assert (
        "weights add up to 0"
        in _violations({"type": "multi", "graders": [{**ANSWER, "weight": 0}]})["graders"]
    )


def test_two_graders_of_one_name_are_refused() -> None:
    assert (
        "used more than once"
        in _violations({"type": "multi", "graders": [ANSWER, ANSWER]})["graders"]
    )
