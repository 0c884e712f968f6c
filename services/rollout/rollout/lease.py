"""The hold on a rollout: renewed while the work goes on, checked before every side effect."""

import asyncio
import logging
from collections.abc import Callable

from eventbus.claims import Claim, Claims
from eventbus.errors import ClaimLost
from servicekit.errors import HoneError

_LOG = logging.getLogger("hone.rollout")


class Lease:
    """A claim under renewal.

    A process that was stopped past its lease finds out at the next `check`, before it acts: the
    lease has run out by the clock, so it renews first, and the renewal fails if somebody took over.
    """

    def __init__(
        self,
        claims: Claims,
        claim: Claim,
        *,
        renew_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """Takes a fresh claim."""
        self._claims = claims
        self._claim = claim
        self._renew_seconds = renew_seconds
        self._clock = clock
        self._lock = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """Number of the claim that all side effects carry."""
        return self._claim.epoch

    async def check(self) -> None:
        """Returns if the lease is live or could be renewed."""
        if self._clock() >= self._claim.lease_deadline:
            await self._renew()

    async def keep(self) -> None:
        """Renews until cancelled.

        Raises:
            ClaimLost: somebody else has taken the rollout over.
        """
        while True:
            await asyncio.sleep(self._renew_seconds)
            try:
                await self._renew()
            except ClaimLost:
                raise
            except HoneError as error:
                # Nobody can take over while the store is away; the next round tries again.
                _LOG.warning(
                    "lease not renewed",
                    extra={"rollout_id": self._claim.rollout_id, "error": str(error)},
                )

    async def commit(self) -> None:
        """Marks the work as done, before it is told.

        Raises:
            ClaimLost: somebody else has taken the rollout over.
        """
        async with self._lock:
            self._claim = await self._claims.commit(self._claim)

    async def _renew(self) -> None:
        async with self._lock:
            self._claim = await self._claims.renew(self._claim)
