"""All guards by the name that a definition uses."""

from grader.guards import (
    addresses_judge,
    copied_from_grader,
    edited_tests,
    empty_or_listed,
    lucky_guess,
)
from grader.guards.base import GuardKind, GuardTable
from trajectory.types import OutcomeKind

GUARDS: GuardTable = {
    "addresses_judge": GuardKind(parse=addresses_judge.parse, shortfall=OutcomeKind.FORMAT),
    "copied_from_grader": GuardKind(
        parse=copied_from_grader.parse, shortfall=OutcomeKind.REASONING
    ),
    "edited_tests": GuardKind(parse=edited_tests.parse, shortfall=OutcomeKind.TOOL_USE),
    "empty_or_listed": GuardKind(parse=empty_or_listed.parse, shortfall=OutcomeKind.FORMAT),
    "lucky_guess": GuardKind(parse=lucky_guess.parse, shortfall=OutcomeKind.REASONING),
}
"""Add a guard by one file beside these and one line here."""
