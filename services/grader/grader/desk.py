"""Where records are graded: definitions parsed once, faults turned into outcomes.

Plain Python without network; the servicer and the consumer call it from a thread.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from grader.definition import Definition, Definitions
from grader.grading import failure_of, grade
from grader.kinds.base import Instruments
from grader.sample import GradingFaultError
from servicekit.errors import InvalidArgument
from trajectory.types import Outcome, RolloutRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a record was judged, and by which version."""

    outcome: Outcome
    grader_version: str


class GradingDesk:
    """Grades records; safe to use from several threads."""

    def __init__(
        self, definitions: Definitions, instruments: Instruments, *, remembered: int = 64
    ) -> None:
        """Grade with the given instruments.

        Args:
            definitions: parses definitions.
            instruments: what graders may use.
            remembered: number of parsed definitions kept.
        """
        self._definitions = definitions
        self._instruments = instruments
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

    def version_of(self, grader_json: str) -> str:
        """Return the grader version of a definition, sound or not."""
        try:
            return self.definition(grader_json).version
        except InvalidArgument:
            return self._definitions.version_of_text(grader_json)

    def judge(self, record: RolloutRecord, grader_json: str) -> Verdict:
        """Grade a record; a fault that another try cannot mend is an outcome.

        Raises:
            GradingFaultError: grading could not be done and may succeed later.
        """
        try:
            definition = self.definition(grader_json)
        except InvalidArgument as err:
            fault = GradingFaultError(err.message, retryable=False, client=True)
            version = self._definitions.version_of_text(grader_json)
            return Verdict(outcome=failure_of(fault), grader_version=version)
        try:
            outcome: Outcome = grade(record, definition, self._instruments)
        except GradingFaultError as fault:
            if fault.retryable:
                raise
            outcome = failure_of(fault)
        return Verdict(outcome=outcome, grader_version=definition.version)
