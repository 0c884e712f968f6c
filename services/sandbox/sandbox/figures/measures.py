"""The figures of the service: counted for GetStats over the last ten minutes, and recorded for Prometheus."""

import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.metrics import Meter

from sandbox.figures.rates import Window
from sandbox.types import Cause, SandboxInfo, Stats, Termination
from servicekit import attributes
from servicekit.metrics import SECONDS_BUCKETS, CallEnd

WINDOW_SECONDS = 600.0
"""Over how long rates are taken."""

_MEASURED_CREATES = 1000
_SERVICE = "hone.sandbox.v1.SandboxService"
_UNCOUNTED = ("GetStats",)
"""Calls that look at the service and not through it: they would thin out the rate of failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """How long sandboxes took to become ready."""

    p50_seconds: float = 0.0
    p95_seconds: float = 0.0


class Measures:
    """Counts and records what happened."""

    def __init__(self, clock: Callable[[], float], meter: Meter) -> None:
        """Starts at nothing.

        Args:
            clock: Moves the window.
            meter: Records for Prometheus.
        """
        self._clock = clock
        self.created_count = 0
        self.destroyed_count = 0
        self.warm_hit_count = 0
        self.polluted_count = 0
        self.calls = Window(WINDOW_SECONDS, clock)
        """Calls, and those that failed by a fault of ours."""
        self.ends = Window(WINDOW_SECONDS, clock)
        """Sandboxes that ended, and those whose lifetime was over."""
        self._provisions: deque[tuple[float, float]] = deque(maxlen=_MEASURED_CREATES)
        """When each was ready, and after how many seconds."""
        self._provision = meter.create_histogram(
            attributes.METRIC_SANDBOX_PROVISION,
            unit="s",
            description="From the call to the first possible command",
            explicit_bucket_boundaries_advisory=SECONDS_BUCKETS,
        )
        self._destroyed = meter.create_counter(
            attributes.METRIC_SANDBOX_DESTROYED, description="Sandboxes destroyed, by cause"
        )
        self._execs = meter.create_counter(
            attributes.METRIC_SANDBOX_EXECS, description="Commands ended, by how"
        )
        self._gauges = {
            name: meter.create_gauge(name, description=description)
            for name, description in (
                (
                    attributes.METRIC_SANDBOX_LIVE,
                    "Sandboxes that exist, the warm pool's not counted",
                ),
                (attributes.METRIC_SANDBOX_EXPECTED, "Sandboxes that the table says exist"),
                (attributes.METRIC_SANDBOX_LEAKED, "Live minus expected"),
                (attributes.METRIC_SANDBOX_LEAKED_BASELINE, "Live minus expected at the start"),
                (attributes.METRIC_SANDBOX_WARM, "Sandboxes ready in the warm pool"),
                (attributes.METRIC_SANDBOX_QUEUED, "Creations that wait for their turn"),
            )
        }
        for cause in Cause:  # a rate over a counter needs it to be there before the first time
            self._destroyed.add(0, {attributes.SANDBOX_CAUSE: str(cause)})

    def call_ended(self, end: CallEnd) -> None:
        """Note how a call ended."""
        if end.service == _SERVICE and end.method not in _UNCOUNTED:
            self.calls.add(counted=end.attributable == "infra")

    def provisioned(self, info: SandboxInfo) -> None:
        """Note that a sandbox was handed over."""
        self.created_count += 1
        self.warm_hit_count += info.warm
        self._provisions.append((self._clock(), info.provision_seconds))
        self._provision.record(
            info.provision_seconds,
            {
                attributes.SANDBOX_TEMPLATE: info.template,
                attributes.SANDBOX_START: "warm" if info.warm else "cold",
            },
        )

    def destroyed(self, cause: Cause, *, polluted: bool) -> None:
        """Note that nothing is left of a sandbox."""
        self.destroyed_count += 1
        self.polluted_count += polluted
        self.ends.add(counted=cause is Cause.LIFETIME)
        self._destroyed.add(1, {attributes.SANDBOX_CAUSE: str(cause)})

    def exec_ended(self, termination: Termination) -> None:
        """Note how a command ended."""
        self._execs.add(1, {attributes.EXEC_TERMINATION: str(termination)})

    def provisioning(self, within_seconds: float | None = None) -> Provisioning:
        """Return how long the last sandboxes took; at most 1000 of them, by default however old."""
        oldest = -1.0 if within_seconds is None else self._clock() - within_seconds
        times = sorted(seconds for ready, seconds in self._provisions if ready >= oldest)
        if not times:
            return Provisioning()
        return Provisioning(
            p50_seconds=statistics.median(times),
            p95_seconds=times[math.ceil(0.95 * len(times)) - 1],
        )

    def show(self, stats: Stats, leaked_baseline: int) -> None:
        """Record the counts of the moment."""
        for name, value in (
            (attributes.METRIC_SANDBOX_LIVE, stats.live_count),
            (attributes.METRIC_SANDBOX_EXPECTED, stats.expected_count),
            (attributes.METRIC_SANDBOX_LEAKED, stats.leaked_count),
            (attributes.METRIC_SANDBOX_LEAKED_BASELINE, leaked_baseline),
            (attributes.METRIC_SANDBOX_WARM, stats.warm_count),
            (attributes.METRIC_SANDBOX_QUEUED, stats.queued_count),
        ):
            self._gauges[name].set(value)
