"""What runs are about to need: a step that is planned will ask for one sandbox per rollout.

A need fades as its sandboxes are asked for, and by itself some time after it was told: what is kept ready for a step
that never comes must not stay. A run whose rollouts have no tools needs no sandboxes.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_REMEMBERED = 1000
"""Runs, and plans that were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNeeds:
    """What a run said of itself when it began."""

    uses_sandboxes: bool
    template: str
    """Empty means the default one."""


@dataclass(slots=True, kw_only=True)
class _Plan:
    """One step's need."""

    template: str
    count: int
    until: float


class Plans:
    """Adds up what the steps under way still need."""

    def __init__(
        self,
        *,
        default_template: str,
        most: int,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """Starts without plans.

        Args:
            default_template: Of runs that name none.
            most: Most sandboxes of a template that plans may ask for, all runs together.
            seconds: How long a plan counts.
            clock: Seconds since the epoch.
        """
        self._default_template = default_template
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._runs: OrderedDict[str, RunNeeds] = OrderedDict()
        self._plans: dict[str, list[_Plan]] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()

    def run_started(self, run_id: str, needs: RunNeeds) -> None:
        """Note what a run will use."""
        self._runs[run_id] = needs
        if len(self._runs) > _REMEMBERED:
            self._runs.popitem(last=False)

    def step_planned(self, plan_id: str, run_id: str, count: int, told_time: float) -> None:
        """Note that a run will ask for so many sandboxes.

        A plan that is told again counts once, and one that was told too long ago not at all.
        """
        if plan_id in self._seen:
            return
        self._seen[plan_id] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        needs = self._runs.get(run_id)
        until = told_time + self._seconds
        if (needs is not None and not needs.uses_sandboxes) or until <= self._clock() or count < 1:
            return
        template = (needs.template if needs is not None else "") or self._default_template
        plan = _Plan(template=template, count=count, until=until)
        self._plans.setdefault(run_id, []).append(plan)

    def used(self, run_id: str) -> None:
        """Note that a run has asked for one; its oldest plan needs one less."""
        plans = self._plans.get(run_id)
        if plans:
            plans[0].count -= 1
            if plans[0].count < 1:
                del plans[0]
            if not plans:
                del self._plans[run_id]

    def run_finished(self, run_id: str) -> None:
        """Forget a run."""
        self._plans.pop(run_id, None)
        self._runs.pop(run_id, None)

    def need(self, template: str) -> int:
        """Return how many sandboxes of a template the plans that count still need, bounded."""
        now = self._clock()
        total = 0
        for run_id, plans in list(self._plans.items()):
            plans[:] = [plan for plan in plans if plan.until > now]
            if not plans:
                del self._plans[run_id]
            total += sum(plan.count for plan in plans if plan.template == template)
        return min(self._most, total)
