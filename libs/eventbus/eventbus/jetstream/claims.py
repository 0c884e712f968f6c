"""Where claims and counts of RetryLater lie in NATS: two key-value buckets."""

import random

import nats.js.errors
from nats.js.kv import KeyValue

from eventbus.claiming import Entry
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.retry import persist
from eventbus.jetstream.streams import CLAIMS_BUCKET, RETRIES_BUCKET


def _bucket(connection: NatsConnection, name: str) -> KeyValue:
    # Not looked up each time: the bucket's shape is ours, and the look-up is one more round trip.
    return KeyValue(
        name=name, stream=f"KV_{name}", pre=f"$KV.{name}.", js=connection.jetstream, direct=False
    )


class NatsClaimStore:
    """The bucket of claims."""

    def __init__(self, connection: NatsConnection, rng: random.Random) -> None:
        """Keeps the connection."""
        self._connection = connection
        self._rng = rng

    async def read(self, key: str) -> Entry | None:
        """Returns the entry, or None."""

        async def read() -> Entry | None:
            try:
                entry = await _bucket(self._connection, CLAIMS_BUCKET).get(key)
            except nats.js.errors.KeyNotFoundError:
                return None
            return Entry(value=entry.value or b"", revision=entry.revision or 0)

        return await persist(self._connection, f"reading the claim of {key}", read, rng=self._rng)

    async def write(self, key: str, value: bytes, expected_revision: int) -> int | None:
        """Writes over the expected revision and returns the new one; None if it is another."""

        async def write() -> int | None:
            bucket = _bucket(self._connection, CLAIMS_BUCKET)
            try:
                return await bucket.update(key, value, last=expected_revision)
            except nats.js.errors.KeyWrongLastSequenceError:
                return None

        return await persist(self._connection, f"writing the claim of {key}", write, rng=self._rng)


class NatsRetryLedger:
    """Counts RetryLater answers in a bucket whose entries fade after a day."""

    def __init__(self, connection: NatsConnection, rng: random.Random) -> None:
        """Keeps the connection."""
        self._connection = connection
        self._rng = rng

    async def add(self, consumer: str, sequence: int) -> None:
        """Counts one more. One replica at a time has the message, so reading and writing may be two steps."""
        value = str(await self.count(consumer, sequence) + 1).encode()

        async def write() -> None:
            await _bucket(self._connection, RETRIES_BUCKET).put(f"{consumer}.{sequence}", value)

        await persist(self._connection, f"counting a retry of {sequence}", write, rng=self._rng)

    async def count(self, consumer: str, sequence: int) -> int:
        """Returns how many there were."""

        async def read() -> int:
            try:
                entry = await _bucket(self._connection, RETRIES_BUCKET).get(
                    f"{consumer}.{sequence}"
                )
            except nats.js.errors.KeyNotFoundError:
                return 0
            return int(entry.value or b"0")

        return await persist(
            self._connection, f"counting the retries of {sequence}", read, rng=self._rng
        )
