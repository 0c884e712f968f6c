"""Asks endpoints of people's own: one signed question, tried again while that may help, within one deadline.

How a question travels is `http_endpoints` and `grpc_endpoints`; what comes back is read by `replies`.
"""

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind

from eventbus.backoff import Backoff
from grader.clients.outages import Outages
from grader.clients.signing import Secrets, signed_headers
from grader.instruments.endpoints import Call, Reply
from grader.results import GradingFaultError
from servicekit import attributes
from trajectory.types import GraderErrorKind

BACKOFF = Backoff(first_seconds=0.3, longest_seconds=5.0)
"""Between the tries of one call; `patience` of the service waits out longer outages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One question on its way."""

    message_id: str
    """The same for each try of the same question."""
    body: bytes
    headers: Mapping[str, str]
    timeout_seconds: float
    """Until the deadline of the call."""


class TryAgain(Exception):
    """Another try may help.

    Args:
        fault: what it is if no try helps.
        after_seconds: when the endpoint wants to be asked again; None if it did not say.
        up: whether the endpoint said something.
    """

    def __init__(
        self, fault: GradingFaultError, *, after_seconds: float | None = None, up: bool = False
    ) -> None:
        """Keep the fault."""
        super().__init__(fault.detail)
        self.fault = fault
        self.after_seconds = after_seconds
        self.up = up


class Transport(Protocol):
    """Carries questions by one protocol."""

    async def ask(self, url: str, message: Message) -> Reply:
        """Ask once.

        Raises:
            TryAgain: the endpoint could not be reached, or cannot answer now.
            GradingFaultError: it refuses the question, or may not be asked.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class EndpointClient:
    """Asks endpoints by the scheme of their url."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        secrets: Secrets,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        tracer: trace.Tracer,
        backoff: Backoff = BACKOFF,
    ) -> None:
        """Connect on first use.

        Args:
            transports: by url scheme.
            secrets: signing keys.
            clock: seconds since the epoch, for signatures.
            rng: for jitter.
            tracer: makes a span per call, in the trace of the rollout.
            backoff: waits between tries.
        """
        self._transports = transports
        self._secrets = secrets
        self._clock = clock
        self._rng = rng
        self._tracer = tracer
        self._backoff = backoff
        self._outages = Outages()

    async def close(self) -> None:
        """Let go of connections."""
        for transport in set(self._transports.values()):
            await transport.close()

    async def call(self, call: Call) -> Reply:
        """Ask an endpoint, trying again where that may help.

        Raises:
            GradingFaultError: kind parse, timeout, server or definition.
        """
        endpoint = urlsplit(call.url).netloc
        if not self._outages.admit(endpoint):
            raise unreachable(
                f"{endpoint} did not answer lately and is being asked by another grading"
            )
        try:
            with self._span(endpoint):
                reply = await self._tried(call)
        except TryAgain as again:
            self._outages.answered(endpoint) if again.up else self._outages.failed(endpoint)
            raise again.fault from again.__cause__
        except BaseException as err:
            # Who refuses is there.
            there = isinstance(err, GradingFaultError) and err.kind is GraderErrorKind.SERVER
            self._outages.answered(endpoint) if there else self._outages.left(endpoint)
            raise
        self._outages.answered(endpoint)
        return reply

    def _span(self, endpoint: str) -> AbstractContextManager[trace.Span]:
        """A span under the grading's; none where there is no trace to continue."""
        if not trace.get_current_span().get_span_context().is_valid:
            return nullcontext(trace.INVALID_SPAN)
        return self._tracer.start_as_current_span(
            attributes.SPAN_ENDPOINT,
            kind=SpanKind.CLIENT,
            attributes={attributes.SERVER_ADDRESS: endpoint},
        )

    async def _tried(self, call: Call) -> Reply:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + call.timeout_seconds
        body = await asyncio.to_thread(encode, call.payload)
        message_id = _message_id(call.url, body)
        key = self._secrets.key(call.secret_name) if call.secret_name else None
        transport = self._transports[urlsplit(call.url).scheme]
        traced: dict[str, str] = {}
        propagate.inject(traced)
        tries = 0
        while True:
            tries += 1
            signed = (
                {} if key is None else signed_headers(key, message_id, int(self._clock()), body)
            )
            message = Message(
                message_id=message_id,
                body=body,
                headers={**call.headers, **traced, **signed},
                timeout_seconds=max(0.001, deadline - loop.time()),
            )
            try:
                async with asyncio.timeout_at(deadline):
                    return await transport.ask(call.url, message)
            except TimeoutError as err:
                raise TryAgain(_too_slow(call)) from err
            except TryAgain as again:
                wait = again.after_seconds
                if wait is None:
                    wait = self._backoff.delay_seconds(tries, self._rng)
                if tries >= call.max_tries or loop.time() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)


def unreachable(detail: str) -> GradingFaultError:
    """Return the fault of an endpoint that cannot answer now; grading later can succeed."""
    return GradingFaultError(detail, kind=GraderErrorKind.SERVER, retryable=True, client=False)


def refused(detail: str) -> GradingFaultError:
    """Return the fault of an endpoint that refuses the question; asking again would not help."""
    return GradingFaultError(detail, kind=GraderErrorKind.SERVER, retryable=False, client=True)


def unreadable(detail: str) -> TryAgain:
    """Return what an answer that is no grade means: asked again at once, but not for minutes."""
    fault = GradingFaultError(detail, kind=GraderErrorKind.PARSE, retryable=False, client=True)
    return TryAgain(fault, up=True)


def encode(payload: Mapping[str, object]) -> bytes:
    """Return the body of a question: JSON in ASCII; a number that JSON does not have (1e999) becomes null."""
    try:
        return json.dumps(payload, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(payload), allow_nan=False, separators=(",", ":")).encode()


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _message_id(url: str, body: bytes) -> str:
    digest = hashlib.sha256(b"\0".join((url.encode(), body))).hexdigest()
    return f"msg_{digest[:32]}"


def _too_slow(call: Call) -> GradingFaultError:
    return GradingFaultError(
        f"{call.url} did not answer within timeout_seconds {call.timeout_seconds:g}",
        kind=GraderErrorKind.TIMEOUT,
        retryable=True,
        client=False,
    )
