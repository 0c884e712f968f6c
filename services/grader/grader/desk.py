"""Where records are graded: definitions parsed once, faults turned into outcomes.

The servicer and the consumer call it; whatever takes long runs in threads, boxes or elsewhere.
"""

import asyncio
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from grader.definition import Definition, Definitions
from grader.grading import failure_of, grade
from grader.instruments.all import Instruments
from grader.instruments.boxes import Origin, Rooms
from grader.results import GradingFaultError
from servicekit.errors import InvalidArgument
from trajectory.types import GraderErrorKind, Outcome, RolloutRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a record was judged, and by which version."""

    outcome: Outcome
    grader_version: str


class GradingDesk:
    """Grades records, many at once."""

    def __init__(
        self,
        definitions: Definitions,
        instruments: Instruments,
        *,
        rooms: Rooms | None = None,
        remembered: int = 64,
    ) -> None:
        """Grade with the given instruments.

        Args:
            definitions: parses definitions.
            instruments: what graders may use.
            rooms: opens the room of each record; without it there are no boxes.
            remembered: number of parsed definitions kept.
        """
        self._definitions = definitions
        self._instruments = instruments
        self._rooms = rooms
        self._remembered = remembered
        self._parsed: OrderedDict[str, Definition] = OrderedDict()
        self._lock = threading.Lock()

    def definition(self, grader_json: str) -> Definition:
        """Return a checked definition.

        Raises:
            InvalidArgument: with one violation per wrong field.
        """
        with self._lock:
            known = self._parsed.get(grader_json)
            if known is not None:
                self._parsed.move_to_end(grader_json)
                return known
        parsed = self._definitions.parse(grader_json)
        with self._lock:
            self._parsed[grader_json] = parsed
            while len(self._parsed) > self._remembered:
                self._parsed.popitem(last=False)
        return parsed

    async def read(self, grader_json: str) -> Definition:
        """Return a checked definition as `definition` does; one that is not known yet is read off the event loop.

        Raises:
            InvalidArgument: with one violation per wrong field.
        """
        with self._lock:
            known = grader_json in self._parsed
        if known:
            return self.definition(grader_json)
        return await asyncio.to_thread(self.definition, grader_json)

    def version_of(self, grader_json: str) -> str:
        """Return the grader version of a definition, sound or not."""
        try:
            return self.definition(grader_json).version
        except InvalidArgument:
            return self._definitions.version_of_text(grader_json)

    async def judge(
        self, record: RolloutRecord, grader_json: str, origin: Origin | None = None
    ) -> Verdict:
        """Grade a record; a fault that another try cannot mend is an outcome.

        Args:
            record: what the agent did.
            grader_json: the definition.
            origin: the attempt, where its sandbox may still be used.

        Raises:
            GradingFaultError: grading could not be done and may succeed later.
        """
        try:
            definition = await self.read(grader_json)
        except InvalidArgument as err:
            fault = GradingFaultError(
                err.message, kind=GraderErrorKind.DEFINITION, retryable=False, client=True
            )
            version = self._definitions.version_of_text(grader_json)
            return Verdict(outcome=failure_of(fault), grader_version=version)
        try:
            outcome: Outcome = await self._grade(record, definition, origin)
        except GradingFaultError as fault:
            if fault.retryable:
                raise
            outcome = failure_of(fault)
        return Verdict(outcome=outcome, grader_version=definition.version)

    async def _grade(
        self, record: RolloutRecord, definition: Definition, origin: Origin | None
    ) -> Outcome:
        instruments = replace(
            self._instruments,
            rollout_id=origin.rollout_id if origin is not None else "",
            run_id=origin.run_id if origin is not None else "",
            grader_version=definition.version,
        )
        if self._rooms is None:
            return await grade(record, definition, instruments)
        async with self._rooms.room(origin) as room:
            return await grade(record, definition, replace(instruments, boxes=room))
