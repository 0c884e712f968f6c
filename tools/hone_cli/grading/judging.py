"""Judges one response in this process, on a desk like the service's own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from pydantic import ValidationError

from grader.analysis.rows import GradedRow, unbounded_score
from grader.assembly import build_desk
from grader.definition import Definition
from grader.desk import GradingDesk
from grader.grading import failure_of
from grader.results import GradingFaultError
from grader.settings import GraderSettings
from hone_cli.addresses import AddressBook
from hone_cli.errors import USAGE, CliError
from hone_cli.grading.graderfile import GraderFile
from hone_cli.grading.sources import Work
from hone_cli.launcher.layout import Layout
from servicekit.errors import HoneError, InvalidArgument
from servicekit.settings import SERVICES, wrong_settings
from trajectory.types import GraderErrorKind, Outcome, Scored

MAX_TRIES = 3
RETRY_SECONDS = 1.0

Pause = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def open_desk(book: AddressBook) -> AsyncIterator[GradingDesk]:
    """Opens a desk with what is there: services of which `hone` knows an address, and nothing else.

    Raises:
        CliError: a setting of the grader is wrong.
    """
    given: dict[str, object] = {}
    file = book.endpoints_file()
    if file is not None:
        given["endpoints_file"] = file
        key_file = Layout(file.parent).key_file
        if key_file.exists():
            given["token_key_file"] = key_file
    try:
        settings = GraderSettings(**given)  # type: ignore[arg-type]  # values by name of the field
    except ValidationError as error:
        raise CliError(wrong_settings("grader", error), USAGE) from error
    async with AsyncExitStack() as stack:
        services = [service for service in SERVICES if _known(book, service)]
        yield build_desk(settings, stack.push_async_callback, services=services)


def check_definition(desk: GradingDesk, grader: GraderFile) -> Definition:
    """Returns the checked definition.

    Raises:
        CliError: a line for each wrong field.
    """
    try:
        return desk.definition(grader.text)
    except InvalidArgument as error:
        lines = [f"{grader.source}: {field}: {text}" for field, text in error.violations.items()]
        raise CliError("\n".join(lines) or f"{grader.source}: {error.message}", USAGE) from error


async def judge(desk: GradingDesk, work: Work, *, pause: Pause = asyncio.sleep) -> GradedRow:
    """Judges a response; a fault is tried again and then is the outcome, never an exception."""
    record = work.record
    if record is None:
        assert work.failure is not None
        return GradedRow(
            row_id=work.row_id,
            task_id=work.task_id,
            step=work.step,
            phase=work.phase,
            digest=work.digest,
            outcome=work.failure,
        )
    outcome, version = await _outcome(desk, work, pause)
    definition = _definition(desk, work.grader_json)
    return GradedRow(
        row_id=work.row_id,
        task_id=work.task_id,
        step=work.step,
        phase=work.phase,
        turn_count=len(record.turns),
        fields=tuple(record.task.reference),
        low=definition.bounds.low if definition else 0.0,
        high=definition.bounds.high if definition else 1.0,
        unbounded=_unbounded(definition, outcome),
        grader_version=version,
        digest=work.digest,
        outcome=outcome,
    )


async def _outcome(desk: GradingDesk, work: Work, pause: Pause) -> tuple[Outcome, str]:
    assert work.record is not None
    for tries in range(1, MAX_TRIES + 1):
        try:
            verdict = await desk.judge(work.record, work.grader_json)
        except GradingFaultError as error:
            fault = error
        # One response that breaks a grader must not cost the others.
        except Exception as error:
            fault = _defect(error)
        else:
            return verdict.outcome, verdict.grader_version
        if not fault.retryable:
            break
        if tries < MAX_TRIES:
            await pause(RETRY_SECONDS * tries)
    return failure_of(fault), desk.version_of(work.grader_json)


def _defect(error: Exception) -> GradingFaultError:
    if isinstance(error, HoneError):
        detail, retryable = error.message, error.retryable
    else:
        detail, retryable = f"{type(error).__name__}: {error}", False
    return GradingFaultError(
        detail, kind=GraderErrorKind.INTERNAL, retryable=retryable, client=False
    )


def _definition(desk: GradingDesk, grader_json: str) -> Definition | None:
    try:
        return desk.definition(grader_json)
    except InvalidArgument:
        return None


def _unbounded(definition: Definition | None, outcome: Outcome) -> float | None:
    if definition is None or not isinstance(outcome, Scored):
        return None
    return unbounded_score(definition, outcome)


def _known(book: AddressBook, service: str) -> bool:
    try:
        book.find(service, own=False)
    except CliError:
        return False
    return True
