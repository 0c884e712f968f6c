import pytest

from tool_gateway.arguments import ArgumentReader, BadArguments
from tool_gateway.tools.calculator import Calculator

READER = ArgumentReader(Calculator().spec.parameters)


def test_good_arguments_are_read() -> None:
    assert READER.read(' {"expression": "1"} ') == {"expression": "1"}


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ('{"expression": "1"', "invalid_json", "line 1 column"),
        ("{'expression': '1'}", "invalid_json", "not valid JSON"),
        ('{"expression": NaN}', "invalid_json", "NaN is not JSON"),
        ("[" * 100_000, "invalid_json", "not valid JSON"),
        ('{"expression": "\\ud800"}', "invalid_json", "\\ud800) is no character"),
        ('{"\\udfff": "1"}', "invalid_json", "is no character"),
        ("", "invalid_arguments", "'expression' is a required property"),
        ("[]", "invalid_arguments", "[] is not of type 'object'"),
        ('{"expression": 5}', "invalid_arguments", "expression: 5 is not of type 'string'"),
        ('{"expression": ""}', "invalid_arguments", "expression"),
        ('{"expr": "1"}', "invalid_arguments", "expr"),
    ],
)
def test_bad_arguments_are_explained_to_the_model(text: str, kind: str, says: str) -> None:
    with pytest.raises(BadArguments) as caught:
        READER.read(text)
    assert caught.value.kind == kind
    assert says in caught.value.text
    assert 'Send one JSON object: {"expression": ...}.' in caught.value.text
