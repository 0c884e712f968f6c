"""What the grader asks of the sandbox service: that a box lives while its rollout is graded; whether it is polluted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import grpc
from hone.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc

from servicekit.attributes import TOKEN_METADATA_KEY
from servicekit.errors import HoneError
from trajectory.convert import duration_to_proto

_LOG = logging.getLogger("hone.grader.lease")


class MintToken(Protocol):
    """Makes a grader's token for one rollout."""

    def __call__(self, rollout_id: str, epoch: int) -> str:
        """Return the token."""
        ...


class SandboxLeases:
    """Renews leases; the first renewal comes only when grading has taken that long."""

    def __init__(
        self,
        connect: Callable[[], grpc.aio.Channel],
        mint: MintToken,
        *,
        renew_seconds: float,
        lease_seconds: float,
    ) -> None:
        """Connect on first use.

        Args:
            connect: makes the channel to the sandbox service.
            mint: makes the grader's tokens.
            renew_seconds: between renewals.
            lease_seconds: what each renewal asks for.
        """
        self._connect = connect
        self._mint = mint
        self._renew_seconds = renew_seconds
        self._lease_seconds = lease_seconds
        self._channel: grpc.aio.Channel | None = None

    @asynccontextmanager
    async def held(self, sandbox_id: str, rollout_id: str, epoch: int) -> AsyncIterator[None]:
        """Keep a sandbox alive inside the block; without a sandbox do nothing."""
        if not sandbox_id:
            yield
            return
        renewing = asyncio.get_running_loop().create_task(
            self._renew(sandbox_id, rollout_id, epoch), name=f"lease {sandbox_id}"
        )
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def close(self) -> None:
        """Close the channel, if one was opened."""
        if self._channel is not None:
            await self._channel.close()

    async def pollution(self, sandbox_id: str, rollout_id: str, epoch: int) -> str:
        """Say why a rollout's shared environment makes its result worthless; empty if it does not.

        Raises:
            HoneError: the service cannot say it now.
        """
        request = sandbox_pb2.GetSandboxRequest(sandbox_id=sandbox_id, rollout_id=rollout_id)
        try:
            reply = await self._stub().GetSandbox(
                request,
                metadata=((TOKEN_METADATA_KEY, self._mint(rollout_id, epoch)),),
                timeout=self._renew_seconds,
            )
        except HoneError as err:
            if err.retryable:
                raise
            # Nobody can say any more what happened in it; what is not known to be clean has no vote.
            return f"polluted: its environment was gone before grading: {err.message}"
        return "polluted" if reply.sandbox.polluted else ""

    def _stub(self) -> "sandbox_pb2_grpc.SandboxServiceAsyncStub":
        if self._channel is None:
            self._channel = self._connect()
        stub: sandbox_pb2_grpc.SandboxServiceAsyncStub = sandbox_pb2_grpc.SandboxServiceStub(
            self._channel
        )
        return stub

    async def keep(self, sandbox_id: str, rollout_id: str, epoch: int, seconds: float) -> None:
        """Keep a sandbox alive for a while and for one lease beyond it, in which grading can begin again."""
        await self._extend(sandbox_id, rollout_id, epoch, seconds + self._lease_seconds)

    async def _renew(self, sandbox_id: str, rollout_id: str, epoch: int) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            await self._extend(sandbox_id, rollout_id, epoch, self._lease_seconds)

    async def _extend(
        self, sandbox_id: str, rollout_id: str, epoch: int, lease_seconds: float
    ) -> None:
        request = sandbox_pb2.ExtendLifetimeRequest(
            sandbox_id=sandbox_id,
            rollout_id=rollout_id,
            idle_timeout=duration_to_proto(lease_seconds),
        )
        token = self._mint(rollout_id, epoch)
        try:
            await self._stub().ExtendLifetime(
                request, metadata=((TOKEN_METADATA_KEY, token),), timeout=self._renew_seconds
            )
        except HoneError as err:
            # Graders of answers do not need the box; one that does fails by itself and says so.
            _LOG.warning(
                "lease could not be renewed",
                extra={
                    "sandbox_id": sandbox_id,
                    "rollout_id": rollout_id,
                    "error": err.message,
                },
            )


class NoLeases:
    """For a grader that has no keys to mint tokens with: boxes live as long as their own lease."""

    @asynccontextmanager
    async def held(self, sandbox_id: str, rollout_id: str, epoch: int) -> AsyncIterator[None]:
        """Do nothing around the block."""
        yield

    async def keep(self, sandbox_id: str, rollout_id: str, epoch: int, seconds: float) -> None:
        """Do nothing."""

    async def pollution(self, sandbox_id: str, rollout_id: str, epoch: int) -> str:
        """Say that nobody can say it: the sandbox service answers no call without a token."""
        return "polluted: the grader has no key (token_key_file) to ask about its environment"

    async def close(self) -> None:
        """Do nothing."""
