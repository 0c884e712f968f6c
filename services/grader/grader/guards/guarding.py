"""Guards of a definition, and what their alarms do to a score.

    {"guards": {"lucky_guess": {"action": {"price": 0.5}}, "addresses_judge": {"action": "zero"}}}

| action | the score becomes |
|---|---|
| `flag` (default) | what it was; the alarm is told |
| `{"price": p}` | low + (score - low) x (1 - p), where low is the low end of the definition's range |
| `zero` | low; a success becomes a shortfall |
| `mask` | none: the response has no vote. Where the score is low already it stays, so that nobody flees from it |

Rewards of graders stay as they were found. Positive step rewards shrink by the same share. A guard that cannot look is
told among the errors if it only flags; otherwise nothing can be scored.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grader.fields import Fields, nearest, shown
from grader.guards.base import Action, Case, Guard, GuardTable
from grader.guards.grounds import read_grounds
from grader.instruments.all import Instruments
from grader.prompts import sendable
from grader.results import GradingFaultError
from trajectory.types import Flag, GraderError, Masked, OutcomeKind, Scored

ACTIONS = ("flag", "zero", "mask")
MAX_DETAIL = 400
"""Characters of what a guard found that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A guard with what its alarm does."""

    name: str
    guard: Guard
    action: Action
    shortfall: OutcomeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    posted: Posted
    alarm: str | None
    error: GradingFaultError | None = None


async def guarded(
    scored: Scored, case: Case, posted: Sequence[Posted], low: float, instruments: Instruments
) -> Scored | Masked:
    """Return a scored outcome after the guards.

    Args:
        scored: what the graders found.
        case: the response.
        posted: the guards.
        low: the low end of the score's range.
        instruments: what guards may use.

    Raises:
        GradingFaultError: a guard that may change the score could not look.
    """
    looked = await asyncio.gather(*(_look(guard, case, instruments) for guard in posted))
    for one in looked:
        if one.error is not None and one.posted.action.name != "flag":
            raise one.error
    alarms = [(one.posted, one.alarm) for one in looked if one.alarm is not None]
    score = scored.score
    keeps, kind = 1.0, scored.kind
    flags = []
    for guard, alarm in alarms:
        action = guard.action
        if action.name == "mask" and scored.score > low:
            return Masked(kind=kind, reason=f"guard {guard.name}: {sendable(alarm[:MAX_DETAIL])}")
        if action.name == "zero":
            kind = kind or guard.shortfall
        keeps *= 1.0 - action.price
        priced = action.price > 0 and (
            scored.score > low or any(s > 0 for s in scored.step_rewards)
        )
        flags.append(Flag(name=guard.name, detail=sendable(alarm[:MAX_DETAIL]), priced=priced))
    if keeps < 1.0:
        score = low + (scored.score - low) * keeps
    return replace(
        scored,
        score=score,
        kind=kind,
        flags=tuple(flags),
        errors=(*scored.errors, *(_told(one) for one in looked if one.error is not None)),
        step_rewards=tuple(step * keeps if step > 0 else step for step in scored.step_rewards),
    )


def parse_guards(
    fields: Fields, table: GuardTable, definition: Mapping[str, object]
) -> tuple[Posted, ...]:
    """Read `guards`; problems go to the fields.

    Args:
        fields: of the whole definition.
        table: the guards by name.
        definition: what the guards watch over.
    """
    child = fields.child("guards") if fields.has("guards") else None
    if child is None:
        return ()
    grounds = read_grounds(definition)
    posted = []
    for name in child.values:
        kind = table.get(name)
        if kind is None and not child.problems.full:
            child.problems.add(child.at(name), f"is not a guard; {nearest(name, list(table))}")
        if kind is None:
            continue
        own = child.child(name)
        if own is None:
            continue
        action = _action(own)
        guard = kind.parse(own, grounds)
        own.finish()
        posted.append(Posted(name=name, guard=guard, action=action, shortfall=kind.shortfall))
    return tuple(posted)


def _action(fields: Fields) -> Action:
    value = fields.values.get("action", "flag")
    fields.has("action")
    if isinstance(value, dict):
        child = fields.child("action")
        assert child is not None
        price = child.number("price", low=0.0, high=1.0)
        child.finish()
        return Action(name="price", price=price)
    if value in ACTIONS:
        return Action(name=str(value), price=float(value == "zero"))
    fields.problems.add(
        fields.at("action"),
        f'must be flag, zero, mask or {{"price": share from 0 to 1}}, found {shown(value)}',
    )
    return Action(name="flag")


async def _look(posted: Posted, case: Case, instruments: Instruments) -> _Looked:
    try:
        return _Looked(posted=posted, alarm=await posted.guard.look(case, instruments))
    except GradingFaultError as fault:
        return _Looked(posted=posted, alarm=None, error=fault)


def _told(looked: _Looked) -> GraderError:
    assert looked.error is not None
    return GraderError(
        name=looked.posted.name,
        kind=looked.error.kind,
        detail=sendable(looked.error.detail[:MAX_DETAIL]),
    )
