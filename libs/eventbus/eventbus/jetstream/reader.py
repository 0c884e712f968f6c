"""Reads a stream in order, each message once, through whatever happens to the server and the connection.

It is an ordered consumer over pulls: ephemeral, without acknowledgements, made again after the last message that was
yielded whenever the server forgot it, the connection came back, or a message is missing from its count.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Sequence

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from eventbus.errors import LogTruncated
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.pulls import Position, PullInbox, position_of
from eventbus.jetstream.retry import BACKOFF, StreamMissing, persist, unless_stopped

_LOG = logging.getLogger("hone.eventbus")

_BATCH = 128
_REFILL_BELOW = 64
_IDLE_SECONDS = 1.0
_INACTIVE_SECONDS = 30.0
"""The server drops the ephemeral consumer of a reader that stays away longer."""


class StreamReader:
    """Yields the messages of a stream that pass the filters.

    Args:
        connection: To NATS.
        stream: To read.
        filters: Subjects to let pass.
        start_sequence: First to yield; 0 means the first there is.
        follow: Go on after the sequence that is last when reading begins.
        stop: Ends the iteration.
        rng: For jitter.
    """

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        filters: Sequence[str],
        *,
        start_sequence: int,
        follow: bool,
        stop: asyncio.Event | None,
        rng: random.Random,
    ) -> None:
        """Keeps the parts; `messages` reads."""
        self._connection = connection
        self._stream = stream
        self._filters = list(filters)
        self._start = start_sequence
        self._follow = follow
        self._stop = stop
        self._rng = rng
        self._wake = asyncio.Event()
        self._buffer: deque[tuple[Position, Msg]] = deque()
        self._last = start_sequence - 1
        self._end = 0
        self._generation = 0
        self._caught_up = False
        self._inbox: PullInbox | None = None
        self._consumer = ""
        self._consumer_sequence = 0

    async def messages(self) -> AsyncGenerator[tuple[Position, Msg], None]:
        """Yields position and message.

        Raises:
            LogTruncated: the stream does not hold what start_sequence points at.
        """
        watcher: asyncio.Task[None] | None = None
        if self._stop is not None:
            watcher = asyncio.create_task(self._watch(self._stop))
        try:
            if self._follow:
                await self._wait_connected()
            await unless_stopped(self._stop, self._look_at_stream(first_time=True))
            while not self._ended():
                await self._wait_connected()
                try:
                    await unless_stopped(self._stop, self._open_consumer())
                    while (item := await self._next()) is not None:
                        self._last = item[0].stream_sequence
                        yield item
                finally:
                    await self._close_consumer()
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    def _ended(self) -> bool:
        if self._stop is not None and self._stop.is_set():
            return True
        return not self._follow and (self._caught_up or self._last >= self._end)

    async def _look_at_stream(self, *, first_time: bool) -> None:
        """Checks the cursor against both ends of the stream."""
        info = await persist(
            self._connection,
            f"looking at the stream {self._stream}",
            self._stream_info,
            rng=self._rng,
        )
        first, last = info.state.first_seq, info.state.last_seq
        too_early = first_time and 0 < self._start < first
        # Only the first look minds the log's start: what was purged while tailing was purged on purpose.
        if too_early or self._last > last:
            start = self._start if first_time else self._last + 1
            raise LogTruncated(start_sequence=start, first_sequence=first, last_sequence=last)
        if first_time:
            self._end = last

    async def _open_consumer(self) -> None:
        """Makes an ephemeral consumer that goes on after the last message yielded."""
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, self._last + 1),
            ack_policy=api.AckPolicy.NONE,
            max_deliver=1,
            filter_subjects=self._filters,
            inactive_threshold=_INACTIVE_SECONDS,
            mem_storage=True,
            num_replicas=1,
        )
        self._generation = self._connection.generation
        info = await persist(
            self._connection,
            f"reading the stream {self._stream}",
            lambda: self._add_consumer(config),
            rng=self._rng,
        )
        self._consumer = info.name
        self._consumer_sequence = 0
        self._caught_up = info.num_pending == 0
        inbox = PullInbox(
            self._connection,
            self._stream,
            info.name,
            on_message=self._receive,
            on_change=self._wake.set,
        )
        await inbox.open()
        self._inbox = inbox

    async def _close_consumer(self) -> None:
        if self._inbox is not None:
            await self._inbox.close()
            self._inbox = None
        self._buffer.clear()

    async def _stream_info(self) -> api.StreamInfo:
        try:
            return await self._connection.jetstream.stream_info(self._stream)
        except nats.js.errors.NotFoundError as err:
            raise StreamMissing(str(err)) from err

    async def _add_consumer(self, config: api.ConsumerConfig) -> api.ConsumerInfo:
        try:
            return await self._connection.jetstream.add_consumer(self._stream, config)
        except nats.js.errors.NotFoundError as err:
            raise StreamMissing(str(err)) from err

    def _receive(self, message: Msg) -> None:
        self._buffer.append((position_of(message), message))
        self._wake.set()

    async def _next(self) -> tuple[Position, Msg] | None:
        """Returns the next message in order, or None where the consumer has to be made again or reading ends."""
        inbox = self._inbox
        while inbox is not None and not self._ended():
            if self._connection.generation != self._generation:
                await unless_stopped(self._stop, self._look_at_stream(first_time=False))
                return None
            if self._buffer:
                return self._take()
            if inbox.gone:
                _LOG.info(
                    "reader's consumer is gone; making it again",
                    extra={"stream": self._stream, "after": self._last, "status": inbox.gone},
                )
                # Should it be gone again at once, this must not spin.
                await asyncio.sleep(BACKOFF.delay_seconds(1, self._rng))
                return None
            await self._wait(inbox)
        return None

    def _take(self) -> tuple[Position, Msg] | None:
        position, message = self._buffer.popleft()
        self._consumer_sequence += 1
        if position.consumer_sequence != self._consumer_sequence:
            _LOG.info(
                "messages went missing on the way; reading them again",
                extra={"stream": self._stream, "after": self._last},
            )
            return None
        if not self._follow and position.stream_sequence > self._end:
            self._caught_up = True
            return None
        self._caught_up = position.pending == 0
        return position, message

    async def _wait(self, inbox: PullInbox) -> None:
        """Asks for more where little is on its way, and waits for something to happen."""
        self._wake.clear()
        if self._connection.is_connected:
            outstanding = inbox.outstanding
            if outstanding < _REFILL_BELOW:
                await self._request(inbox, _BATCH - outstanding)
        if self._buffer or self._ended():
            return
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            if not self._follow and self._connection.is_connected:
                await self._check_pending()

    async def _request(self, inbox: PullInbox, batch: int) -> None:
        try:
            await inbox.request(batch)
        except nats.errors.Error as err:
            _LOG.debug("pull not sent", extra={"stream": self._stream, "error": repr(err)})

    async def _check_pending(self) -> None:
        """Notices that what was still to come has been purged."""
        try:
            info = await self._connection.jetstream.consumer_info(self._stream, self._consumer)
        except (nats.errors.Error, TimeoutError) as err:
            # The next pull will say what is wrong with the consumer.
            _LOG.debug("no consumer info", extra={"stream": self._stream, "error": repr(err)})
            return
        if info.num_pending == 0 and not self._buffer:
            delivered = info.delivered.consumer_seq if info.delivered is not None else 0
            self._caught_up = delivered == self._consumer_sequence

    async def _wait_connected(self) -> None:
        """Waits for NATS as long as it takes, or until stopped."""
        while not self._ended():
            try:
                await self._connection.wait_connected(_IDLE_SECONDS)
                return
            except TimeoutError:
                continue
