"""What the archive holds to the messages of hone.console.v1."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from hone.common.v1 import identity_pb2, outcome_pb2
from hone.console.v1 import console_pb2
from hone.events.v1 import events_pb2

from console.archive_reader import RolloutEntry, RunEntry
from console.audit import AuditReport
from console.otlp_convert import attribute_text
from console.spans import Span
from trajectory.convert import duration_to_proto
from trajectory.outcome_convert import outcome_kind_to_proto
from trajectory.types import FailureKind, OutcomeKind

_ENDS = {
    "": events_pb2.RUN_END_UNSPECIFIED,
    "completed": events_pb2.RUN_END_COMPLETED,
    "stopped": events_pb2.RUN_END_STOPPED,
    "failed": events_pb2.RUN_END_FAILED,
}


def run_summary_to_proto(run: RunEntry) -> console_pb2.RunSummary:
    """Converts a run."""
    return console_pb2.RunSummary(
        run_id=run.run_id,
        algorithm=run.algorithm,
        start_time=_time(run.start_us),
        end_time=_time(run.end_us),
        end=_ENDS.get(run.end, events_pb2.RUN_END_UNSPECIFIED),
        steps_trained_count=run.num_steps,
        rollouts_scored_count=run.num_scored,
        rollouts_masked_count=run.num_masked,
        rollouts_failed_count=run.num_failed,
        reward_mean=run.mean_score or 0.0,
    )


def rollout_summary_to_proto(entry: RolloutEntry) -> console_pb2.RolloutSummary:
    """Converts a rollout's line."""
    summary = console_pb2.RolloutSummary(
        rollout_id=entry.rollout_id,
        attempt=entry.attempt,
        task_id=entry.task_id,
        outcome=entry.outcome,
        score=entry.score or 0.0,
        turn_count=entry.turn_count,
        tool_call_count=entry.tool_call_count,
        sampled_token_count=entry.sampled_token_count,
        policy_version=entry.policy_version,
    )
    if entry.phase:
        summary.slot.CopyFrom(
            identity_pb2.Slot(
                run_id=entry.run_id,
                phase=identity_pb2.Phase.Value(f"PHASE_{entry.phase.upper()}"),
                step=entry.step,
                group_index=entry.group_index,
                sample_index=entry.sample_index,
            )
        )
    # A kind that this version does not know stays unspecified here; the event itself tells its number.
    kind = next((k for k in OutcomeKind if k.value == entry.kind), None)
    failure = next((k for k in FailureKind if k.value == entry.failure_kind), None)
    summary.kind = outcome_kind_to_proto(kind)
    if failure is not None:
        summary.failure_kind = outcome_pb2.FailureKind.Value(f"FAILURE_KIND_{failure.name}")
    if entry.seconds is not None:
        summary.duration.CopyFrom(duration_to_proto(entry.seconds))
    return summary


def rollout_to_proto(
    entry: RolloutEntry,
    *,
    envelopes: Sequence[events_pb2.Envelope],
    record: bytes | None,
    final: events_pb2.Envelope | None,
    spans: Sequence[Span],
) -> console_pb2.GetRolloutResponse:
    """Converts everything that the archive holds of a rollout."""
    response = console_pb2.GetRolloutResponse(
        summary=rollout_summary_to_proto(entry),
        events=envelopes,
        spans=[span_to_proto(span) for span in spans],
        trained_in_step=entry.trained_in_step,
    )
    if record is not None:
        try:
            response.record.ParseFromString(record)
        except DecodeError:
            # The audit reports it as record_unreadable; the rest is still worth showing.
            response.ClearField("record")
    if final is not None and final.WhichOneof("payload") == "rollout_failed":
        response.failure.CopyFrom(final.rollout_failed.failure)
    elif final is not None:
        response.reward_assigned.CopyFrom(final.reward_assigned)
    return response


def span_to_proto(span: Span) -> console_pb2.Span:
    """Converts a span."""
    start = Timestamp()
    start.FromNanoseconds(span.start_ns)
    return console_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        service_name=span.service_name,
        name=span.name,
        kind=span.kind,
        start_time=start,
        duration=duration_to_proto(span.seconds),
        attributes={key: attribute_text(value) for key, value in span.attributes.items()},
        status=span.status,
        status_message=span.status_message,
    )


def audit_to_proto(report: AuditReport) -> console_pb2.AuditRunResponse:
    """Converts what an audit found."""
    return console_pb2.AuditRunResponse(
        findings=[
            console_pb2.AuditFinding(
                rule=finding.rule, detail=finding.detail, rollout_ids=finding.rollout_ids
            )
            for finding in report.findings
        ],
        counts=report.counts,
        stream_sequence=report.last_sequence,
    )


def _time(us: int | None) -> Timestamp | None:
    if us is None:
        return None
    moment = Timestamp()
    moment.FromMicroseconds(us)
    return moment
