import json
import time

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
    assert found == {"type": "\"awnser\" is not a grader type; did you mean 'answer'?"}


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '{"type": NaN}',
        '{"type": "length", "alpha": 1e999}',
        '{"type": "answer", "reference": "1", "name": "\\ud800"}',
        "[" * 10_000,
        *(
            '{"type": "\\u0061", "reference": ' + "[" * depth + "]" * depth + "}"
            for depth in range(900, 1000)
        ),
    ],
)
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


def _nested(depth: int) -> dict[str, object]:
    definition: dict[str, object] = ANSWER
    for _ in range(depth):
        definition = {"type": "multi", "graders": {"inner": definition}}
    return definition


def test_graders_lie_at_most_16_deep() -> None:
    Definitions(package_version="1").parse(json.dumps(_nested(16)))
    path = ".".join(["graders.inner"] * 17)
    assert _violations(_nested(17)) == {path: "lies 17 graders deep, at most 16 are allowed"}


@pytest.mark.parametrize("depth", [100, 300])
def test_a_definition_nested_without_end_is_refused_by_path(depth: int) -> None:
    found = _violations(_nested(depth))
    assert all(path.startswith("graders.inner.") for path in found)


def test_thousands_of_graders_are_read() -> None:
    graders = [{"type": "answer", "reference": "1", "name": f"a{n}"} for n in range(4000)]
    parsed = Definitions(package_version="1").parse(
        json.dumps({"type": "multi", "graders": graders})
    )
    assert len(parsed.combination.members) == 4000


def test_more_than_a_definition_may_hold_is_refused_by_its_size() -> None:
    found = _violations({"type": "multi", "graders": [ANSWER] * 10_000})
    assert "must be at most 262144 characters" in found["$"]


@pytest.mark.parametrize(
    ("grader", "path"),
    [
        (
            {
                "type": "safety",
                "forbidden": [
                    {"name": f"n{n}", "pattern": f"(?:[a-c]{{990}}){{20}}{n}"} for n in range(50)
                ],
            },
            "forbidden[5].pattern",
        ),
        (
            {
                "type": "format",
                "must": {
                    "json_schema": {
                        "schema": {"anyOf": [{"pattern": f"a{{19990}}{n}"} for n in range(50)]}
                    }
                },
            },
            "must.json_schema.schema",
        ),
    ],
)
def test_patterns_have_a_size_together(grader: object, path: str) -> None:
    start = time.process_time()
    found = _violations(grader)
    assert "the patterns of a definition may have 100000 pieces together" in found[path]
    assert time.process_time() - start < 5.0


def test_of_thousands_of_findings_the_first_are_told() -> None:
    graders = [{"type": "answr", "n" * 3000: "x" * 500} for _ in range(60)]
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps({"type": "multi", "graders": graders}))
    assert len(caught.value.violations) == 20
    assert "perhaps more" in caught.value.message
    assert len(caught.value.message) < 7000


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"type": "answer", "reference": "1", "reference": "2"}', "reference"),
        (
            '{"type": "multi", "graders": [{"type": "answer", "reference": "1"},'
            ' {"type": "answer", "name": "b", "reference": "1", "weight": 1, "weight": 0}]}',
            "graders[1].weight",
        ),
        (
            '{"type": "multi", "graders": {"a": {"type": "answer", "reference": "1"},'
            ' "a": {"type": "answer", "reference": "2"}}}',
            "graders.a",
        ),
    ],
)
def test_a_key_that_is_there_twice_is_refused(text: str, path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(text)
    assert "more than once" in caught.value.violations[path]


def test_thousands_of_double_keys_are_found_at_once() -> None:
    text = '{"type": "multi", "graders": [' + ", ".join(['{"a":1,"a":1}'] * 15_000) + "]}"
    started = time.process_time()
    with pytest.raises(InvalidArgument):
        Definitions(package_version="1").parse(text)
    assert time.process_time() - started < 5


def test_a_grader_inside_another_has_no_weight() -> None:
    found = _violations(
        {"type": "length", "target": 1, "alpha": 1, "answer": {**ANSWER, "weight": 2}}
    )
    assert found == {
        "answer.weight": "unknown key 'weight'; known are extract, name, reference, tolerance, type"
    }


@pytest.mark.parametrize(
    ("change", "path", "said"),
    [
        ({"range": [0, 0]}, "range", "low < high, found [0, 0]"),
        ({"range": [0, 1, 2]}, "range", "two numbers"),
        ({"range": 5}, "range", "two numbers [low, high] with low < high, found 5"),
        ({"range": [0, True]}, "range", "two numbers"),
        ({"range": ["0", "1"]}, "range", "two numbers"),
        ({"range": [0, 10**400]}, "range", "two numbers"),
        ({"range": [-1.7e308, 1.7e308]}, "range", "two numbers"),
        ({"from": [0, 2]}, "from", "is for rule affine, and the rule is clip"),
        ({"rule": "affine"}, "from", "is required for rule affine"),
        ({"rule": "affine", "from": [2, 0]}, "from", "low < high"),
        ({"rule": ["clip"]}, "rule", "not known"),
        ({"weight": 10**400}, "weight", "from 0 to 1e+06"),
        ({"weight": 0}, "weight", "above 0"),
        ({"weight": 1e7}, "weight", "from 0 to 1e+06"),
        ({"from": None}, "from", "two numbers"),
    ],
)
def test_a_range_or_rule_that_says_nothing_is_named(
    change: dict[str, object], path: str, said: str
) -> None:
    assert said in _violations({**ANSWER, **change})[path]
