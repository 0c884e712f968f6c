"""What happens around every call that a service handles: trace, token, deadline, typed errors.

A call that continues a trace gets a SERVER span. A call without one gets none: every span of a rollout's trace has a
parent that exists, and calls by people are not rollouts.
"""

# grpc's classes are generic in their stubs only.
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from grpc_status import rpc_status
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from servicekit import attributes, calls, tokens
from servicekit.errors import HoneError, Internal
from servicekit.metrics import CallEnd, Observe
from servicekit.status import status_from_error

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    ServicerContext = grpc.aio.ServicerContext[Any, Any]


class ServerInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server."""

    def __init__(
        self, verifier: tokens.TokenVerifier | None, observers: Sequence[Observe] = ()
    ) -> None:
        """Checks rollout tokens with `verifier`; without one they are only passed on.

        Args:
            verifier: Checks tokens.
            observers: Told of every call's end; may be filled later.
        """
        self._verifier = verifier
        self._observers = observers

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the handler of the call, wrapped."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        path = handler_call_details.method
        wrap = self._wrap_stream if handler.response_streaming else self._wrap_unary
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[(handler.request_streaming, handler.response_streaming)]
        inner = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        return make(
            wrap(path, inner),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _wrap_unary(self, path: str, inner: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def handle(request: Any, context: ServicerContext) -> Any:
            with self._span(path, context) as span:
                try:
                    with self._observed(path):
                        self._enter(context)
                        return await inner(request, context)
                except Exception as error:  # the boundary: every error becomes a status here
                    await _abort(context, path, span, error)

        return handle

    def _wrap_stream(self, path: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(request: Any, context: ServicerContext) -> AsyncIterator[Any]:
            with self._span(path, context) as span:
                try:
                    with self._observed(path):
                        self._enter(context)
                        async for response in inner(request, context):
                            yield response
                except Exception as error:  # the boundary: every error becomes a status here
                    await _abort(context, path, span, error)

        return handle

    def _enter(self, context: ServicerContext) -> None:
        """Puts the call's deadline and token into the context variables of its task."""
        remaining = context.time_remaining()
        # Without a deadline grpc reports none, or a time so far away that it means none.
        calls.set_deadline(remaining if remaining is not None and remaining < 1e8 else None)
        text = dict(context.invocation_metadata() or ()).get(attributes.TOKEN_METADATA_KEY, "")
        text = text if isinstance(text, str) else text.decode("ascii", "replace")
        token = self._verifier.verify(text) if self._verifier is not None and text else None
        tokens.set_current(token, text)

    @contextmanager
    def _observed(self, path: str) -> Iterator[None]:
        """Tell the observers how the call inside ended."""
        begun = time.monotonic()
        code, attributable = "OK", ""
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            code, attributable = "CANCELLED", "client"
            raise
        except HoneError as error:
            code, attributable = error.code, error.attributable
            raise
        except Exception:  # counted as what the caller is told, and raised on
            code, attributable = Internal.code, Internal.default_attributable
            raise
        finally:
            service, method = calls.split_method(path)
            end = CallEnd(
                service=service,
                method=method,
                code=code,
                attributable=attributable,
                seconds=time.monotonic() - begun,
            )
            for observe in self._observers:
                observe(end)

    @contextmanager
    def _span(self, path: str, context: ServicerContext) -> Any:
        parent = calls.parent_from_metadata(context.invocation_metadata())
        if not calls.has_parent(parent):
            yield trace.INVALID_SPAN
            return
        service, method = calls.split_method(path)
        span = trace.get_tracer("hone.servicekit").start_span(
            f"{service}/{method}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={
                attributes.RPC_SYSTEM: "grpc",
                attributes.RPC_SERVICE: service,
                attributes.RPC_METHOD: method,
            },
        )
        # Attached but never detached: the context variable belongs to this call's own task and ends with it. A
        # detach after a cancelled stream would run in another task and only log a traceback.
        otel_context.attach(trace.set_span_in_context(span))
        try:
            yield span
        except asyncio.CancelledError:
            span.set_status(Status(StatusCode.ERROR, "cancelled by the caller"))
            raise
        finally:
            span.end()


async def _abort(context: ServicerContext, path: str, span: Span, error: Exception) -> None:
    """Ends the call with the status of `error`; an error that is not typed is a defect and is logged whole."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, HoneError):
        typed = error
    else:
        log.exception("unhandled error", extra={"method": path})
        typed = Internal(f"{type(error).__name__}: {error}")
    if typed.code in ("INTERNAL", "DATA_LOSS"):
        span.set_status(Status(StatusCode.ERROR, typed.message))
    span.set_attribute(attributes.RPC_STATUS, typed.code)
    await context.abort_with_status(rpc_status.to_status(status_from_error(typed)))
