"""Grades by kinds that run code, over the stand-in for boxes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from local_rooms import LocalRooms

from grader.definition import Definitions
from grader.instruments.all import Instruments
from grader.instruments.boxes import Origin
from grader.results import Graded
from grader.sample import sample_of
from servicekit.errors import InvalidArgument

ADD = "```python\ndef add(a, b):\n    return a + b\n```"


class Desk:
    """Grades texts by definitions, in rooms that stand in."""

    def __init__(self, rooms: LocalRooms, make_record: Callable[..., object]) -> None:
        self.rooms = rooms
        self._make_record = make_record

    async def grade(
        self,
        definition: dict[str, object],
        text: str = "",
        *,
        agent: Origin | None = None,
        **record: object,
    ) -> Graded:
        parsed = Definitions(package_version="1").parse(json.dumps(definition))
        (member,) = parsed.combination.members
        # The fixture makes whole records, and these kinds need no checker of symbols.
        sample = sample_of(self._make_record(text, **record))  # type: ignore[arg-type]
        async with self.rooms.room(agent) as room:
            return await member.grader.grade(sample, Instruments(symbolic=None, boxes=room))  # type: ignore[arg-type]


@pytest.fixture
def desk(tmp_path: Path, make_record: Callable[..., object]) -> Desk:
    return Desk(LocalRooms(tmp_path), make_record)


def problems(definition: dict[str, object]) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps(definition))
    return caught.value.violations
