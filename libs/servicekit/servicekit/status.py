"""Typed errors to gRPC status and back; the only file where the two meet."""

from collections.abc import Mapping
from urllib.parse import quote

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status

from servicekit.errors import BY_CODE, HoneError, Internal

DOMAIN = "hone"

MAX_BYTES = 7000
"""Of an error in a reply's headers: gRPC refuses headers above 8 KiB, and the caller would see that instead."""

_CUTS = ((2000, 100), (500, 20), (60, 5))
"""Characters of each text and number of fields, for errors that are longer than that."""


def _packed(message: object) -> Any:
    packed = Any()
    packed.Pack(message)  # type: ignore[arg-type]  # the stubs of google.rpc are untyped
    return packed


def status_from_error(error: HoneError) -> status_pb2.Status:
    """Returns the rich status that carries what the error knows: all of it, or what the headers have room for."""
    status = _status(error, error.message, error.violations)
    for length, count in _CUTS:
        if _header_bytes(status) <= MAX_BYTES:
            break
        kept = list(error.violations.items())[:count]
        violations = {_cut(field, length): _cut(text, length) for field, text in kept}
        status = _status(error, _cut(error.message, length), violations)
    return status


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _header_bytes(status: status_pb2.Status) -> int:
    # The message goes percent-encoded, the details with a copy of it in base 64.
    return len(quote(status.message)) + len(status.SerializeToString()) * 4 // 3


def _status(error: HoneError, message: str, violations: Mapping[str, str]) -> status_pb2.Status:
    details = [
        _packed(
            ErrorInfo(
                reason=error.reason,
                domain=DOMAIN,
                metadata={
                    "retryable": str(error.retryable).lower(),
                    "attributable": error.attributable,
                },
            )
        )
    ]
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
        details.append(_packed(RetryInfo(retry_delay=delay)))
    if violations:
        fields = [
            BadRequest.FieldViolation(field=field, description=text)
            for field, text in violations.items()
        ]
        details.append(_packed(BadRequest(field_violations=fields)))
    return status_pb2.Status(code=code_pb2.Code.Value(error.code), message=message, details=details)


def error_from_rpc(rpc_error: grpc.aio.AioRpcError, method: str) -> HoneError:
    """Returns the typed error behind a failed call.

    A status without ErrorInfo comes from the transport: its retryability follows from the code alone.
    """
    kind = BY_CODE.get(rpc_error.code().name, Internal)
    status = rpc_status.from_call(rpc_error)
    text = rpc_error.details() or f"{method} failed with {rpc_error.code().name}"
    if status is None:
        return kind(f"{method}: {text}")
    info, retry_after, violations = ErrorInfo(), None, {}
    for detail in status.details:
        if detail.Is(ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(RetryInfo.DESCRIPTOR):
            retry = RetryInfo()
            detail.Unpack(retry)
            retry_after = retry.retry_delay.ToNanoseconds() / 1e9
        elif detail.Is(BadRequest.DESCRIPTOR):
            bad = BadRequest()
            detail.Unpack(bad)
            violations = {v.field: v.description for v in bad.field_violations}
    attributable = info.metadata.get("attributable")
    return kind(
        status.message,
        reason=info.reason,
        retryable=info.metadata["retryable"] == "true" if "retryable" in info.metadata else None,
        attributable=attributable if attributable in ("infra", "workload", "client") else None,
        retry_after_seconds=retry_after,
        violations=violations,
    )
