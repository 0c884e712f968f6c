"""Tool calls that were made against calls that were expected: how they are written, and how many agree.

An expected call is written in any of these forms; the last two give a list of accepted values for each argument, in
which "" says that the argument may be absent, and no value at all that it must be (the form of BFCL's possible_answer,
also inside objects and lists):

    "cell"                                                         a name; no arguments
    {"name": "cell", "arguments": {"item": "Cash", "year": 2013}}  or `kwargs`; an object or its JSON text
    {"type": "function", "function": {"name": ..., "arguments": ...}}
    {"name": "cell", "accepted": {"item": ["Cash", "cash"], "year": [2013, ""]}}
    {"cell": {"item": ["Cash", "cash"], "year": [2013, ""]}}
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grader.fields import shown
from grader.jsonvalues import is_list, read_json, same_json
from trajectory.types import ToolCall

MATCHES = ("names", "arguments", "exact")
MAX_EXPECTED = 128
MAX_MADE = 512
"""Calls beyond these agree with nothing."""


class ExpectedCallsError(ValueError):
    """The value is no list of calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A call that should be made."""

    name: str
    accepted: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """By argument, the values that are right."""
    nested: bool = False
    """Whether accepted values may hold lists of accepted values themselves, and "" stands for absence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A call that was made."""

    name: str
    arguments: Mapping[str, object] | None
    """None if they are no JSON object."""


def read_expected(value: object) -> tuple[Expected, ...]:
    """Read a list of expected calls, or its JSON text.

    Raises:
        ExpectedCallsError: it is none; the message names the element.
    """
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError as err:
            raise ExpectedCallsError(f"must be a list of calls, found a text that {err}") from err
    if not is_list(value):
        raise ExpectedCallsError(f"must be a list of calls, found {shown(value)}")
    if len(value) > MAX_EXPECTED:
        raise ExpectedCallsError(f"has {len(value)} calls, at most {MAX_EXPECTED} are allowed")
    return tuple(_read_call(call, f"[{index}]") for index, call in enumerate(value))


def read_made(call: ToolCall) -> Made:
    """Read a call as the model wrote it; no text for arguments is no arguments."""
    try:
        arguments = read_json(call.arguments_json) if call.arguments_json.strip() else {}
    except ValueError:
        arguments = None
    return Made(name=call.name, arguments=arguments if isinstance(arguments, Mapping) else None)


def agrees(expected: Expected, made: Made, match: str) -> bool:
    """Whether a call is the expected one.

    Args:
        expected: the call that should be made.
        made: the call that was made.
        match: names; arguments, where the expected arguments must be right and others may be there; exact, where no
            others may be there.
    """
    if expected.name != made.name:
        return False
    if match == "names":
        return True
    return made.arguments is not None and _fits_object(
        made.arguments, expected.accepted, nested=expected.nested, closed=match == "exact"
    )


def agreeing_count(
    expected: Sequence[Expected], made: Sequence[Made], *, match: str, in_order: bool
) -> int:
    """Return how many pairs of an expected and a made call agree, each call in one pair at most.

    In order, the pairs also keep the order of both sides.
    """
    made = made[:MAX_MADE]
    edges = [
        [index for index, call in enumerate(made) if agrees(wanted, call, match)]
        for wanted in expected
    ]
    return _longest_in_order(edges) if in_order else _most_pairs(edges)


def _most_pairs(edges: Sequence[Sequence[int]]) -> int:
    """Size of a maximum bipartite matching, by augmenting paths."""
    partner: dict[int, int] = {}

    def place(wanted: int, seen: set[int]) -> bool:
        for call in edges[wanted]:
            if call in seen:
                continue
            seen.add(call)
            if call not in partner or place(partner[call], seen):
                partner[call] = wanted
                return True
        return False

    return sum(place(wanted, set()) for wanted in range(len(edges)))


def _longest_in_order(edges: Sequence[Sequence[int]]) -> int:
    """Length of the longest chain of pairs that rises on both sides."""
    last_calls: list[int] = []
    for calls in edges:
        # From the last call to the first, so that one expected call joins a chain only once.
        for call in reversed(calls):
            place = bisect_left(last_calls, call)
            last_calls[place : place + 1] = [call]
    return len(last_calls)


def _read_call(call: object, path: str) -> Expected:
    if isinstance(call, str) and call:
        return Expected(name=call)
    if not isinstance(call, Mapping):
        raise ExpectedCallsError(f"{path} must be a name or an object, found {shown(call)}")
    if isinstance(call.get("function"), Mapping):
        return _read_call(call["function"], f"{path}.function")
    name = call.get("name")
    if isinstance(name, str) and name:
        if "accepted" in call:
            return _alternatives(name, call["accepted"], f"{path}.accepted")
        key = "kwargs" if "kwargs" in call else "arguments"
        arguments = _object(call.get(key), f"{path}.{key}")
        return Expected(name=name, accepted={key: [value] for key, value in arguments.items()})
    if len(call) == 1:
        ((name, accepted),) = call.items()
        return _alternatives(str(name), accepted, f"{path}.{name}")
    raise ExpectedCallsError(f"{path} must have a name, found {shown(call)}")


def _alternatives(name: str, accepted: object, path: str) -> Expected:
    values = _object(accepted, path)
    for argument, choices in values.items():
        if not is_list(choices):
            raise ExpectedCallsError(
                f"{path}.{argument} must be a list of accepted values, found {shown(choices)}"
            )
    lists = {argument: choices for argument, choices in values.items() if is_list(choices)}
    return Expected(name=name, accepted=lists, nested=True)


def _object(value: object, path: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError as err:
            raise ExpectedCallsError(f"{path} {err}") from err
    if not isinstance(value, Mapping):
        raise ExpectedCallsError(f"{path} must be an object, found {shown(value)}")
    return value


def _fits_object(
    given: Mapping[str, object],
    accepted: Mapping[str, Sequence[object]],
    *,
    nested: bool,
    closed: bool,
) -> bool:
    if closed and not given.keys() <= accepted.keys():
        return False
    return all(
        any(_fits(given[key], choice, nested) for choice in choices)
        if key in given
        else nested and ("" in choices or not choices)
        for key, choices in accepted.items()
    )


def _fits(value: object, choice: object, nested: bool) -> bool:
    if same_json(value, choice):
        return True
    if not nested:
        return False
    if isinstance(value, Mapping) and isinstance(choice, Mapping):
        lists = {key: inner for key, inner in choice.items() if is_list(inner)}
        return len(lists) == len(choice) and _fits_object(value, lists, nested=True, closed=True)
    if is_list(value) and is_list(choice) and len(value) == len(choice):
        return all(_fits(one, other, True) for one, other in zip(value, choice, strict=True))
    return False
