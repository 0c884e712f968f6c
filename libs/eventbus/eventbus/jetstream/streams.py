"""Makes the stream and the buckets what they should be, however often and by however many services at once."""

import asyncio
import logging
import math
import random
import time

import nats.js.errors
from nats.js import api

from eventbus.blobs import BUCKET
from eventbus.bus import STREAM
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.options import GIB
from eventbus.jetstream.retry import NO_ROOM, persist
from eventbus.subjects import PREFIX
from servicekit.errors import HoneError, ResourceExhausted

_LOG = logging.getLogger("hone.eventbus")

CLAIMS_BUCKET = "hone-claims"
RETRIES_BUCKET = "hone-retries"
RETRIES_TTL_SECONDS = 24 * 3600.0
_REPAIR_SECONDS = 1.0
"""Least time between two repairs."""

DEFAULT_MAX_BYTES = 4 * GIB

NAME_IN_USE = 10058
"""Server error code for a stream that exists with another configuration."""


class Streams:
    """Creates and updates EVENTS and its buckets; safe to repeat and to race."""

    def __init__(self, connection: NatsConnection, rng: random.Random) -> None:
        """Keeps the connection; `ensure` talks."""
        self._connection = connection
        self._rng = rng
        self._repairing = asyncio.Lock()
        self._repaired_at = -math.inf

    async def ensure(self) -> None:
        """Makes sure that everything exists.

        Raises:
            ResourceExhausted: the server's storage has no room for the stream's limit.
            Unavailable: JetStream did not answer within the publish deadline.
        """
        await persist(
            self._connection, "preparing the EVENTS stream", self._ensure_events, rng=self._rng
        )
        await persist(
            self._connection, "preparing the buckets", self._ensure_buckets, rng=self._rng
        )

    async def repair(self) -> None:
        """Makes what is missing; for requests that found it so. Many at once cause one repair."""
        asked_at = time.monotonic()
        async with self._repairing:
            if self._repaired_at > asked_at - _REPAIR_SECONDS:
                return
            _LOG.warning("a stream is missing in NATS; making sure that all exist")
            await self._ensure_events()
            await self._ensure_buckets()
            self._repaired_at = time.monotonic()

    async def _ensure_events(self) -> None:
        options = self._connection.options
        jetstream = self._connection.jetstream
        try:
            current = (await jetstream.stream_info(STREAM)).config
        except nats.js.errors.NotFoundError:
            max_bytes = options.stream_max_bytes or DEFAULT_MAX_BYTES
            config = self._events_config(api.StreamConfig(name=STREAM, max_bytes=max_bytes))
            config = config.evolve(
                retention=api.RetentionPolicy.LIMITS, storage=api.StorageType.FILE
            )
            try:
                await jetstream.add_stream(config)
            except nats.js.errors.APIError as err:
                if err.err_code == NAME_IN_USE:
                    # Another service made it in between, with other limits; ours are applied next time round.
                    raise ConnectionError("the stream was made by another service") from err
                raise _refused(err, max_bytes) or err from err
            _LOG.info("stream EVENTS created", extra={"max_bytes": max_bytes})
            return
        wanted = self._events_config(current)
        if options.stream_max_bytes is not None:
            wanted = wanted.evolve(max_bytes=options.stream_max_bytes)
        if wanted != current:
            try:
                await jetstream.update_stream(wanted)
            except nats.js.errors.APIError as err:
                raise _refused(err, wanted.max_bytes or 0) or err from err
            _LOG.info("stream EVENTS updated", extra={"max_bytes": wanted.max_bytes})

    def _events_config(self, base: api.StreamConfig) -> api.StreamConfig:
        options = self._connection.options
        return base.evolve(
            subjects=[f"{PREFIX}.>"],
            discard=api.DiscardPolicy.NEW,
            duplicate_window=options.duplicate_window_seconds,
            num_replicas=options.replicas,
        )

    async def _ensure_buckets(self) -> None:
        options = self._connection.options
        replicas = options.replicas
        await self._ensure_key_value(
            api.KeyValueConfig(
                bucket=CLAIMS_BUCKET,
                history=1,
                replicas=replicas,
                direct=False,
                ttl=options.claims_ttl_seconds or None,
            )
        )
        await self._ensure_key_value(
            api.KeyValueConfig(
                bucket=RETRIES_BUCKET,
                history=1,
                replicas=replicas,
                direct=False,
                ttl=RETRIES_TTL_SECONDS,
            )
        )
        await self._ensure_blobs()

    async def _ensure_key_value(self, config: api.KeyValueConfig) -> None:
        jetstream = self._connection.jetstream
        try:
            await jetstream.key_value(config.bucket)
        except nats.js.errors.BucketNotFoundError:
            try:
                await jetstream.create_key_value(config)
            except nats.js.errors.BadRequestError as err:
                if err.err_code != NAME_IN_USE:
                    raise
            return
        # The client cannot change a bucket's lifetime; a bucket is a stream, and that can.
        stream = f"KV_{config.bucket}"
        current = (await jetstream.stream_info(stream)).config
        wanted = config.ttl or 0.0
        if (current.max_age or 0.0) != wanted:
            await jetstream.update_stream(current.evolve(max_age=wanted))
            _LOG.info("bucket updated", extra={"bucket": config.bucket, "ttl_seconds": wanted})

    async def _ensure_blobs(self) -> None:
        options = self._connection.options
        jetstream = self._connection.jetstream
        try:
            await jetstream.object_store(BUCKET)
        except nats.js.errors.NotFoundError:
            config = api.ObjectStoreConfig(
                bucket=BUCKET, max_bytes=options.blobs_max_bytes, replicas=options.replicas
            )
            try:
                await jetstream.create_object_store(BUCKET, config)
            except nats.js.errors.BadRequestError as err:
                if err.err_code != NAME_IN_USE:
                    raise
            return
        if options.blobs_max_bytes is not None:
            current = (await jetstream.stream_info(f"OBJ_{BUCKET}")).config
            if current.max_bytes != options.blobs_max_bytes:
                await jetstream.update_stream(current.evolve(max_bytes=options.blobs_max_bytes))


def _refused(err: nats.js.errors.APIError, max_bytes: int) -> HoneError | None:
    """Returns a clear error where the server has too little storage, else None."""
    if err.err_code not in NO_ROOM:
        return None
    return ResourceExhausted(
        f"NATS cannot reserve {max_bytes} bytes for the stream EVENTS ({err}): lower stream_max_bytes, or raise "
        f"max_file_store in the server's jetstream block",
        reason="STREAM_TOO_LARGE",
        retryable=False,
    )
