"""One `hone grade`: source, desk, pool, results and meter put together."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from grader.analysis.rows import GradedRow
from grader.desk import GradingDesk
from hone_cli.addresses import AddressBook
from hone_cli.errors import USAGE, CliError
from hone_cli.grading.graderfile import GraderFile, grader_of
from hone_cli.grading.judging import check_definition, judge, open_desk
from hone_cli.grading.meter import Meter, SilentMeter, to_stderr
from hone_cli.grading.pool import pooled
from hone_cli.grading.results import Results, results_at
from hone_cli.grading.sources import (
    Work,
    check_rows,
    one_by_one,
    read_file,
    tasks_of_file,
    works_of_file,
)
from hone_cli.grading.stored import summaries_of, works_of_run
from hone_cli.grading.validation import Mistake, Probe, probes_of, validate
from hone_cli.watching import StopButton
from trajectory.types import Failure, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for, but for what is shown in the end."""

    out: Path | None = None
    resume: bool = False
    parallel: int = 8
    limit: int | None = None
    regrade: int = 0
    """Rows to judge a second time."""
    seed: int = 0
    quiet: bool = False
    """No progress on stderr."""


GIVE_UP_AFTER = 32
"""Responses in a row whose grading failed by something that may pass, as when a service is away."""


@dataclass(slots=True)
class Graded:
    """What came of it."""

    rows: list[GradedRow]
    complete: bool
    grader: GraderFile | None
    """The definition that the rows share; None if they have several."""
    regraded: list[GradedRow] = field(default_factory=list)
    gave_up: str = ""
    """Why no further response was tried, if so."""


@dataclass(slots=True)
class Validated:
    """What came of trying gold answers."""

    num_tasks: int
    mistakes: list[Mistake]
    complete: bool


async def grade_file(grader: GraderFile, path: Path, book: AddressBook, options: Options) -> Graded:
    """Grades the rows of a file.

    Raises:
        CliError: the definition, the file or the results are not right.
    """
    async with open_desk(book) as desk:
        check_definition(desk, grader)
        data, source, limit = read_file(path), str(path), options.limit
        ids = check_rows(data, grader, source=source, limit=limit)
        works = works_of_file(data, grader, source=source, limit=limit)
        return await _grade(desk, works, ids, grader, options)


async def grade_run(
    grader: GraderFile | None,
    run_id: str,
    book: AddressBook,
    options: Options,
    *,
    phase: str | None,
    step: int | None,
) -> Graded:
    """Grades a run's stored rollouts by a definition, or each by its own.

    Raises:
        CliError: as for a file; or the console is away or has no such rollouts.
    """
    async with open_desk(book) as desk:
        if grader is not None:
            check_definition(desk, grader)
        found = await summaries_of(run_id, book, phase=phase, step=step)
        found = [item for item in found if item.outcome != "open"][: options.limit]
        if not found:
            raise CliError(f"no rollout of run {run_id} has ended yet", USAGE)
        text = grader.text if grader is not None else ""
        works = works_of_run(run_id, book, found, grader_json=text)
        ids = [item.rollout_id for item in found]
        return await _grade(desk, works, ids, grader, options)


async def validate_file(
    grader: GraderFile,
    path: Path,
    book: AddressBook,
    options: Options,
    *,
    gold_field: str | None,
) -> Validated:
    """Tries each task's gold answer and its opposites.

    Raises:
        CliError: the definition or the file is not right, or a task has no gold answer.
    """
    async with open_desk(book) as desk:
        check_definition(desk, grader)
        tasks = tasks_of_file(read_file(path), grader, source=str(path))
        probes = probes_of(tasks, grader, gold_field=gold_field)[: options.limit]
        by_task: dict[str, list[Mistake]] = {}

        async def do(probe: Probe) -> tuple[str, list[Mistake]]:
            return probe.row_id, await validate(desk, probe, grader.text, pause=asyncio.sleep)

        with _meter(len(probes), options) as meter, _stop_button() as button:

            def done(found: tuple[str, list[Mistake]]) -> None:
                by_task[found[0]] = found[1]
                meter.tick()

            complete = await pooled(
                one_by_one(probes), do, done, parallel=options.parallel, button=button
            )
    mistakes = [mistake for probe in probes for mistake in by_task.get(probe.row_id, [])]
    return Validated(num_tasks=len(by_task), mistakes=mistakes, complete=complete)


async def _grade(
    desk: GradingDesk,
    works: AsyncIterator[Work],
    row_ids: Sequence[str],
    grader: GraderFile | None,
    options: Options,
) -> Graded:
    """Grades works, of which the ids are known; returns the rows in the order of the ids."""
    sample = _Sample(options.regrade, random.Random(options.seed))
    definitions: set[str] = set()
    with results_at(options.out, resume=options.resume) as results:
        with _meter(len(row_ids), options) as meter, _stop_button() as button:

            async def do(work: Work) -> GradedRow:
                return await judge(desk, work)

            outage = Outage()

            def done(row: GradedRow) -> None:
                results.add(row)
                meter.tick(failed=isinstance(row.outcome, Failure))
                if outage.lasts(row.outcome):
                    button.press()

            todo = _undone(works, results, desk, sample, definitions, meter)
            complete = await pooled(todo, do, done, parallel=options.parallel, button=button)
            again: list[GradedRow] = []
            if complete:
                complete = await pooled(
                    one_by_one(sample.works),
                    do,
                    again.append,
                    parallel=options.parallel,
                    button=button,
                )
        if grader is None and len(definitions) == 1:
            grader = grader_of(definitions.pop(), "the run's grader")
        rows = [row for row_id in row_ids if (row := results.get(row_id)) is not None]
        return Graded(
            rows=rows,
            complete=complete,
            grader=grader,
            regraded=again,
            gave_up="" if complete else outage.why,
        )


class Outage:
    """Notices that something which grading needs stays away, so that a long file is not failed row by row."""

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self.why = ""
        self._in_a_row = 0

    def lasts(self, outcome: Outcome) -> bool:
        """Takes the next outcome; says once that it is no use to go on."""
        if not isinstance(outcome, Failure) or not outcome.retryable:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if self.why or self._in_a_row < GIVE_UP_AFTER:
            return False
        self.why = f"the last {GIVE_UP_AFTER} could not be graded: {outcome.detail}"
        return True


class _Sample:
    """Keeps k of a stream, each as likely as any other (Vitter 1985, algorithm R)."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self.works: list[Work] = []
        self._size = size
        self._rng = rng
        self._seen = 0

    def offer(self, work: Work) -> None:
        self._seen += 1
        if len(self.works) < self._size:
            self.works.append(work)
            return
        place = self._rng.randrange(self._seen)
        if place < self._size:
            self.works[place] = work


async def _undone(
    works: AsyncIterator[Work],
    results: Results,
    desk: GradingDesk,
    sample: _Sample,
    definitions: set[str],
    meter: Meter,
) -> AsyncIterator[Work]:
    """Yields what an earlier command did not grade; shows every row to the sample."""
    async for work in works:
        if work.record is not None:
            definitions.add(work.grader_json)
            sample.offer(work)
            if results.has(work.row_id, work.digest, desk.version_of(work.grader_json)):
                meter.skip()
                continue
        yield work


@contextmanager
def _meter(total: int, options: Options) -> Iterator[Meter]:
    meter = SilentMeter() if options.quiet else Meter(total, live=sys.stderr.isatty())
    try:
        yield meter
    finally:
        meter.close()


@contextmanager
def _stop_button() -> Iterator[StopButton]:
    """Listens for Ctrl-C inside the block."""
    button = StopButton()
    loop = asyncio.get_running_loop()

    def press() -> None:
        button.press()
        if button.presses == 1:
            to_stderr("\nfinishing what is under way; Ctrl-C again leaves at once\n")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, press)
    try:
        yield button
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
