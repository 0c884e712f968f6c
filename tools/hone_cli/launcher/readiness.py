"""Asks a process whether it is ready: NATS by HTTP, services by grpc.health.v1."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Probe = Callable[[], Awaitable[bool]]
"""Answers whether the process is ready now; never raises."""

_PROBE_SECONDS = 2.0


def nats_probe(host: str, monitor_port: int) -> Probe:
    """Ready when JetStream answers."""

    async def ready() -> bool:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                reader, writer = await asyncio.open_connection(host, monitor_port)
                try:
                    writer.write(
                        b"GET /healthz?js-enabled-only=true HTTP/1.1\r\n"
                        b"Host: localhost\r\nConnection: close\r\n\r\n"
                    )
                    status = await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False
        return b" 200 " in status

    return ready


def grpc_probe(address: str) -> Probe:
    """Ready when the server's overall health is SERVING."""

    async def ready() -> bool:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                reply = await stub.Check(
                    health_pb2.HealthCheckRequest(), timeout=_PROBE_SECONDS, wait_for_ready=False
                )
            except grpc.aio.AioRpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    return ready
