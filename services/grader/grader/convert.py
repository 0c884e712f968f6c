"""Messages of the grader and its events, to and from domain types."""

from collections.abc import Sequence

from hone.events.v1 import events_pb2
from hone.grader.v1 import grader_pb2

from grader.agreement.bootstrap import Interval
from grader.agreement.cohen import Weights
from grader.agreement.labels import refused
from grader.agreement.measure import AgreementTable, Comparison
from grader.agreement.ratings import Rating, Ratings, ratings_of
from grader.agreement.several import GroupAgreement
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


_WEIGHTS: dict[int, Weights] = {
    grader_pb2.AGREEMENT_WEIGHTS_UNSPECIFIED: "none",
    grader_pb2.AGREEMENT_WEIGHTS_NONE: "none",
    grader_pb2.AGREEMENT_WEIGHTS_LINEAR: "linear",
    grader_pb2.AGREEMENT_WEIGHTS_QUADRATIC: "quadratic",
}


def ratings_from_proto(request: grader_pb2.MeasureAgreementRequest) -> Ratings:
    """Convert labels.

    Raises:
        InvalidArgument: they cannot be compared; names the field.
    """
    rows = (
        Rating(item=rating.item_id, rater=rating.rater, label=rating.label)
        for rating in request.ratings
    )
    return ratings_of(rows, tuple(request.judges))


def weights_from_proto(value: int) -> Weights:
    """Convert weights; those not said are none.

    Raises:
        InvalidArgument: the value is not known.
    """
    if value not in _WEIGHTS:
        raise refused("weights", f"found {value}, expected none, linear or quadratic")
    return _WEIGHTS[value]


def agreement_to_proto(
    table: AgreementTable, shortfalls: Sequence[str]
) -> grader_pb2.MeasureAgreementResponse:
    """Convert what was measured, and what falls short of the minimum."""
    return grader_pb2.MeasureAgreementResponse(
        comparisons=[_comparison_to_proto(row) for row in table.comparisons],
        group_agreements=[_group_to_proto(group) for group in table.groups],
        labels=table.labels,
        item_count=table.num_items,
        warnings=table.warnings,
        shortfalls=shortfalls,
    )


def _comparison_to_proto(row: Comparison) -> grader_pb2.AgreementComparison:
    kappa = row.kappa
    return grader_pb2.AgreementComparison(
        first=row.first,
        second=row.second,
        item_count=kappa.num_items,
        missing_count=row.num_missing,
        tied_count=row.num_tied,
        kappa=kappa.kappa,
        undefined_reason=kappa.undefined,
        interval=_interval_to_proto(kappa.interval),
        observed=kappa.observed,
        expected=kappa.expected,
        agreement=kappa.agreement,
        prevalence_index=kappa.prevalence_index,
        bias_index=kappa.bias_index,
        pabak=kappa.pabak,
    )


def _group_to_proto(group: GroupAgreement) -> grader_pb2.GroupAgreement:
    return grader_pb2.GroupAgreement(
        coefficient=group.coefficient,
        rater_count=group.num_raters,
        item_count=group.num_items,
        value=group.value,
        undefined_reason=group.undefined,
        interval=_interval_to_proto(group.interval),
    )


def _interval_to_proto(interval: Interval | None) -> grader_pb2.ConfidenceInterval | None:
    if interval is None:
        return None
    return grader_pb2.ConfidenceInterval(
        low=interval.low, high=interval.high, undefined_count=interval.num_undefined
    )
