"""Runs on disk: one folder each, with what it should do, where it stands, and its figures."""

import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from servicekit.errors import InvalidArgument, NotFound


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
            NotFound: there is no such run.
        """
        path = self.folder(run_id) / "run.json"
        try:
            fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotFound(f"run {run_id} does not exist; `hone runs` lists them") from None
        return Run(**{**fields, "state": RunState(fields["state"])})

    def all(self) -> list[Run]:
        """Returns every run, newest first."""
        found = [self.load(path.parent.name) for path in self._folder.glob("*/run.json")]
        return sorted(found, key=lambda run: (run.create_time, run.run_id), reverse=True)

    def append_step(self, run_id: str, step: Step) -> None:
        """Adds a line to metrics.jsonl."""
        line = {
            "step": step.step,
            "policy_version": step.policy_version,
            "time": step.end_time,
            **step.metrics,
        }
        path = self.folder(run_id) / "metrics.jsonl"
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def steps(self, run_id: str) -> list[Step]:
        """Reads metrics.jsonl; a step written twice around a crash counts once, a torn last line not at all."""
        path = self.folder(run_id) / "metrics.jsonl"
        found: dict[int, Step] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                fields = json.loads(line)
            except json.JSONDecodeError:
                continue
            step = Step(
                step=fields.pop("step"),
                policy_version=fields.pop("policy_version"),
                end_time=fields.pop("time"),
                metrics=fields,
            )
            found[step.step] = step
        return [found[key] for key in sorted(found)]


def ended(run: Run, state: RunState, *, at: float, detail: str = "") -> Run:
    """Returns the run in a final state."""
    return replace(run, state=state, end_time=at, detail=detail)


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
