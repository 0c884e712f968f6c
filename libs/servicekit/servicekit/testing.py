"""A real server in the test's own process, with the same interceptors that `serve` installs."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc

from servicekit.metrics import Observe
from servicekit.serve import make_server
from servicekit.tokens import TokenVerifier


@asynccontextmanager
async def running_server(
    add: Callable[[grpc.aio.Server], None],
    *,
    verifier: TokenVerifier | None = None,
    max_message_bytes: int = 8 * 1024 * 1024,
    observers: Sequence[Observe] = (),
) -> AsyncIterator[str]:
    """Serves on a free loopback port what `add` registers, and yields host:port."""
    server = make_server(verifier, max_message_bytes, observers)
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0.2)
