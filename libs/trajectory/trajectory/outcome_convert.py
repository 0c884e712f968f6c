"""How attempts ended, to protobuf and back; see `trajectory.convert` for the rest."""

from hone.common.v1 import outcome_pb2

from trajectory import types as t
from trajectory.convert import enum_from_proto, enum_to_proto


def outcome_kind_to_proto(kind: t.OutcomeKind | None) -> outcome_pb2.OutcomeKind.ValueType:
    """Converts a kind of shortfall; None is unspecified."""
    if kind is None:
        return outcome_pb2.OUTCOME_KIND_UNSPECIFIED
    number: outcome_pb2.OutcomeKind.ValueType = enum_to_proto(
        kind, outcome_pb2.OutcomeKind, "OUTCOME_KIND"
    )
    return number


def outcome_kind_from_proto(number: int) -> t.OutcomeKind | None:
    """Converts a kind of shortfall; unspecified is None."""
    if number == outcome_pb2.OUTCOME_KIND_UNSPECIFIED:
        return None
    return enum_from_proto(
        number, outcome_pb2.OutcomeKind, "OUTCOME_KIND", t.OutcomeKind, "outcome.kind"
    )


def grader_error_kind_to_proto(
    kind: t.GraderErrorKind | None,
) -> outcome_pb2.GraderErrorKind.ValueType:
    """Converts what stopped a grader; None is unspecified."""
    if kind is None:
        return outcome_pb2.GRADER_ERROR_KIND_UNSPECIFIED
    number: outcome_pb2.GraderErrorKind.ValueType = enum_to_proto(
        kind, outcome_pb2.GraderErrorKind, "GRADER_ERROR_KIND"
    )
    return number


def grader_error_kind_from_proto(number: int) -> t.GraderErrorKind | None:
    """Converts what stopped a grader; unspecified is None."""
    if number == outcome_pb2.GRADER_ERROR_KIND_UNSPECIFIED:
        return None
    return _known_grader_error_kind(number, "failure.grader_error_kind")


def _known_grader_error_kind(number: int, field: str) -> t.GraderErrorKind:
    return enum_from_proto(
        number, outcome_pb2.GraderErrorKind, "GRADER_ERROR_KIND", t.GraderErrorKind, field
    )


def scored_to_proto(scored: t.Scored) -> outcome_pb2.Scored:
    """Converts a judgement."""
    return outcome_pb2.Scored(
        rewards=[
            outcome_pb2.Reward(
                name=reward.name,
                value=reward.value,
                weight=reward.weight,
                grader_name=reward.grader_name,
                grader_version=reward.grader_version,
                explanation=reward.explanation,
                parts=reward.parts,
            )
            for reward in scored.rewards
        ],
        score=scored.score,
        kind=outcome_kind_to_proto(scored.kind),
        errors=[
            outcome_pb2.GraderError(
                name=error.name, kind=grader_error_kind_to_proto(error.kind), detail=error.detail
            )
            for error in scored.errors
        ],
        abstained=scored.abstained,
        flags=[
            outcome_pb2.Flag(name=flag.name, detail=flag.detail, priced=flag.priced)
            for flag in scored.flags
        ],
        step_rewards=scored.step_rewards,
    )


def scored_from_proto(message: outcome_pb2.Scored) -> t.Scored:
    """Converts a judgement."""
    return t.Scored(
        rewards=tuple(
            t.Reward(
                name=reward.name,
                value=reward.value,
                weight=reward.weight,
                grader_name=reward.grader_name,
                grader_version=reward.grader_version,
                explanation=reward.explanation,
                parts=dict(reward.parts),
            )
            for reward in message.rewards
        ),
        score=message.score,
        kind=outcome_kind_from_proto(message.kind),
        errors=tuple(
            t.GraderError(
                name=error.name,
                kind=_known_grader_error_kind(error.kind, "scored.errors.kind"),
                detail=error.detail,
            )
            for error in message.errors
        ),
        abstained=tuple(message.abstained),
        flags=tuple(
            t.Flag(name=flag.name, detail=flag.detail, priced=flag.priced) for flag in message.flags
        ),
        step_rewards=tuple(message.step_rewards),
    )


def masked_to_proto(masked: t.Masked) -> outcome_pb2.Masked:
    """Converts a masked outcome."""
    return outcome_pb2.Masked(kind=outcome_kind_to_proto(masked.kind), reason=masked.reason)


def masked_from_proto(message: outcome_pb2.Masked) -> t.Masked:
    """Converts a masked outcome."""
    return t.Masked(kind=outcome_kind_from_proto(message.kind), reason=message.reason)


def failure_to_proto(failure: t.Failure) -> outcome_pb2.Failure:
    """Converts a failure."""
    return outcome_pb2.Failure(
        kind=enum_to_proto(failure.kind, outcome_pb2.FailureKind, "FAILURE_KIND"),
        retryable=failure.retryable,
        attributable=enum_to_proto(failure.attributable, outcome_pb2.Attribution, "ATTRIBUTION"),
        detail=failure.detail,
        grader_error_kind=grader_error_kind_to_proto(failure.grader_error),
    )


def failure_from_proto(message: outcome_pb2.Failure) -> t.Failure:
    """Converts a failure."""
    return t.Failure(
        kind=enum_from_proto(
            message.kind,
            outcome_pb2.FailureKind,
            "FAILURE_KIND",
            t.FailureKind,
            "failure.kind",
        ),
        retryable=message.retryable,
        attributable=enum_from_proto(
            message.attributable,
            outcome_pb2.Attribution,
            "ATTRIBUTION",
            t.Attribution,
            "failure.attributable",
        ),
        detail=message.detail,
        grader_error=grader_error_kind_from_proto(message.grader_error_kind),
    )
