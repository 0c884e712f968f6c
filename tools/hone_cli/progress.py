"""Where a run stands, worked out from the learner's reports: stage, rate and time left. Pure; time is passed in."""

from collections import deque
from dataclasses import dataclass, field

_RECENT_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a progress line shows."""

    step: int
    """The step under way, from 1."""
    num_steps: int
    """0 where the run has none, as in an evaluation."""
    stage: str
    done: int
    total: int
    rate: float | None
    """Items of the stage per second; None until two reports are in."""
    seconds_left: float | None
    """None until a step, or a part of one, has shown how long it takes."""

    @property
    def fraction(self) -> float:
        """Share of the whole run that is done, between 0 and 1."""
        if self.num_steps <= 0:
            return self.done / self.total if self.total > 0 else 0.0
        return min(1.0, max(0, self.step - 1) / self.num_steps)


@dataclass(slots=True)
class RunProgress:
    """Gathers reports of one run."""

    num_steps: int
    _stage: str = "waiting"
    _step: int = 0
    _done: int = 0
    _total: int = 0
    _stage_begun: tuple[float, int] | None = None
    _last_step_at: float | None = None
    _step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    _num_done: int = 0

    def begin(self, num_done: int, now: float) -> None:
        """Notes how many steps were done before watching began; they say nothing about speed."""
        self._num_done = num_done
        self._step = num_done
        self._last_step_at = now

    def step_done(self, step: int, now: float) -> None:
        """Notes a finished step, counted from 0; one from before watching began says nothing."""
        if step < self._num_done:
            return
        if self._last_step_at is not None:
            self._step_seconds.append(now - self._last_step_at)
        self._last_step_at = now
        self._num_done = max(self._num_done, step + 1)
        self._step = self._num_done
        self._stage, self._done, self._total, self._stage_begun = "waiting", 0, 0, None

    def progressed(self, step: int, stage: str, done: int, total: int, now: float) -> None:
        """Notes where the stage under way stands."""
        if (stage, step) != (self._stage, self._step) or self._stage_begun is None:
            self._stage_begun = (now, done)
        self._stage, self._step, self._done, self._total = stage, step, done, total

    def standing(self, now: float) -> Standing:
        """What to show at this moment."""
        rate = None
        if self._stage_begun is not None:
            begun, first = self._stage_begun
            if self._done > first and now > begun:
                rate = (self._done - first) / (now - begun)
        return Standing(
            step=min(self._num_done + 1, max(1, self.num_steps)),
            num_steps=self.num_steps,
            stage=self._stage.replace("_", " "),
            done=self._done,
            total=self._total,
            rate=rate,
            seconds_left=self._seconds_left(rate, now),
        )

    def _seconds_left(self, rate: float | None, now: float) -> float | None:
        if self._step_seconds and self.num_steps:
            mean = sum(self._step_seconds) / len(self._step_seconds)
            spent = now - self._last_step_at if self._last_step_at is not None else 0.0
            return max(0.0, mean * (self.num_steps - self._num_done) - min(spent, mean))
        if rate and self._total and not self.num_steps:
            return max(0.0, (self._total - self._done) / rate)
        return None
