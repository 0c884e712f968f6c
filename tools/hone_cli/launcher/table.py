"""Which services the launcher knows: their ports, the order in which they start and the order in which they drain."""

from collections.abc import Mapping

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
OTLP_PORT = 4317
PAGE_PORT = 8080
NATS_PORT = 4222
NATS_MONITOR_PORT = 8222

START_WAVES = (("console",), ("sandbox", "tool_gateway", "grader", "rollout", "learner"))
"""Started wave by wave, each when the one before answers: the console first, so that no span is lost."""

DRAIN_ORDER = ("learner", "rollout", "grader", "tool_gateway", "sandbox", "console")
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
