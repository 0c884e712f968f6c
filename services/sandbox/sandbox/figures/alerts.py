"""Says in the log when a figure crosses its limit, for whoever has no Prometheus to watch.

The same limits stand in deploy/alerts/sandbox.yaml. A crossing is said once, and once more when it is over.
"""

import logging
from dataclasses import dataclass

from sandbox.figures.measures import WINDOW_SECONDS, Measures

log = logging.getLogger(__name__)

PROVISION_SECONDS = 10.0
INFRA_ERROR_RATE = 0.05
ROLLOUT_TIMEOUT_RATE = 0.01
LEAKED_ABOVE_BASELINE = 50
FEWEST = 20
"""A rate over fewer things than these is not judged: one of three is no trend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One figure and its limit."""

    name: str
    value: float
    limit: float


class Alarms:
    """Remembers which figures are over their limit."""

    def __init__(self, measures: Measures) -> None:
        """Watches `measures`; nothing is over at first."""
        self._measures = measures
        self._over: set[str] = set()

    def check(self, leaked_count: int, leaked_baseline: int) -> None:
        """Look at every figure."""
        for reading in self._readings(leaked_count, leaked_baseline):
            extra = {"figure": round(reading.value, 4), "threshold": reading.limit}
            if reading.value > reading.limit and reading.name not in self._over:
                self._over.add(reading.name)
                log.error("ALERT: %s is over its threshold", reading.name, extra=extra)
            elif reading.value <= reading.limit and reading.name in self._over:
                self._over.discard(reading.name)
                log.info("alert over: %s is back", reading.name, extra=extra)

    def _readings(self, leaked_count: int, leaked_baseline: int) -> list[Reading]:
        measures = self._measures
        found = [
            Reading(
                name="provision_p95_seconds",
                value=measures.provisioning(WINDOW_SECONDS).p95_seconds,
                limit=PROVISION_SECONDS,
            ),
            Reading(
                name="leaked_count",
                value=leaked_count,
                limit=leaked_baseline + LEAKED_ABOVE_BASELINE,
            ),
        ]
        for name, window, limit in (
            ("infra_error_rate", measures.calls, INFRA_ERROR_RATE),
            ("rollout_timeout_rate", measures.ends, ROLLOUT_TIMEOUT_RATE),
        ):
            _, total = window.counts()
            share = window.share() if total >= FEWEST else 0.0
            found.append(Reading(name=name, value=share, limit=limit))
        return found
