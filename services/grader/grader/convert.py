"""Messages of the grader and its events, to and from domain types."""

from hone.events.v1 import events_pb2
from hone.grader.v1 import grader_pb2

from grader.desk import Verdict
from servicekit.errors import InvalidArgument
from trajectory.convert import rollout_record_from_proto
from trajectory.outcome_convert import failure_to_proto, masked_to_proto, scored_to_proto
from trajectory.types import Failure, Masked, RolloutRecord, Scored


def record_from_proto(message: events_pb2.RolloutRecord) -> RolloutRecord:
    """Convert a record.

    Raises:
        InvalidArgument: the record is not consistent; names the field.
    """
    try:
        return rollout_record_from_proto(message)
    except ValueError as err:
        field = str(err).partition(":")[0]
        raise InvalidArgument(
            f"record: {err}", reason="RECORD_INVALID", violations={f"record.{field}": str(err)}
        ) from err


def verdict_to_proto(verdict: Verdict) -> grader_pb2.GradeRolloutResponse:
    """Convert a verdict to the answer of GradeRollout."""
    response = grader_pb2.GradeRolloutResponse(grader_version=verdict.grader_version)
    if isinstance(verdict.outcome, Scored):
        response.scored.CopyFrom(scored_to_proto(verdict.outcome))
    elif isinstance(verdict.outcome, Masked):
        response.masked.CopyFrom(masked_to_proto(verdict.outcome))
    else:
        response.failure.CopyFrom(failure_to_proto(verdict.outcome))
    return response


def verdict_to_event(
    verdict: Verdict,
) -> events_pb2.RewardAssigned | events_pb2.RolloutFailed:
    """Convert a verdict to the one event that tells it."""
    if isinstance(verdict.outcome, Failure):
        return events_pb2.RolloutFailed(failure=failure_to_proto(verdict.outcome))
    event = events_pb2.RewardAssigned(grader_version=verdict.grader_version)
    if isinstance(verdict.outcome, Scored):
        event.scored.CopyFrom(scored_to_proto(verdict.outcome))
    else:
        event.masked.CopyFrom(masked_to_proto(verdict.outcome))
    return event
