"""Runs on disk: one folder each, with what it should do, where it stands, and its figures."""

import errno
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from learner.runs.dtype_choice import DtypeChoice
from servicekit.errors import DataLoss, InvalidArgument, NotFound

log = logging.getLogger(__name__)

_TAIL_BYTES = 256 * 1024
"""More than a line of metrics.jsonl is long."""


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimiser update that is done."""

    step: int
    policy_version: int
    end_time: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAlarm:
    """An alarm that a run raised."""

    kind: str
    step: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as it stands; `spec_json` is the proto's JSON form."""

    run_id: str
    request_id: str
    spec_json: str
    state: RunState
    create_time: float
    step: int = 0
    policy_version: int = 0
    end_time: float = 0.0
    detail: str = ""
    life: int = 0
    """How often the run was resumed by someone; tells its ends apart."""
    starts_without_step: int = 0
    """How often the learner came back to the run after a crash without having finished a step since."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    alarms: tuple[RunAlarm, ...] = ()
    """Oldest first."""
    dtype_choice: DtypeChoice | None = None
    """What `model.dtype: auto` stands for, once that is known."""
    rolled_back_to: int = 0
    """Newest version that going back has made; whoever asks for it again gets the answer and nothing else."""


class RunStore:
    """Keeps runs below a folder; every write is whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """Uses `folder`, which is made when the first run is."""
        self._folder = folder

    def folder(self, run_id: str) -> Path:
        """Returns the run's folder.

        Raises:
            InvalidArgument: the id could lead out of the store.
        """
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,80}", run_id):
            raise InvalidArgument(
                f"run_id: found {run_id[:80]!r}; small letters, digits and dashes are right",
                violations={"run_id": "is not a run's id"},
            )
        return self._folder / run_id

    def explain(self, error: OSError) -> str:
        """Returns what went wrong with the disk, naming the folder where it is known."""
        where = error.filename or self._folder
        remedy = "; free space there, then resume the run" if error.errno == errno.ENOSPC else ""
        return f"{where}: {error.strerror or error}{remedy}"

    def save(self, run: Run) -> None:
        """Writes the run's state."""
        folder = self.folder(run.run_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "run.json", json.dumps(asdict(run), indent=1).encode())

    def load(self, run_id: str) -> Run:
        """Reads a run.

        Raises:
            NotFound: there is no such run. DataLoss: its file is spoilt.
        """
        path = self.folder(run_id) / "run.json"
        try:
            with reading(path):
                fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                alarms = tuple(RunAlarm(**alarm) for alarm in fields.get("alarms", ()))
                choice = fields.get("dtype_choice")
                known = {
                    "state": RunState(fields["state"]),
                    "alarms": alarms,
                    "dtype_choice": None if choice is None else DtypeChoice(**choice),
                }
                return Run(**fields | known)
        except FileNotFoundError:
            raise NotFound(f"run {run_id} does not exist; `hone runs` lists them") from None

    def all(self) -> list[Run]:
        """Returns every run, newest first; one whose file is spoilt is left out, for the sake of the others."""
        found = []
        for path in self._folder.glob("*/run.json"):
            try:
                found.append(self.load(path.parent.name))
            except (DataLoss, InvalidArgument) as error:
                log.error("a run is left out: %s", error.message)
        return sorted(found, key=lambda run: (run.create_time, run.run_id), reverse=True)

    def append_step(self, run_id: str, step: Step) -> None:
        """Adds a line to metrics.jsonl; a step that is there already is replaced, with what came after it."""
        line = {
            "step": step.step,
            "policy_version": step.policy_version,
            "time": step.end_time,
            **{name: value if isfinite(value) else None for name, value in step.metrics.items()},
        }
        path = self.folder(run_id) / "metrics.jsonl"
        text = json.dumps(line).encode() + b"\n"
        if _last_step(path) < step.step:
            with path.open("ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        else:
            kept = [raw for found, raw in _lines(path) if found.step < step.step]
            write_atomically(path, b"".join(kept) + text)

    def steps(self, run_id: str) -> list[Step]:
        """Reads metrics.jsonl; a torn last line counts as not written."""
        return [step for step, _ in _lines(self.folder(run_id) / "metrics.jsonl")]


def _last_step(path: Path) -> float:
    """Returns the step of the last line: -1 where there is none yet, infinity where it is torn or none can be read."""
    if not path.exists() or not path.stat().st_size:
        return -1
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read()
    try:
        return int(json.loads(tail.splitlines()[-1])["step"]) if tail.endswith(b"\n") else inf
    except ValueError:
        return inf


def _lines(path: Path) -> list[tuple[Step, bytes]]:
    """Reads the whole lines of metrics.jsonl, each as it stands and as a step, in the order of the steps."""
    found: dict[int, tuple[Step, bytes]] = {}
    for raw in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            fields = json.loads(raw)
        except ValueError:
            continue
        step = Step(
            step=fields.pop("step"),
            policy_version=fields.pop("policy_version"),
            end_time=fields.pop("time"),
            metrics={name: nan if value is None else value for name, value in fields.items()},
        )
        found[step.step] = (step, raw)
    return [found[key] for key in sorted(found)]


def ended(run: Run, state: RunState, *, at: float, detail: str = "") -> Run:
    """Returns the run in a final state."""
    return replace(run, state=state, end_time=at, detail=detail)


@contextmanager
def reading(path: Path, remedy: str = "") -> Iterator[None]:
    """Names the file whose content is being read where it is not what this service wrote.

    Raises:
        DataLoss: the file is spoilt; the text says what to do about it.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{path} is spoilt ({type(error).__name__}: {str(error)[:200]})"
        raise DataLoss(f"{what}; {remedy}" if remedy else what) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader or a crash sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
