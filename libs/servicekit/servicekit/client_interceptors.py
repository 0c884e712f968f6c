"""What happens around every call that a service makes: trace, token, trimmed deadline, retries, typed errors."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator
from typing import Any

import grpc
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from servicekit import attributes, calls
from servicekit.errors import HoneError, Unavailable
from servicekit.status import error_from_rpc

Details = grpc.aio.ClientCallDetails
RETRY_DELAYS_SECONDS = (0.1, 0.3, 0.9, 2.0, 4.0)
"""Upper bounds of the jittered waits between tries; their number is the retry budget of one call."""


class _Outgoing:
    """What the three interceptors share."""

    def __init__(
        self,
        *,
        token: Callable[[], str] | None,
        default_timeout_seconds: float,
        idempotent_methods: Collection[str],
        rng: random.Random,
    ) -> None:
        self._token = token
        self._default_timeout = default_timeout_seconds
        self._idempotent = frozenset(idempotent_methods)
        self._rng = rng

    def start_span(self, details: Details) -> Span:
        """Starts a CLIENT span if there is a trace to continue."""
        if not trace.get_current_span().get_span_context().is_valid:
            return trace.INVALID_SPAN
        service, method = calls.split_method(_path(details))
        return trace.get_tracer("hone.servicekit").start_span(
            f"{service}/{method}",
            kind=SpanKind.CLIENT,
            attributes={
                attributes.RPC_SYSTEM: "grpc",
                attributes.RPC_SERVICE: service,
                attributes.RPC_METHOD: method,
            },
        )

    def prepare(self, details: Details, span: Span, *, stream: bool) -> Details:
        """Returns the details with metadata and deadline filled in."""
        carrier: dict[str, str] = {}
        if span.get_span_context().is_valid:
            propagate.inject(carrier, trace.set_span_in_context(span))
        else:
            propagate.inject(carrier)
        metadata = list(details.metadata or ())
        metadata += carrier.items()
        token = self._token() if self._token is not None else ""
        if token and not any(key == attributes.TOKEN_METADATA_KEY for key, _ in metadata):
            metadata.append((attributes.TOKEN_METADATA_KEY, token))
        own = details.timeout if details.timeout is not None else None
        if own is None and not stream:
            own = self._default_timeout
        return Details(
            method=details.method,
            timeout=calls.trimmed_timeout(own),
            metadata=grpc.aio.Metadata(*metadata),
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
        )

    def may_retry(self, error: HoneError, details: Details) -> bool:
        """Says whether the transport failed under a call that may be repeated.

        A typed Unavailable speaks of the work (a lost sandbox); only a new attempt helps there.
        """
        _, method = calls.split_method(_path(details))
        return (
            isinstance(error, Unavailable)
            and error.reason == Unavailable.code
            and method in self._idempotent
        )

    async def unary(self, continuation: Any, details: Details, request: Any) -> Any:
        """Makes a call with one response, repeating it where that is safe."""
        span = self.start_span(details)
        prepared = self.prepare(details, span, stream=False)
        deadline = None if prepared.timeout is None else time.monotonic() + prepared.timeout
        try:
            for delay in (*RETRY_DELAYS_SECONDS, None):
                try:
                    call = await continuation(_with_deadline(prepared, deadline), request)
                    return await call
                except grpc.aio.AioRpcError as rpc_error:
                    error = error_from_rpc(rpc_error, _path(details))
                    wait = None if delay is None else self._rng.uniform(0.3, 1.0) * delay
                    out_of_time = (
                        wait is not None
                        and deadline is not None
                        and time.monotonic() + wait >= deadline
                    )
                    if wait is None or out_of_time or not self.may_retry(error, details):
                        _mark(span, error)
                        raise error from rpc_error
                await asyncio.sleep(wait)
            raise AssertionError("the last try either returns or raises")
        finally:
            span.end()


class UnaryUnary(_Outgoing, grpc.aio.UnaryUnaryClientInterceptor):
    """For calls with one request and one response."""

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Details, request: Any
    ) -> Any:
        """Makes the call."""
        return await self.unary(continuation, client_call_details, request)


class StreamUnary(_Outgoing, grpc.aio.StreamUnaryClientInterceptor):
    """For calls that upload; a stream cannot be sent twice, so it is never repeated."""

    async def intercept_stream_unary(
        self, continuation: Any, client_call_details: Details, request_iterator: Any
    ) -> Any:
        """Makes the call."""
        span = self.start_span(client_call_details)
        prepared = self.prepare(client_call_details, span, stream=False)
        call = await continuation(prepared, request_iterator)
        return _TypedCall(call, span, _path(client_call_details))


class _TypedCall:
    """A call whose response, when awaited, fails with a typed error; all else is the call's own."""

    def __init__(self, call: Any, span: Span, path: str) -> None:
        self._call = call
        self._span = span
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
        try:
            return await self._call
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error, self._path)
            _mark(self._span, error)
            raise error from rpc_error
        finally:
            self._span.end()


class UnaryStream(_Outgoing, grpc.aio.UnaryStreamClientInterceptor):
    """For calls that answer with a stream."""

    async def intercept_unary_stream(
        self, continuation: Any, client_call_details: Details, request: Any
    ) -> Any:
        """Makes the call."""
        span = self.start_span(client_call_details)
        call = await continuation(self.prepare(client_call_details, span, stream=True), request)
        return _responses(call, span, _path(client_call_details))


async def _responses(call: Any, span: Span, path: str) -> AsyncIterator[Any]:
    """Passes the responses on and turns the call's failure into a typed error."""
    try:
        async for response in call:
            yield response
    except grpc.aio.AioRpcError as rpc_error:
        error = error_from_rpc(rpc_error, path)
        _mark(span, error)
        raise error from rpc_error
    finally:
        call.cancel()
        span.end()


def _path(details: Details) -> str:
    return details.method if isinstance(details.method, str) else details.method.decode("ascii")


def _with_deadline(details: Details, deadline: float | None) -> Details:
    if deadline is None:
        return details
    return Details(
        method=details.method,
        timeout=max(0.001, deadline - time.monotonic()),
        metadata=details.metadata,
        credentials=details.credentials,
        wait_for_ready=details.wait_for_ready,
    )


def _mark(span: Span, error: HoneError) -> None:
    span.set_attribute(attributes.RPC_STATUS, error.code)
    span.set_status(Status(StatusCode.ERROR, error.message))
