from runspec.graderfields import field_value, required_fields

ITEM = {"x": {"y": "deep", "list": ["a", {"k-1": 7}]}, "n": 2}


def test_the_fields_that_a_definition_reads_are_found() -> None:
    grader = {
        "type": "tool_use",
        "expected": [{"name": "f", "arguments": {"a": "{{ item.x.list[1].k-1 }}"}}],
        "other": "{{item.calls}} and {{sample.output_json.item.n}}",
        "minimum": "item.n",
        "median": "{{item.costs[0]}}",
    }
    names = required_fields(grader)
    assert names == {"x.list[1].k-1", "calls", "n", "costs[0]"}
    assert field_value(ITEM, "x.list[1].k-1") == 7
    assert field_value(ITEM, "x.list[-2]") == "a"
    for lacking in ("costs[0]", "x.list[2]", "x.y.z", "n[0]"):
        assert field_value(ITEM, lacking) is None
