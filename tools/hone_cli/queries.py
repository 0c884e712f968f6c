"""Questions to the learner and the console that commands share."""

import asyncio
import difflib
import uuid
from collections.abc import Awaitable, Callable

from hone.common.v1 import identity_pb2
from hone.console.v1 import console_pb2
from hone.events.v1 import events_pb2
from hone.learner.v1 import learner_pb2

from hone_cli.addresses import AddressBook
from hone_cli.clients import console_client, learner_client
from hone_cli.compare import HeldOut, RunFigures, held_out_of, news
from hone_cli.errors import USAGE, CliError
from hone_cli.plain import enum_word
from hone_cli.watching import LearnerSource
from runspec.convert import run_spec_from_proto
from runspec.schema import flat
from servicekit.errors import NotFound

_MAX_PAGE = 500
_ALL = 1 << 31


async def list_runs(book: AddressBook, limit: int) -> list[learner_pb2.Run]:
    """The newest runs that the learner knows."""
    found: list[learner_pb2.Run] = []
    token = ""
    async with learner_client(book) as learner:
        while len(found) < limit:
            size = min(limit - len(found), _MAX_PAGE)
            reply = await learner.ListRuns(
                learner_pb2.ListRunsRequest(page_size=size, page_token=token)
            )
            found += reply.runs
            token = reply.next_page_token
            if not token:
                break
    return found


async def get_run(run_id: str, book: AddressBook) -> learner_pb2.GetRunResponse:
    """One run; where there is none, the error names the nearest id.

    Raises:
        CliError: no such run.
    """
    async with learner_client(book) as learner:
        try:
            return await learner.GetRun(learner_pb2.GetRunRequest(run_id=run_id))
        except NotFound as error:
            reply = await learner.ListRuns(learner_pb2.ListRunsRequest(page_size=_MAX_PAGE))
            near = difflib.get_close_matches(run_id, [run.run_id for run in reply.runs], n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `hone runs` lists them"
            raise CliError(f"there is no run {run_id}{hint}", USAGE) from error


async def stop_run(run_id: str, book: AddressBook) -> learner_pb2.Run:
    """Stops a run, once no update is under way, and waits until it has stopped.

    Raises:
        CliError: no such run.
    """
    await get_run(run_id, book)
    await LearnerSource(book).stop(run_id)
    return (await get_run(run_id, book)).run


async def run_figures(run_id: str, book: AddressBook) -> RunFigures:
    """One run with what it is compared by; its evaluations task by task where the console is up.

    Raises:
        CliError: no such run.
    """
    reply = await get_run(run_id, book)
    run, steps = reply.run, [(step.step, dict(step.metrics)) for step in reply.steps]
    # Figures of the whole run that no step has told, as of the evaluation after the last update.
    before = steps[-1][1] if steps else {}
    after = news(before, run.metrics)
    if after:
        steps.append((run.step, after))
    return RunFigures(
        run_id=run.run_id,
        algorithm=run.spec.algorithm,
        state=enum_word(run.DESCRIPTOR.fields_by_name["state"], run.state),
        step=run.step,
        settings=flat(run_spec_from_proto(run.spec)) | _number_type(run),
        steps=steps,
        held_out=await _held_out(run, book),
    )


def _number_type(run: learner_pb2.Run) -> dict[str, str]:
    """What the run was trained in, where its file leaves that to be measured."""
    return {"model.dtype": run.dtype_choice.dtype} if run.HasField("dtype_choice") else {}


async def _held_out(run: learner_pb2.Run, book: AddressBook) -> HeldOut | None:
    request = console_pb2.ListRolloutsRequest(run_id=run.run_id, phase=identity_pb2.PHASE_EVALUATE)
    try:
        rollouts, _ = await list_rollouts(book, request, _ALL, own=False)
    except CliError:
        return None
    # Of the attempts of a slot the last one counts.
    newest: dict[tuple[int, int, int], console_pb2.RolloutSummary] = {}
    for item in sorted(rollouts, key=lambda item: item.attempt):
        newest[item.slot.step, item.slot.group_index, item.slot.sample_index] = item
    return held_out_of(
        (
            (item.slot.step, item.task_id, item.score if item.outcome == "scored" else None)
            for item in newest.values()
        ),
        run.spec.eval_dataset_id,
    )


async def roll_back(
    run_id: str, checkpoint: learner_pb2.CheckpointChoice, book: AddressBook
) -> learner_pb2.RollBackRunResponse:
    """Takes a run that is not going back to an earlier checkpoint.

    Raises:
        CliError: the run is going, or the checkpoint is not kept.
    """
    request = learner_pb2.RollBackRunRequest(
        request_id=str(uuid.uuid4()), run_id=run_id, checkpoint=checkpoint
    )
    async with learner_client(book) as learner:
        return await learner.RollBackRun(request, timeout=300)


async def run_counts(run_id: str, book: AddressBook) -> console_pb2.RunSummary | None:
    """What the archive counted for a run; None where the console is away or has not seen it."""
    try:
        async with console_client(book, own=False) as console:
            return await _summary(console, run_id)
    except CliError:
        return None


async def wait_for_end(
    run_id: str,
    book: AddressBook,
    *,
    seconds: float,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Waits until the archive has the end of a run; returns whether it has."""
    waited, step = 0.0, 0.25
    async with console_client(book) as console:
        while True:
            summary = await _summary(console, run_id)
            if summary is not None and summary.end != events_pb2.RUN_END_UNSPECIFIED:
                return True
            if waited >= seconds:
                return False
            await pause(step)
            waited += step


async def _summary(console: object, run_id: str) -> console_pb2.RunSummary | None:
    token = ""
    while True:
        request = console_pb2.ListRunsRequest(page_size=_MAX_PAGE, page_token=token)
        reply: console_pb2.ListRunsResponse = await console.ListRuns(request)  # type: ignore[attr-defined]
        for summary in reply.runs:
            if summary.run_id == run_id:
                return summary
        token = reply.next_page_token
        if not token:
            return None


async def list_rollouts(
    book: AddressBook,
    request: console_pb2.ListRolloutsRequest,
    limit: int,
    *,
    own: bool = True,
) -> tuple[list[console_pb2.RolloutSummary], bool]:
    """Rollouts in the order of their requests, and whether there are more."""
    found: list[console_pb2.RolloutSummary] = []
    async with console_client(book, own=own) as console:
        while len(found) < limit:
            request.page_size = min(limit - len(found), 1000)
            reply = await console.ListRollouts(request)
            found += reply.rollouts
            request.page_token = reply.next_page_token
            if not reply.next_page_token:
                return found, False
    return found, True


async def get_rollout(book: AddressBook, rollout_id: str) -> console_pb2.GetRolloutResponse:
    """One rollout whole.

    Raises:
        CliError: the archive has no such rollout.
    """
    async with console_client(book) as console:
        try:
            return await console.GetRollout(
                console_pb2.GetRolloutRequest(rollout_id=rollout_id), timeout=60
            )
        except NotFound as error:
            raise CliError(
                f"the archive has no rollout {rollout_id}; `hone rollout --run RUN_ID` lists them",
                USAGE,
            ) from error


async def audit_run(book: AddressBook, run_id: str) -> console_pb2.AuditRunResponse:
    """What the audit of a run's log found.

    Raises:
        CliError: the log knows no such run.
    """
    async with console_client(book) as console:
        try:
            return await console.AuditRun(console_pb2.AuditRunRequest(run_id=run_id), timeout=300)
        except NotFound as error:
            raise CliError(
                f"the log knows no run {run_id}; `hone runs` lists them", USAGE
            ) from error
