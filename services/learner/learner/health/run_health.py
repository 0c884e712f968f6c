"""The health of one run: what its steps' figures say, which alarms are new, and whether the run goes on.

`alarms.py` has the detectors; this holds a run's series and its limits.
"""

from collections.abc import Mapping, Sequence

from learner.health.alarms import PREFIX, Alarm, Figures, Limits, new_alarms
from learner.ports import Stopped
from runspec.schema import HealthSpec

MAX_STEPS = 2000
"""Steps that alarms look back on, besides the first window: judging a step must not grow dearer for ever."""


class AlarmStop(Stopped):
    """An alarm ended the run after a step that is saved."""


class RunHealth:
    """Judges step after step."""

    def __init__(self, spec: HealthSpec, history: Sequence[Figures]) -> None:
        """Goes on from the figures of the steps that are done."""
        self._stops = spec.on_alarm == "stop"
        self._limits = Limits(
            window=spec.window,
            reward_fall=spec.reward_fall,
            entropy_floor=spec.entropy_floor,
            repetition_rise=spec.repetition_rise,
            forgetting=spec.forgetting,
            hacking_gap=spec.hacking_gap,
            kl_rise=spec.kl_rise,
            held_out=spec.held_out,
        )
        self._history: list[Figures] = []
        for figures in history:
            self._take(figures)

    def judge(self, figures: Figures) -> list[Alarm]:
        """Takes in the figures of a step and returns the alarms that it raised."""
        self._take(figures)
        return new_alarms(self._history, self._limits)

    def _take(self, figures: Figures) -> None:
        self._history.append(figures)
        if len(self._history) > self._limits.window + MAX_STEPS:
            del self._history[self._limits.window]

    def check(self, step: int, alarms: Sequence[Alarm]) -> None:
        """Ends the run where its spec asks for it.

        Raises:
            AlarmStop: the step raised an alarm; resuming the run goes on in spite of it.
        """
        if self._stops and alarms:
            said = "; ".join(f"{alarm.kind}: {alarm.detail}" for alarm in alarms)
            raise AlarmStop(f"stopped by an alarm in step {step + 1}: {said}")


def alarm_figures(alarms: Sequence[Alarm]) -> Mapping[str, float]:
    """Returns the figures that tell of alarms."""
    return {f"{PREFIX}{alarm.kind}": 1.0 for alarm in alarms}
