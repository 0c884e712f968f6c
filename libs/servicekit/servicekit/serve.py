"""One way to be a service: health, reflection, interceptors, telemetry, drain on SIGTERM."""

import asyncio
import logging
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry import trace
from pydantic_settings import CliApp, CliSettingsSource

from servicekit.errors import HoneError
from servicekit.logs import configure_logging
from servicekit.metrics import CallMetrics, MetricsPort, Observe, silent_meter
from servicekit.server_interceptor import ServerInterceptor
from servicekit.settings import ServiceSettings, wrong_settings
from servicekit.telemetry import otlp_exporter, tracer_provider
from servicekit.tokens import TokenVerifier

log = logging.getLogger(__name__)
S = TypeVar("S", bound=ServiceSettings)


class App(Generic[S]):
    """What a service's `build` function fills in."""

    def __init__(
        self, name: str, settings: S, server: grpc.aio.Server, observers: list[Observe]
    ) -> None:
        """Starts empty; see `serve`."""
        self.name = name
        self.settings = settings
        self.server = server
        self.tracer = trace.get_tracer(f"hone.{name}")
        self.meter = silent_meter()
        """Records nothing unless the settings name a port for metrics."""
        self.observers = observers
        self.stopping = asyncio.Event()
        """Set when the process was told to stop; consumers watch it and take no new work."""
        self.services: list[str] = []
        self.tasks: dict[asyncio.Task[None], str] = {}
        self.drains: list[Callable[[], Awaitable[None]]] = []
        self.closers: list[Callable[[], Awaitable[None]]] = []

    def add_service(self, full_name: str) -> None:
        """Names a gRPC service for health and reflection."""
        self.services.append(full_name)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Runs background work; if it crashes, the process ends with exit code 1."""
        self.tasks[asyncio.get_running_loop().create_task(work, name=name)] = name

    def on_call(self, observe: Observe) -> None:
        """Tells `observe` of the end of every call."""
        self.observers.append(observe)

    def on_drain(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Calls `finish` on SIGTERM while the server still answers, in the order of registration."""
        self.drains.append(finish)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Calls `close` when the server has stopped, last registered first."""
        self.closers.append(close)


Build = Callable[[App[S]], Awaitable[None]]


def run(name: str, settings_class: type[S], build: Build[S]) -> None:
    """Serves until SIGTERM or SIGINT, then exits: 0 after a drain, 1 after a crash, 2 for wrong arguments.

    Settings are read from the environment and, before it, from the command line (`--help` lists them). An error that
    names its cause (typed errors, OSError, ValueError) is one line on stderr, never a bare traceback.
    """
    try:
        arguments = CliSettingsSource[Any](
            settings_class, cli_prog_name=f"python -m {name}", cli_show_env_vars=True
        )
        settings = CliApp.run(settings_class, cli_settings_source=arguments)
    except ValueError as error:
        configure_logging(name, "INFO", "json")
        log.error("cannot start: %s", wrong_settings(name, error))
        sys.exit(1)
    configure_logging(name, settings.log_level, settings.log_format)
    try:
        code = uvloop.run(serve(name, settings, build))
    except (HoneError, OSError, ValueError) as error:
        log.error("cannot start: %s", error, extra={"error_type": type(error).__name__})
        code = 1
    sys.exit(code)


async def serve(name: str, settings: S, build: Build[S]) -> int:
    """Serves until the process is told to stop; returns the exit code."""
    exporter = otlp_exporter(settings.otlp_endpoint) if settings.otlp_endpoint else None
    provider = tracer_provider(
        name, ratio=settings.trace_sample_ratio, exporter=exporter, rng=random.Random()
    )
    trace.set_tracer_provider(provider)
    verifier = (
        TokenVerifier(settings.token_key_file, time.time) if settings.token_key_file else None
    )
    observers: list[Observe] = []
    server = make_server(verifier, settings.max_message_bytes, observers)
    app = App(name, settings, server, observers)
    if settings.metrics_port:
        _serve_metrics(app)
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    _stop_on_signals(app)
    crashed = False
    try:
        if not await _built(app, build):
            return 0
        reflection.enable_server_reflection(
            [*app.services, health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        port = _bind(server, settings)
        await server.start()
        for service in ["", name, *app.services]:
            await status.set(service, health_pb2.HealthCheckResponse.SERVING)
        log.info("serving", extra={"host": settings.host, "port": port})
        crashed = await _wait_for_end(app)
        await status.enter_graceful_shutdown()
        await _drain(app, settings.drain_seconds)
        await server.stop(settings.drain_seconds)
    finally:
        await _close(app)
        await asyncio.to_thread(provider.shutdown)
    log.info("stopped", extra={"crashed": crashed})
    return 1 if crashed else 0


def _serve_metrics(app: App[Any]) -> None:
    settings = app.settings
    metrics = MetricsPort(app.name, settings.host, settings.metrics_port)
    app.meter = metrics.meter
    app.on_call(CallMetrics(metrics.meter).observe)
    app.on_close(lambda: asyncio.to_thread(metrics.close))
    log.info("metrics", extra={"host": settings.host, "port": metrics.port})


async def _built(app: App[S], build: Build[S]) -> bool:
    """Runs `build`; returns False if the process was told to stop while it waited for something."""
    building = asyncio.ensure_future(build(app))
    stop = asyncio.ensure_future(app.stopping.wait())
    try:
        await asyncio.wait([building, stop], return_when=asyncio.FIRST_COMPLETED)
        if not building.done():
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)
            log.info("told to stop before everything was there")
            return False
        await building
        return True
    finally:
        stop.cancel()


def make_server(
    verifier: TokenVerifier | None, max_message_bytes: int, observers: Sequence[Observe] = ()
) -> grpc.aio.Server:
    """Returns a server with Hone's interceptor and limits; tests use it without the rest."""
    return grpc.aio.server(
        interceptors=[ServerInterceptor(verifier, observers)],
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            # No limit: a process that did not run for a while reads its clients' pings of that while at once.
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.max_connection_age_ms", 300_000),
            ("grpc.max_connection_age_grace_ms", 600_000),
            ("grpc.so_reuseport", 0),
        ],
    )


def _bind(server: grpc.aio.Server, settings: ServiceSettings) -> int:
    name = f"{settings.model_config.get('env_prefix', '')}PORT"
    problem = f"{name}: port {settings.port} on {settings.host} is in use or not allowed"
    try:
        port = server.add_insecure_port(f"{settings.host}:{settings.port}")
    except RuntimeError as error:
        raise OSError(problem) from error
    if port == 0:
        raise OSError(problem)
    return port


def _stop_on_signals(app: App[Any]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.stopping.set)


async def _wait_for_end(app: App[Any]) -> bool:
    """Returns True if a background task crashed, False if the process was told to stop."""
    stop = asyncio.get_running_loop().create_task(app.stopping.wait())
    pending: set[asyncio.Task[Any]] = {stop, *app.tasks}
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stop}:
            error = task.exception() if not task.cancelled() else None
            if error is not None:
                log.error("background task failed", exc_info=error, extra={"task": app.tasks[task]})
                app.stopping.set()
                stop.cancel()
                return True
        if stop in done:
            return False


async def _drain(app: App[Any], seconds: float) -> None:
    """Lets the service finish or hand back what it holds, within `seconds` in all."""
    try:
        async with asyncio.timeout(seconds):
            for finish in app.drains:
                await finish()
            await asyncio.gather(*app.tasks, return_exceptions=True)
    except TimeoutError:
        log.warning("drain ran out of time", extra={"seconds": seconds})


async def _close(app: App[Any]) -> None:
    for task in app.tasks:
        task.cancel()
    await asyncio.gather(*app.tasks, return_exceptions=True)
    for close in reversed(app.closers):
        await close()
