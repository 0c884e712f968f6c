"""Typed errors to gRPC status and back; the only file where the two meet."""

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status

from servicekit.errors import BY_CODE, HoneError, Internal

DOMAIN = "hone"


def _packed(message: object) -> Any:
    packed = Any()
    packed.Pack(message)  # type: ignore[arg-type]  # the stubs of google.rpc are untyped
    return packed


def status_from_error(error: HoneError) -> status_pb2.Status:
    """Returns the rich status that carries everything the error knows."""
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
    if error.violations:
        fields = [
            BadRequest.FieldViolation(field=field, description=text)
            for field, text in error.violations.items()
        ]
        details.append(_packed(BadRequest(field_violations=fields)))
    return status_pb2.Status(
        code=code_pb2.Code.Value(error.code), message=error.message, details=details
    )


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
