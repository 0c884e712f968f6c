"""Metrics: OpenTelemetry instruments whose figures Prometheus fetches from a port of their own.

A service gets a `Meter` as `App.meter`; without a port it is one that records nothing. Every call of every service is
measured by `CallMetrics`; a service that wants to see the ends of its calls itself adds an observer with `App.on_call`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, start_http_server

from servicekit import attributes

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Upper bounds of histograms of seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """How one call that a service handled ended."""

    service: str
    """Full name, for example hone.sandbox.v1.SandboxService."""
    method: str
    code: str
    """Name of the gRPC status; OK where it went well."""
    attributable: str
    """infra, workload or client, as the error said; empty where it went well."""
    seconds: float


Observe = Callable[[CallEnd], None]
"""Is told of every call's end; must be quick and must not raise."""


class MetricsPort:
    """Answers Prometheus on a port of its own, in a thread of its own."""

    def __init__(self, service: str, host: str, port: int) -> None:
        """Serves at once; port 0 takes any free one.

        Raises:
            OSError: the port is in use or not allowed.
        """
        registry = CollectorRegistry()
        self._provider = MeterProvider(
            metric_readers=[PrometheusMetricReader(scope_info_enabled=False, registry=registry)],
            resource=Resource.create({"service.name": service}),
            shutdown_on_exit=False,
        )
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            self._provider.shutdown()
            raise OSError(f"metrics_port: port {port} on {host}: {error.strerror}") from error
        self.port = self._server.server_port
        self.meter: Meter = self._provider.get_meter(f"hone.{service}")

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._provider.shutdown()


def silent_meter() -> Meter:
    """Return a meter that records nothing."""
    return NoOpMeterProvider().get_meter("hone")


class CallMetrics:
    """Measures calls by service, method, status and whose doing a failure was."""

    def __init__(self, meter: Meter) -> None:
        """Records with `meter`."""
        self._seconds = meter.create_histogram(
            attributes.METRIC_RPC_SERVER_DURATION,
            unit="s",
            description="How long calls took",
            explicit_bucket_boundaries_advisory=SECONDS_BUCKETS,
        )

    def observe(self, end: CallEnd) -> None:
        """Keep one call's end."""
        self._seconds.record(
            end.seconds,
            {
                attributes.RPC_SERVICE: end.service,
                attributes.RPC_METHOD: end.method,
                attributes.RPC_STATUS: end.code,
                attributes.ERROR_ATTRIBUTABLE: end.attributable,
            },
        )
