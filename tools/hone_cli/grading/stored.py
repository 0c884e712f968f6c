"""What there is to grade: a run's rollouts as the archive holds them."""

from collections.abc import AsyncIterator
from typing import Any

from hone.common.v1 import identity_pb2, outcome_pb2
from hone.console.v1 import console_pb2
from hone.events.v1 import events_pb2

from hone_cli.addresses import AddressBook
from hone_cli.clients import console_client
from hone_cli.errors import USAGE, CliError
from hone_cli.grading.sources import Work
from hone_cli.queries import list_rollouts
from trajectory.convert import enum_from_proto, rollout_record_from_proto
from trajectory.outcome_convert import outcome_kind_from_proto
from trajectory.types import (
    Attribution,
    Failure,
    FailureKind,
    GraderErrorKind,
    Masked,
    Outcome,
    Scored,
)

_ALL = 1 << 31
_PAGE = 200


async def summaries_of(
    run_id: str, book: AddressBook, *, phase: str | None, step: int | None
) -> list[console_pb2.RolloutSummary]:
    """The rollouts of a run that a filter leaves, in the order of their requests.

    Raises:
        CliError: there are none.
    """
    request = console_pb2.ListRolloutsRequest(run_id=run_id, step=step)
    if phase is not None:
        request.phase = identity_pb2.Phase.Value(f"PHASE_{phase.upper()}")
    found, _ = await list_rollouts(book, request, _ALL)
    if not found:
        where = "".join(
            f" of {name} {value}"
            for name, value in (("phase", phase), ("step", step))
            if value is not None
        )
        raise CliError(
            f"the archive has no rollouts{where} of run {run_id}; `hone runs` lists runs", USAGE
        )
    return found


async def works_of_run(
    run_id: str,
    book: AddressBook,
    summaries: list[console_pb2.RolloutSummary],
    *,
    grader_json: str,
) -> AsyncIterator[Work]:
    """Yields what each rollout left, in the order in which they finished, then those that failed without a record.

    Args:
        run_id: the run.
        book: where the console is.
        summaries: the rollouts that are wanted; open ones are left out.
        grader_json: the definition; empty means each record's own.
    """
    wanted = {item.rollout_id: item for item in summaries if item.outcome != "open"}
    async with console_client(book) as console:
        token = ""
        while True:
            request = console_pb2.ListEventsRequest(
                run_id=run_id, type="rollout_finished", page_size=_PAGE, page_token=token
            )
            reply = await console.ListEvents(request, timeout=60)
            for event in reply.events:
                item = wanted.pop(event.rollout_id, None)
                if item is not None:
                    yield _work(item, event.rollout_finished, grader_json)
            token = reply.next_page_token
            if not token:
                break
    for item in wanted.values():
        yield _without_record(item, "the archive has no record of it")


def outcome_of_summary(item: console_pb2.RolloutSummary) -> Outcome | None:
    """The outcome as far as a summary tells it; None of one that is open."""
    if item.outcome == "scored":
        return Scored(rewards=(), score=item.score, kind=outcome_kind_from_proto(item.kind))
    if item.outcome == "masked":
        return Masked(kind=outcome_kind_from_proto(item.kind), reason="")
    return _failure(item, "") if item.outcome == "failed" else None


def step_of(item: console_pb2.RolloutSummary) -> int | None:
    """The step of a rollout's slot; None where the log never told it."""
    return item.slot.step if item.HasField("slot") else None


def phase_of(item: console_pb2.RolloutSummary) -> str:
    """The phase of a rollout's slot as a word; empty where the log never told it."""
    return (
        identity_pb2.Phase.Name(item.slot.phase).removeprefix("PHASE_").lower()
        if item.HasField("slot")
        else ""
    )


def _work(
    item: console_pb2.RolloutSummary, finished: events_pb2.RolloutFinished, grader_json: str
) -> Work:
    if finished.WhichOneof("record") != "inline":
        return _without_record(item, "the archive could not fetch its record")
    try:
        record = rollout_record_from_proto(finished.inline)
    except ValueError as error:
        return _without_record(item, f"its record is not consistent: {error}")
    return Work(
        row_id=item.rollout_id,
        task_id=item.task_id,
        step=step_of(item),
        phase=phase_of(item),
        grader_json=grader_json or record.grader_json,
        record=record,
    )


def _without_record(item: console_pb2.RolloutSummary, why: str) -> Work:
    failure = (
        _failure(item, "")
        if item.outcome == "failed"
        else Failure(
            kind=FailureKind.GRADER,
            retryable=False,
            attributable=Attribution.INFRA,
            detail=why,
            grader_error=GraderErrorKind.INTERNAL,
        )
    )
    return Work(
        row_id=item.rollout_id,
        task_id=item.task_id,
        step=step_of(item),
        phase=phase_of(item),
        failure=failure,
    )


def _failure(item: console_pb2.RolloutSummary, detail: str) -> Failure:
    descriptor: Any = outcome_pb2.FailureKind
    kind = enum_from_proto(
        item.failure_kind, descriptor, "FAILURE_KIND", FailureKind, "failure_kind"
    )
    return Failure(kind=kind, retryable=False, attributable=Attribution.INFRA, detail=detail)
