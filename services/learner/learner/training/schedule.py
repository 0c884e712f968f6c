"""The learning rate of each step: a pure function of the step, so a checkpoint need not hold it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """How the learning rate moves."""

    learning_rate: float
    max_steps: int
    warmup_steps: int = 0
    kind: str = "constant"
    """A name of SCHEDULES."""


def constant(settings: ScheduleSettings, step: int) -> float:
    """Stays."""
    return 1.0


def linear(settings: ScheduleSettings, step: int) -> float:
    """Falls from 1 after the warm-up to 0 after the last step."""
    length = max(1, settings.max_steps - settings.warmup_steps)
    return max(0.0, 1.0 - (step - settings.warmup_steps) / length)


SCHEDULES: dict[str, Callable[[ScheduleSettings, int], float]] = {
    "constant": constant,
    "linear": linear,
}
"""By the name that `train.schedule` gives."""


def learning_rate(settings: ScheduleSettings, step: int) -> float:
    """Returns the rate of a step, counted from 0; the first of w warm-up steps has 1 / w of the peak."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    return settings.learning_rate * SCHEDULES[settings.kind](settings, step)
