"""Traces: one per rollout, with the rollout_id as trace id, exported without ever blocking the work."""

import random
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from servicekit.identity import forced_trace_id

LOW_BITS = 56
"""Bits of a trace id that are random both in a UUIDv7 and in a W3C random trace id."""


class RolloutIdGenerator(IdGenerator):
    """Gives root spans the trace id of the rollout in scope, and others a random one."""

    def __init__(self, rng: random.Random) -> None:
        """Draws from `rng`."""
        self._rng = rng

    def generate_span_id(self) -> int:
        """Returns 64 random bits, never 0."""
        return self._rng.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """Returns the rollout's id inside `rollout_scope`, else 128 random bits, never 0."""
        return forced_trace_id() or self._rng.getrandbits(128) or 1


class RolloutSampler(Sampler):
    """Keeps a trace if the low 56 bits of its id lie below the ratio; a pure function of the id.

    The stock ratio sampler reads 64 bits whose top two are constant in a UUIDv7, so that it keeps nothing up to a ratio
    of 0.5. A child follows its parent, which was decided by the same id.
    """

    def __init__(self, ratio: float) -> None:
        """Keeps the share `ratio` of all ids."""
        self._bound = round(ratio * (1 << LOW_BITS))
        self._ratio = ratio

    def keeps(self, trace_id: int) -> bool:
        """Says whether the trace with this id is kept."""
        return (trace_id & ((1 << LOW_BITS) - 1)) < self._bound

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decides for one span."""
        parent = trace.get_current_span(parent_context).get_span_context()
        kept = parent.trace_flags.sampled if parent.is_valid else self.keeps(trace_id)
        decision = Decision.RECORD_AND_SAMPLE if kept else Decision.DROP
        return SamplingResult(decision, attributes if kept else None, parent.trace_state)

    def get_description(self) -> str:
        """Returns the sampler's name with its ratio."""
        return f"RolloutSampler{{{self._ratio}}}"


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Returns an exporter to host:port that gives up after 2 s."""
    # Imported here: a process that exports nothing need not load the exporter.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=2)


def tracer_provider(
    service: str, *, ratio: float, exporter: SpanExporter | None, rng: random.Random
) -> TracerProvider:
    """Returns a provider whose spans carry `service` and, with an exporter, leave in batches.

    Spans are dropped, never waited for, when the collector is away.
    """
    provider = TracerProvider(
        resource=Resource.create({"service.name": service}),
        sampler=RolloutSampler(ratio),
        id_generator=RolloutIdGenerator(rng),
        span_limits=SpanLimits(max_links=4096),
    )
    if exporter is not None:
        provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=8192, schedule_delay_millis=500)
        )
    return provider
