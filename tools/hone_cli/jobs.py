"""What the commands that start runs have in common: check the files, upload them, start the run and follow it."""

import asyncio
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hone.grader.v1 import grader_pb2
from hone.learner.v1 import learner_pb2

from hone_cli.addresses import AddressBook
from hone_cli.agreement import Agreed, check_agreement
from hone_cli.clients import grader_client, learner_client
from hone_cli.errors import FAILED, INTERRUPTED, USAGE, CliError, service_error
from hone_cli.runview import RunView, choose_view
from hone_cli.watching import LearnerSource, LeftRunError, StopButton, Watcher
from runspec.convert import run_spec_to_proto
from runspec.datafiles import DataFileError, RowSource, read_rows_of
from runspec.graderfields import required_fields
from runspec.load import LoadedRun, check_files, load_run_file
from runspec.preferences import parse_preferences
from runspec.problems import Problem, RowErrors, SpecError
from runspec.rows import parse_tasks
from runspec.schema import RunSpec
from runspec.sft_rows import parse_sft_rows
from servicekit.errors import HoneError, InvalidArgument, Unavailable

_CHUNK_BYTES = 256 * 1024

OFF_TASK = "health.off_task"

Verb = Literal["sft", "dpo", "reward-model", "train", "evaluate"]
"""Commands that start runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One data file that was read and checked."""

    field: str
    path: Path
    data: bytes
    row_count: int
    kind: "learner_pb2.DatasetKind.ValueType"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run that is fit to start."""

    run: LoadedRun
    train: DataFile | None
    eval: DataFile | None
    off_task: DataFile | None = None
    agreement: Agreed | None = None
    """That people agree as far as the file demands; None if it demands nothing."""


def prepare(run_file: Path, overrides: Sequence[str], verb: Verb) -> Job:
    """Reads the run file and its data and checks them.

    Args:
        run_file: the run.yaml.
        overrides: texts like train.learning_rate=1e-5.
        verb: the command; a file that trains on rewards may be evaluated.

    Raises:
        CliError: everything that is wrong, a line each; or people agree less than the file demands.
    """
    try:
        run = load_run_file(
            run_file, overrides, algorithm="evaluate" if verb == "evaluate" else None
        )
        right = _verb_of(run.spec)
        if right != verb:
            message = f"is {run.spec.algorithm}; use `hone {right}` for it"
            raise SpecError([run.problem("algorithm", message)])
        # The learner may be on another machine: whether its model folder exists is for it to say.
        if problems := check_files(run, model=False):
            raise SpecError(problems)
        data = run.spec.data
        train = (
            None
            if verb == "evaluate"
            else _read_data(run, "data.train", data.train, data.train_split)
        )
        held_out = _read_data(run, "data.eval", data.eval, data.eval_split)
        off_task = _read_data(run, OFF_TASK, run.spec.health.off_task, "")
        return Job(
            run=run,
            train=train,
            eval=held_out,
            off_task=off_task,
            agreement=check_agreement(run),
        )
    except (SpecError, RowErrors) as error:
        raise CliError(_relative(str(error)), USAGE) from error
    except CliError as error:
        raise CliError(_relative(str(error)), error.exit_code) from error


def _verb_of(spec: RunSpec) -> Verb:
    match spec.algorithm:
        case "sft" | "dpo" | "evaluate":
            return spec.algorithm
        case "reward_model":
            return "reward-model"
        case _:
            return "train"


def _read_data(run: LoadedRun, field: str, path_text: str, split: str) -> DataFile | None:
    if not path_text:
        return None
    path = Path(path_text)
    try:
        source = read_rows_of(path, field, split)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise SpecError([run.problem(field, message)]) from error
    except DataFileError as error:
        raise SpecError([run.problem(field, str(error))]) from error
    try:
        kind, count = _checked(run.spec, field, source)
    except RowErrors as errors:
        raise source.placed(errors) from errors
    return DataFile(field=field, path=path, data=source.data, row_count=count, kind=kind)


def _checked(
    spec: RunSpec, field: str, source: RowSource
) -> "tuple[learner_pb2.DatasetKind.ValueType, int]":
    """Reads the rows once; returns what they are and how many. Off-task rows are as sft takes them in every run."""
    if spec.algorithm == "sft" or field == OFF_TASK:
        rows = parse_sft_rows(source.data, source=source.name)
        return learner_pb2.DATASET_KIND_SFT, len(rows)
    if spec.compares:
        pairs = parse_preferences(source.data, source=source.name)
        return learner_pb2.DATASET_KIND_PREFERENCES, len(pairs)
    required = required_fields(spec.grader)
    tasks = parse_tasks(source.data, source=source.name, required=required)
    return learner_pb2.DATASET_KIND_TASKS, len(tasks)


async def check_grader(job: Job, book: AddressBook) -> str:
    """Asks the grader about the definition, where one is running; returns what it said in words.

    Raises:
        CliError: the definition is wrong.
    """
    if job.run.spec.grader is None:
        return "none"
    definition = run_spec_to_proto(job.run.spec).grader_json
    try:
        async with grader_client(book) as grader:
            reply = await grader.ValidateGrader(
                grader_pb2.ValidateGraderRequest(grader_json=definition)
            )
    except (Unavailable, CliError):
        return "not checked, as no grader service is running"
    except InvalidArgument as error:
        problems = [
            job.run.problem(_grader_field(field), text) for field, text in error.violations.items()
        ] or [job.run.problem("grader", error.message)]
        raise refused(problems) from error
    except HoneError as error:
        raise service_error(error, "grader", book.find("grader", own=False)) from error
    return f"rewards {', '.join(reply.reward_names)} (version {reply.grader_version})"


async def start(job: Job, book: AddressBook) -> learner_pb2.Run:
    """Uploads the data and starts the run.

    Raises:
        CliError: the learner is not there, is busy, or refuses the run.
    """
    await check_grader(job, book)
    address = book.find("learner")
    async with learner_client(book) as learner:
        ids = {"data.train": "", "data.eval": "", OFF_TASK: ""}
        for file in (job.train, job.eval, job.off_task):
            if file is not None:
                reply = await learner.UploadDataset(_chunks(file), timeout=300)
                ids[file.field] = reply.dataset_id
        spec = job.run.spec.with_datasets(
            train=ids["data.train"], eval=ids["data.eval"], off_task=ids[OFF_TASK]
        )
        request = learner_pb2.StartRunRequest(
            request_id=str(uuid.uuid4()), spec=run_spec_to_proto(spec)
        )
        try:
            started = await learner.StartRun(request, timeout=300)
        except HoneError as error:
            problems = [job.run.problem(f, text) for f, text in error.violations.items()]
            if not problems:
                raise service_error(error, "learner", address) from error
            raise refused(problems) from error
        return started.run


async def resume(run_id: str, book: AddressBook) -> learner_pb2.Run:
    """Goes on with a run from its last checkpoint.

    Raises:
        CliError: there is no such run, it is complete, or the learner is busy.
    """
    async with learner_client(book) as learner:
        return (
            await learner.ResumeRun(learner_pb2.ResumeRunRequest(run_id=run_id), timeout=300)
        ).run


async def follow(run: learner_pb2.Run, book: AddressBook, view: RunView) -> learner_pb2.Run:
    """Watches the run to its end; Ctrl-C stops it once no update is under way.

    Raises:
        CliError: the learner stayed away.
        LeftRunError: Ctrl-C was pressed twice.
    """
    button = StopButton()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, button.press)
    loop.add_signal_handler(signal.SIGTERM, button.press)
    view.started(run)
    ended = run
    try:
        ended = await Watcher(LearnerSource(book), run.run_id, view, button).follow()
    finally:
        view.ended(ended)
    return ended


def run_to_end(run: learner_pb2.Run, book: AddressBook, *, as_json: bool) -> int:
    """Follows a run and says how it ended; returns the exit code."""
    view = choose_view(as_json)
    try:
        ended = asyncio.run(follow(run, book, view))
    except LeftRunError:
        print(
            f"left; the learner stops run {run.run_id} once no update is under way. "
            f"`hone runs {run.run_id}` shows it, `hone train --resume {run.run_id}` goes on",
            file=sys.stderr,
        )
        return INTERRUPTED
    return outcome(ended, as_json=as_json)


def outcome(run: learner_pb2.Run, *, as_json: bool) -> int:
    """Prints how a run ended; returns the exit code."""
    if run.state == learner_pb2.RUN_STATE_COMPLETED:
        if not as_json:
            from hone_cli.render_run import print_outcome

            print_outcome(run)
        return 0
    detail = f": {run.detail}" if run.detail else ""
    if run.state == learner_pb2.RUN_STATE_STOPPED:
        # A person who stopped it knows why.
        why = f"{run.detail}\n" if run.detail.startswith("stopped by an alarm") else ""
        back = f"; `hone train --rollback {run.run_id}` goes back to the best" if why else ""
        text = (
            f"{why}stopped after {run.step} steps, all saved; "
            f"go on with `hone train --resume {run.run_id}`{back}"
        )
        print(text, file=sys.stderr)
        return FAILED if why else INTERRUPTED
    raise CliError(
        f"run {run.run_id} failed{detail}. When the cause is mended, go on with "
        f"`hone train --resume {run.run_id}`",
        FAILED,
    )


async def _chunks(file: DataFile) -> AsyncIterator[learner_pb2.UploadDatasetRequest]:
    yield learner_pb2.UploadDatasetRequest(kind=file.kind, chunk=file.data[:_CHUNK_BYTES])
    for start_at in range(_CHUNK_BYTES, len(file.data), _CHUNK_BYTES):
        yield learner_pb2.UploadDatasetRequest(chunk=file.data[start_at : start_at + _CHUNK_BYTES])


def _grader_field(field: str) -> str:
    name = field.removeprefix("grader_json").lstrip(".")
    return name if name == "grader" or name.startswith("grader.") else f"grader.{name}".rstrip(".")


def refused(problems: Iterable[Problem]) -> CliError:
    """What the command says of problems of the run file, a line each."""
    return CliError(_relative(str(SpecError(problems))), USAGE)


def _relative(text: str) -> str:
    """Shortens paths below the current folder."""
    return text.replace(f"{Path.cwd()}/", "")
