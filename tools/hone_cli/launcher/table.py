"""Which services the launcher knows: their ports, the order in which they start and the order in which they drain."""

from collections.abc import Mapping
from dataclasses import dataclass

PORT_ORDER = (
    "learner",
    "rollout",
    "tool_gateway",
    "sandbox",
    "grader",
    "critic",
    "memory",
    "console",
)
"""All services in the order of their gRPC ports; each keeps its port when others are absent."""

FIRST_PORT = 50051


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraPorts:
    """Ports beside those of the services."""

    nats: int = 4222
    nats_monitor: int = 8222
    otlp: int = 4317
    page: int = 8080

    @classmethod
    def above(cls, first_port: int) -> "InfraPorts":
        """The ports right above the services', for a suite that was given a range of its own."""
        free = first_port + len(PORT_ORDER)
        return cls(nats=free, nats_monitor=free + 1, otlp=free + 2, page=free + 3)


START_WAVES = (("console",), ("sandbox", "tool_gateway", "critic", "grader", "rollout", "learner"))
"""Started wave by wave, each when the one before answers: the console first, so that no span is lost."""

DRAIN_ORDER = ("learner", "rollout", "grader", "critic", "tool_gateway", "sandbox", "console")
"""Drained one after the other: whoever asks for work stops before whoever does it."""

REPLICABLE = ("rollout", "grader")
"""Services of which more than one process may share the work on one machine."""

ENGINES = ("auto", "transformers", "vllm", "scripted")

SERVICES = tuple(name for name in PORT_ORDER if name in DRAIN_ORDER)
"""The services that `hone up` starts."""

FIRST_LOG_HINT: Mapping[str, str] = {
    "rollout": "if the engine cannot start, try `hone up --engine transformers` and `hone doctor`",
    "sandbox": "`hone doctor` says whether this kernel allows namespaces and cgroups",
}
"""What to try when a service gives up, beside reading its log."""
