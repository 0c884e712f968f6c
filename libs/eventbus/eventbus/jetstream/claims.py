"""Claims in a key-value bucket: every change is a compare-and-set on the entry's revision.

A write whose answer got lost is recognised by its write_id, so an outage never makes an owner doubt its own claim.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import nats.js.errors
from nats.js.kv import KeyValue
from servicekit.errors import Aborted, NotFound

from eventbus import claims
from eventbus.claims import Claim, ClaimState
from eventbus.errors import ClaimLost
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.retry import persist
from eventbus.jetstream.streams import CLAIMS_BUCKET, RETRIES_BUCKET

_MAX_RACES = 50
"""Lost compare-and-set rounds in a row that can only be a defect."""


class NatsClaims:
    """The claims of the suite, in NATS."""

    def __init__(
        self, connection: NatsConnection, *, clock: Callable[[], float], rng: random.Random
    ) -> None:
        """Keeps the connection and the clock that leases are measured by."""
        self._connection = connection
        self._clock = clock
        self._rng = rng

    async def try_claim(
        self, rollout_id: str, owner: str, lease_seconds: float
    ) -> claims.ClaimOutcome:
        """Claims a rollout that nobody has claimed before; otherwise says what there is."""
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
            written = await self._write(
                replace(current, state=ClaimState.COMMITTED), current.revision
            )
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
        entry = await self._entry(rollout_id)
        if entry is None:
            return None
        return claims.decode_claim(rollout_id, entry.value or b"", entry.revision or 0)

    async def _entry(self, rollout_id: str) -> KeyValue.Entry | None:
        async def read() -> KeyValue.Entry | None:
            bucket = await self._bucket()
            try:
                return await bucket.get(rollout_id)
            except nats.js.errors.KeyNotFoundError:
                return None

        return await persist(
            self._connection, f"reading the claim of {rollout_id}", read, rng=self._rng
        )

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

        async def write() -> int | None:
            bucket = await self._bucket()
            try:
                return await bucket.update(claim.rollout_id, value, last=expected_revision)
            except nats.js.errors.KeyWrongLastSequenceError:
                return None

        revision = await persist(
            self._connection, f"writing the claim of {claim.rollout_id}", write, rng=self._rng
        )
        if revision is None:
            entry = await self._entry(claim.rollout_id)
            if entry is None or entry.value != value:
                return None
            revision = entry.revision or 0
        return replace(claim, revision=revision)

    async def _bucket(self) -> KeyValue:
        # Not looked up each time: the bucket's shape is ours, and the look-up is one more round trip.
        return KeyValue(
            name=CLAIMS_BUCKET,
            stream=f"KV_{CLAIMS_BUCKET}",
            pre=f"$KV.{CLAIMS_BUCKET}.",
            js=self._connection.jetstream,
            direct=False,
        )


class NatsRetryLedger:
    """Counts RetryLater answers in a bucket whose entries fade after a day."""

    def __init__(self, connection: NatsConnection, rng: random.Random) -> None:
        """Keeps the connection."""
        self._connection = connection
        self._rng = rng

    async def add(self, consumer: str, sequence: int) -> None:
        """Counts one more. Only one replica at a time has the message, so reading and writing may be two steps."""
        value = str(await self.count(consumer, sequence) + 1).encode()

        async def write() -> None:
            bucket = await self._connection.jetstream.key_value(RETRIES_BUCKET)
            await bucket.put(f"{consumer}.{sequence}", value)

        await persist(self._connection, f"counting a retry of {sequence}", write, rng=self._rng)

    async def count(self, consumer: str, sequence: int) -> int:
        """Returns how many there were."""

        async def read() -> int:
            bucket = await self._connection.jetstream.key_value(RETRIES_BUCKET)
            try:
                entry = await bucket.get(f"{consumer}.{sequence}")
            except nats.js.errors.KeyNotFoundError:
                return 0
            return int(entry.value or b"0")

        return await persist(
            self._connection, f"counting the retries of {sequence}", read, rng=self._rng
        )


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
