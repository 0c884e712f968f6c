"""Where a run stands, worked out from the learner's reports: stage, rate and time left. Pure; time is passed in."""

from collections import deque
from dataclasses import dataclass, field

_RECENT_STEPS = 5
_TOGETHER_SECONDS = 0.05
"""Steps told within this were told at once, as where one checkpoint holds several."""


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
    _told: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS + 1))
    """When steps were told, and how many were done by then."""
    _num_done: int = 0
    _is_at_work: bool = False
    """Whether a stage has counted anything: until then models are loaded, which no later step does again."""

    def begin(self, num_done: int, now: float) -> None:
        """Notes how many steps were done before watching began; they say nothing about speed."""
        self._num_done = num_done
        self._step = num_done
        self._told.clear()
        self._told.append((now, num_done))

    def step_done(self, step: int, now: float) -> None:
        """Notes a finished step, counted from 0; one from before watching began says nothing."""
        if step < self._num_done:
            return
        self._num_done = max(self._num_done, step + 1)
        if len(self._told) > 1 and now - self._told[-1][0] < _TOGETHER_SECONDS:
            now = self._told.pop()[0]
        self._told.append((now, self._num_done))
        self._step = self._num_done
        self._stage, self._done, self._total, self._stage_begun = "waiting", 0, 0, None

    def progressed(self, step: int, stage: str, done: int, total: int, now: float) -> None:
        """Notes where the stage under way stands."""
        if (stage, step) != (self._stage, self._step) or self._stage_begun is None:
            self._stage_begun = (now, done)
        if total and not self._is_at_work:
            self._is_at_work = True
            if len(self._told) == 1 and step == self._num_done:
                self._told[0] = (now, step)
        self._stage, self._step, self._done, self._total = stage, step, done, total

    def standing(self, now: float) -> Standing:
        """What to show at this moment."""
        rate = None
        if self._stage_begun is not None:
            begun, first = self._stage_begun
            if self._done > first and now > begun:
                rate = (self._done - first) / (now - begun)
        return Standing(
            step=min(self._under_way + 1, max(1, self.num_steps)),
            num_steps=self.num_steps,
            stage=self._stage.replace("_", " "),
            done=self._done,
            total=self._total,
            rate=rate,
            seconds_left=self._seconds_left(rate, now),
        )

    @property
    def _under_way(self) -> int:
        """The step under way, from 0: steps that no checkpoint holds yet were not told."""
        return max(self._num_done, self._step)

    def _seconds_left(self, rate: float | None, now: float) -> float | None:
        if len(self._told) > 1 and self.num_steps:
            (began, first), (last, done) = self._told[0], self._told[-1]
            mean = (last - began) / (done - first)
            left = mean * (self.num_steps - done) - (now - last)
            return max(0.0, left, mean * (self.num_steps - self._under_way - 1))
        if rate and self._total and not self.num_steps:
            return max(0.0, (self._total - self._done) / rate)
        return None
