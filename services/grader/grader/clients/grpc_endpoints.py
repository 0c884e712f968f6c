"""Endpoints over gRPC: `EndpointGraderService` of protos/hone/grader/v1/endpoint.proto, in whatever language."""

from urllib.parse import urlsplit

import grpc
from hone.grader.v1 import endpoint_pb2, endpoint_pb2_grpc

from grader.clients.addresses import Addresses
from grader.clients.endpoints import Message, TryAgain, refused, unreachable, unreadable
from grader.clients.replies import MAX_REPLY_BYTES, ReplyError, make_reply
from grader.instruments.endpoints import Reply

AGAIN_CODES = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
    )
)
SHOWN_CHARACTERS = 200


class GrpcTransport:
    """Asks over gRPC; grpcs:// with TLS."""

    def __init__(self, addresses: Addresses) -> None:
        """Call only what the addresses allow."""
        self._addresses = addresses

    async def close(self) -> None:
        """Do nothing: a connection ends with its question."""

    async def ask(self, url: str, message: Message) -> Reply:
        """Ask once.

        Raises:
            TryAgain: the endpoint cannot be reached, or cannot answer now, or its answer is no grade.
            GradingFaultError: it refuses the question, or may not be called.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
        try:
            address = (await self._addresses.of(host, port))[0]
        except OSError as err:
            raise TryAgain(unreachable(f"{url} cannot be asked: {err}")) from err
        request = endpoint_pb2.GradeSampleRequest(
            request_id=message.message_id, payload_json=message.body
        )
        metadata = tuple((name.lower(), value) for name, value in message.headers.items())
        try:
            async with _channel(url, address) as channel:
                stub: endpoint_pb2_grpc.EndpointGraderServiceAsyncStub = (
                    endpoint_pb2_grpc.EndpointGraderServiceStub(channel)
                )
                response = await stub.GradeSample(
                    request, metadata=metadata, timeout=message.timeout_seconds
                )
        except grpc.aio.AioRpcError as err:
            raise _failure(url, err) from err
        # What cannot be read as the message comes as None, whatever the stub's types say.
        if not isinstance(response, endpoint_pb2.GradeSampleResponse):
            raise unreadable(f"{url}: the answer is no GradeSampleResponse")
        try:
            return make_reply(
                score=response.score if response.HasField("score") else None,
                explanation=response.explanation,
                parts=dict(response.parts),
            )
        except ReplyError as err:
            raise unreadable(f"{url}: the answer {err}") from err


def _channel(url: str, address: str) -> grpc.aio.Channel:
    """Connect to an endpoint at a checked address; for one question, so that nothing piles up over months of runs."""
    parts = urlsplit(url)
    target = f"[{address}]:{parts.port}" if ":" in address else f"{address}:{parts.port}"
    options = [
        ("grpc.default_authority", parts.netloc),
        ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
        # What a proxy of the environment connects to was not checked.
        ("grpc.enable_http_proxy", 0),
    ]
    if parts.scheme == "grpcs":
        options.append(("grpc.ssl_target_name_override", parts.hostname or ""))
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options)
    return grpc.aio.insecure_channel(target, options)


def _failure(url: str, err: grpc.aio.AioRpcError) -> Exception:
    code = err.code()
    said = f"{code.name}: {(err.details() or '')[:SHOWN_CHARACTERS]}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimeoutError(f"{url} {said}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in said:
        return unreadable(f"{url}: the answer is longer than {MAX_REPLY_BYTES} bytes")
    if code in AGAIN_CODES:
        up = code is not grpc.StatusCode.UNAVAILABLE
        return TryAgain(unreachable(f"{url} answers {said}"), up=up)
    return refused(f"{url} refuses with {said}")
