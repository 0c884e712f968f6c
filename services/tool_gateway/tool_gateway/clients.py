"""Runs commands through the sandbox service, with the caller's own rollout token."""

from collections.abc import Callable

import grpc
from hone.sandbox.v1 import sandbox_pb2_grpc

from servicekit.attributes import TOKEN_METADATA_KEY
from servicekit.errors import DeadlineExceeded, NotFound, Unavailable
from servicekit.tokens import current_token_text
from tool_gateway.convert import command_to_proto, ended_from_proto
from tool_gateway.sandboxes import Command, Ended

MARGIN_SECONDS = 10.0
"""What an Exec may take beyond its command's own timeout."""


class GrpcSandbox:
    """The sandbox service; connects on first use."""

    def __init__(self, connect: Callable[[], grpc.aio.Channel]) -> None:
        """Keep how to connect."""
        self._connect = connect
        self._channel: grpc.aio.Channel | None = None

    async def exec(self, command: Command) -> Ended:
        """Run a command; its exec_id makes repeating it safe.

        Raises:
            Unavailable: the sandbox is lost or out of reach.
        """
        if self._channel is None:
            self._channel = self._connect()
        stub: sandbox_pb2_grpc.SandboxServiceAsyncStub = sandbox_pb2_grpc.SandboxServiceStub(
            self._channel
        )
        try:
            response = await stub.Exec(
                command_to_proto(command),
                metadata=((TOKEN_METADATA_KEY, current_token_text()),),
                timeout=command.timeout_seconds + MARGIN_SECONDS,
            )
        except (NotFound, DeadlineExceeded) as err:
            raise Unavailable(
                f"sandbox {command.sandbox_id} is lost: {err.message}",
                reason="SANDBOX_LOST",
                retryable=True,
                attributable="infra",
            ) from err
        return ended_from_proto(response.result)

    async def close(self) -> None:
        """Close the channel, if one was opened."""
        if self._channel is not None:
            await self._channel.close()
