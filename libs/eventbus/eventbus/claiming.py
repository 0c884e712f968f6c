"""The rules of claims over any store that can compare and set.

A write whose answer got lost is recognised by its write_id, so an outage never makes an owner doubt its own claim.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from eventbus import claims, subjects
from eventbus.claims import Claim, ClaimState
from eventbus.errors import ClaimLost
from servicekit.errors import Aborted, NotFound

_MAX_RACES = 50
"""Lost compare-and-set rounds in a row that can only be a defect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a store holds under a key."""

    value: bytes
    revision: int


class ClaimStore(Protocol):
    """Keys, values and revisions."""

    async def read(self, key: str) -> Entry | None:
        """Returns the entry, or None."""
        ...

    async def write(self, key: str, value: bytes, expected_revision: int) -> int | None:
        """Writes over the expected revision (0: no entry) and returns the new one; None if it is another."""
        ...


class StoredClaims:
    """Claims, one per rollout, each change a compare-and-set on the entry's revision."""

    def __init__(
        self, store: ClaimStore, *, clock: Callable[[], float], rng: random.Random
    ) -> None:
        """Keeps the store, and the clock that leases are measured by."""
        self._store = store
        self._clock = clock
        self._rng = rng

    async def try_claim(
        self, rollout_id: str, owner: str, lease_seconds: float
    ) -> claims.ClaimOutcome:
        """Claims a rollout that nobody has claimed before; otherwise says what there is."""
        subjects.check_name("rollout_id", rollout_id)
        current = await self.get(rollout_id)
        if current is not None:
            return claims.found(current, self._clock())
        wanted = claims.new_claim(rollout_id, owner, lease_seconds, self._clock())
        written = await self._write(wanted, expected_revision=0)
        if written is not None:
            return claims.Acquired(claim=written)
        return claims.found(await self._existing(rollout_id), self._clock())

    async def renew(self, claim: Claim) -> Claim:
        """Extends the lease by `claim.lease_seconds` from the clock's time."""
        current = claim
        for _ in range(_MAX_RACES):
            if current.state is not ClaimState.RUNNING or not claims.same_tenure(claim, current):
                raise _lost(claim, current)
            written = await self._write(claims.renewed(current, self._clock()), current.revision)
            if written is not None:
                return written
            current = await self._still(claim)
        raise _too_many_races(claim.rollout_id)

    async def commit(self, claim: Claim) -> Claim:
        """Marks the work as done."""
        current = claim
        for _ in range(_MAX_RACES):
            if current.state is ClaimState.LOST or not claims.same_tenure(claim, current):
                raise _lost(claim, current)
            if current.state is ClaimState.COMMITTED:
                return current
            done = replace(current, state=ClaimState.COMMITTED)
            written = await self._write(done, current.revision)
            if written is not None:
                return written
            current = await self._still(claim)
        raise _too_many_races(claim.rollout_id)

    async def take_over(self, rollout_id: str, owner: str) -> claims.TakeOverOutcome:
        """Marks an expired claim as lost under the next epoch."""
        for _ in range(_MAX_RACES):
            current = await self._existing(rollout_id)
            state = claims.found(current, self._clock())
            if not isinstance(state, claims.Expired):
                return state
            lost = replace(current, owner=owner, epoch=current.epoch + 1, state=ClaimState.LOST)
            written = await self._write(lost, current.revision)
            if written is not None:
                return claims.Lost(claim=written)
        raise _too_many_races(rollout_id)

    async def get(self, rollout_id: str) -> Claim | None:
        """Returns the claim as it stands."""
        entry = await self._store.read(rollout_id)
        if entry is None:
            return None
        return claims.decode_claim(rollout_id, entry.value, entry.revision)

    async def _existing(self, rollout_id: str) -> Claim:
        claim = await self.get(rollout_id)
        if claim is None:
            raise NotFound(
                f"rollout {rollout_id} has no claim: nobody began it, or its run was purged",
                reason="CLAIM_MISSING",
            )
        return claim

    async def _still(self, claim: Claim) -> Claim:
        current = await self.get(claim.rollout_id)
        if current is None:
            raise ClaimLost(
                f"the claim of rollout {claim.rollout_id} was removed: its run was purged"
            )
        return current

    async def _write(self, claim: Claim, expected_revision: int) -> Claim | None:
        """Writes over the expected revision; returns None if another write came first."""
        value = claims.encode_claim(claim, f"{self._rng.getrandbits(128):032x}")
        revision = await self._store.write(claim.rollout_id, value, expected_revision)
        if revision is None:
            entry = await self._store.read(claim.rollout_id)
            if entry is None or entry.value != value:
                return None
            revision = entry.revision
        return replace(claim, revision=revision)


def _lost(claim: Claim, current: Claim) -> ClaimLost:
    return ClaimLost(
        f"rollout {claim.rollout_id} was claimed by {claim.owner!r} under epoch {claim.epoch}, but the claim is "
        f"{current.state.value} by {current.owner!r} under epoch {current.epoch}"
    )


def _too_many_races(rollout_id: str) -> Aborted:
    return Aborted(
        f"the claim of rollout {rollout_id} changed {_MAX_RACES} times while it was being written",
        reason="CLAIM_CONTENDED",
    )
