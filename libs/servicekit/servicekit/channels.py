"""Channels to other services: where they are, and how calls to them behave."""

import json
import os
import random
from collections.abc import Callable, Collection
from pathlib import Path

import grpc

from servicekit.client_interceptors import StreamUnary, UnaryStream, UnaryUnary
from servicekit.errors import Unavailable
from servicekit.settings import DEFAULT_PORT, ServiceSettings


def resolve(
    service: str,
    settings: ServiceSettings | None = None,
    *,
    endpoints_file: Path | None = None,
    environ: "os._Environ[str] | dict[str, str]" = os.environ,
) -> str:
    """Returns the host:port of a service.

    HONE_<SERVICE>_ADDRESS comes first, then the endpoints file, then the service's name as a host, which is right in a
    Kubernetes namespace.

    Raises:
        Unavailable: the endpoints file exists and does not name the service.
    """
    address = environ.get(f"HONE_{service.upper()}_ADDRESS")
    if address:
        return address
    file = endpoints_file or (settings.endpoints_file if settings is not None else None)
    if file is not None and file.exists():
        endpoints = json.loads(file.read_text(encoding="utf-8"))
        if service not in endpoints:
            raise Unavailable(f"{file}: names no {service}; is it part of the running suite?")
        return str(endpoints[service])
    return f"{service.replace('_', '-')}:{DEFAULT_PORT}"


def connect(
    target: str,
    *,
    token: Callable[[], str] | None = None,
    default_timeout_seconds: float = 30.0,
    idempotent_methods: Collection[str] = (),
    rng: random.Random | None = None,
    max_message_bytes: int = 8 * 1024 * 1024,
) -> grpc.aio.Channel:
    """Returns a channel whose calls carry the trace, a deadline and a token, and fail with typed errors.

    Args:
        target: host:port; a name with several addresses is balanced round robin.
        token: Returns the rollout token for a call; a call that brings its own keeps it.
        default_timeout_seconds: For unary calls made without a timeout.
        idempotent_methods: Names of the methods that may be repeated when the transport fails.
        rng: Source of jitter.
        max_message_bytes: Largest message in either direction.
    """
    common = {
        "token": token,
        "default_timeout_seconds": default_timeout_seconds,
        "idempotent_methods": idempotent_methods,
        "rng": rng or random.Random(),
    }
    service_config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    return grpc.aio.insecure_channel(
        target,
        options=[
            ("grpc.service_config", service_config),
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ],
        interceptors=[UnaryUnary(**common), StreamUnary(**common), UnaryStream(**common)],  # type: ignore[arg-type]  # one keyword set for all three
    )
