"""Tells the loggers of a run its steps, on a thread, so that none of them can hold the run up or end it."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from math import isnan

from learner.health.alarms import Alarm
from learner.jobs.context import Reporter
from learner.loggers.base import MetricsLogger
from learner.runs.store import Step

log = logging.getLogger(__name__)

CLOSE_SECONDS = 30.0
"""How long the end of a run waits for its loggers."""

Work = Callable[[MetricsLogger], None]

_NONE = Step(step=-1, policy_version=0, end_time=0.0, metrics={})


class Board:
    """The loggers of one life of a run. One that fails is warned about once and left alone from then on."""

    def __init__(
        self,
        run_id: str,
        loggers: Mapping[str, Callable[[], MetricsLogger]],
        steps: Sequence[Step],
        clock: Callable[[], float],
        *,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        """Starts with the steps that the run has taken; with no logger it does nothing."""
        self._run_id = run_id
        self._clock = clock
        self._close_seconds = close_seconds
        self._last = steps[-1] if steps else _NONE
        self._makers = loggers
        self._alive: dict[str, MetricsLogger] = {}
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._put(lambda logger: logger.begin(steps))
        # A daemon: a logger that hangs must not keep the process.
        self._thread = threading.Thread(target=self._serve, name="learner.loggers", daemon=True)
        if loggers:
            self._thread.start()

    def step(self, number: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        """Tells a step; told again after a restart, it stays one step."""
        if number <= self._last.step:
            return
        step = Step(
            step=number, policy_version=policy_version, end_time=self._clock(), metrics=metrics
        )
        self._last = step
        self._put(lambda logger: logger.step(step))

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        """Tells how the run ended and waits until the loggers have it, or for half a minute.

        Figures of the whole run that no step has said, as of an evaluation after the last update, come as one step
        more.
        """
        if not self._thread.is_alive():
            return
        last = self._last
        said = {
            name: value
            for name, value in metrics.items()
            # What is not a number is not equal to itself, and no news for that.
            if last.metrics.get(name) != value and not (isnan(value) and name in last.metrics)
        }
        if said:
            self.step(last.step + 1, last.policy_version, said)
        self._put(lambda logger: logger.end(state))
        self._work.put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            log.warning(
                "loggers did not finish in time; metrics.jsonl has every step",
                extra={"run_id": self._run_id, "loggers": ", ".join(self._alive)},
            )

    def _put(self, work: Work) -> None:
        if self._makers:
            self._work.put(work)

    def _serve(self) -> None:
        for name, make in self._makers.items():
            try:
                self._alive[name] = make()
            except Exception as error:  # a package of others, which may raise anything
                self._lose(name, error)
        while (work := self._work.get()) is not None:
            for name, logger in list(self._alive.items()):
                try:
                    work(logger)
                except Exception as error:  # as above
                    self._lose(name, error)

    def _lose(self, name: str, error: Exception) -> None:
        self._alive.pop(name, None)
        log.warning(
            "a logger failed and is left alone until the run is resumed; metrics.jsonl has every step",
            extra={"run_id": self._run_id, "logger": name, "error": f"{error}"},
        )


class LoggedReporter:
    """Reports to a run's watchers and tells the board each step."""

    def __init__(self, report: Reporter, board: Board) -> None:
        """Reports to both."""
        self._report = report
        self._board = board

    def progress(self, step: int, stage: str) -> Callable[[int, int], None]:
        """Goes to the watchers."""
        return self._report.progress(step, stage)

    def alarmed(self, step: int, alarms: Sequence[Alarm]) -> None:
        """Goes to the watchers; loggers see the figures of the step."""
        self._report.alarmed(step, alarms)

    def step_done(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        """Goes to the watchers, whose file counts, and then to the loggers."""
        self._report.step_done(step, policy_version, metrics)
        self._board.step(step, policy_version, metrics)
