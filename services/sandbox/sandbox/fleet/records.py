"""What must be known after this process is gone: which sandboxes it owned, and which rollouts have ended.

An append-only journal of JSON lines. A line is written before its effect begins, so that even SIGKILL leaves it
behind, and is on disk (`sync`) before anyone is told. Opening the journal replays it: a sandbox without an end belonged
to a manager that died, and is lost; one that was made ahead for nobody is forgotten, as nobody was told of it. What is
kept is bounded; the journal is rewritten when it has grown stale.
"""

import asyncio
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandbox.storage.files import write_all
from sandbox.storage.spool import room_is_ours
from sandbox.types import BoxKey, Cause, Purpose
from servicekit.errors import HoneError

log = logging.getLogger(__name__)

_REWRITE_FACTOR = 8
"""The journal is rewritten when it holds this many lines for each that is needed, and at least this many thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """One sandbox from creation to destruction."""

    sandbox_id: str
    key: BoxKey
    run_id: str
    epoch: int
    trace_parent: str
    cause: Cause | None = None
    """Set once it is gone."""
    told: bool = False
    """Whether the sandbox_destroyed event has reached the log."""
    polluted: bool = False
    """Whether others may have changed what its rollout saw."""


class Records:
    """The journal and what it says."""

    def __init__(self, path: Path, *, max_sandboxes: int = 20_000, max_ended: int = 50_000) -> None:
        """Opens or makes the journal; sandboxes that an earlier manager left open are lost from here on."""
        self._path = path
        self._max_sandboxes = max_sandboxes
        self._max_ended = max_ended
        self._sandboxes: OrderedDict[str, SandboxRecord] = OrderedDict()
        self._last_by_key: dict[BoxKey, str] = {}
        self._ahead: dict[str, None] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._lines = 0
        self._written = 0
        self._synced = 0
        self._sync_lock = asyncio.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._replay()
        self._ahead.clear()
        for record in list(self._sandboxes.values()):
            if record.cause is None:
                self._put(replace(record, cause=Cause.MANAGER_LOST))
        self._descriptor = self._rewrite()

    def get(self, sandbox_id: str) -> SandboxRecord | None:
        """Return a sandbox's record."""
        return self._sandboxes.get(sandbox_id)

    def last_of(self, key: BoxKey) -> SandboxRecord | None:
        """Return the newest sandbox that was made for a key."""
        sandbox_id = self._last_by_key.get(key)
        return self._sandboxes.get(sandbox_id) if sandbox_id is not None else None

    def untold(self) -> list[SandboxRecord]:
        """Return the sandboxes that are gone without the log knowing it."""
        return [r for r in self._sandboxes.values() if r.cause is not None and not r.told]

    def newest_epochs(self) -> Iterator[tuple[str, int]]:
        """Yield rollouts with an epoch that was seen for each."""
        for record in self._sandboxes.values():
            yield record.key.rollout_id, record.epoch

    def has_ended(self, rollout_id: str) -> bool:
        """Say whether the outcome of a rollout was seen."""
        return rollout_id in self._ended

    def begin(self, record: SandboxRecord) -> None:
        """Write that a sandbox is about to be made, or that one that was made ahead is about to be handed over."""
        self._append(_begin_line(record))
        self._ahead.pop(record.sandbox_id, None)
        self._put(record)

    def begin_ahead(self, sandbox_id: str) -> None:
        """Write that a sandbox is about to be made for nobody yet."""
        self._append(_ahead_line(sandbox_id))
        self._ahead[sandbox_id] = None

    def drop(self, sandbox_id: str) -> None:
        """Write that nothing is left of a sandbox that nobody was told of, as if it had never been."""
        self._forget(sandbox_id)
        self._try_append({"op": "drop", "sandbox_id": sandbox_id})

    def finish(self, sandbox_id: str, cause: Cause, *, polluted: bool = False) -> SandboxRecord:
        """Write that nothing is left of a sandbox."""
        record = replace(self._sandboxes[sandbox_id], cause=cause, polluted=polluted)
        self._put(record)
        self._try_append(_finish_line(record))
        return record

    def mark_told(self, sandbox_id: str) -> None:
        """Write that the log knows of the destruction."""
        record = self._sandboxes.get(sandbox_id)
        if record is not None and record.cause is not None:
            self._put(replace(record, told=True))
            self._try_append(_finish_line(self._sandboxes[sandbox_id]))

    def end_rollout(self, rollout_id: str) -> None:
        """Write that a rollout's outcome was seen."""
        if rollout_id not in self._ended:
            self._append({"op": "end", "rollout_id": rollout_id})
            self._put_ended(rollout_id)

    async def sync(self) -> None:
        """Wait until all that was written is on disk; concurrent callers share one flush."""
        target = self._written
        async with self._sync_lock:
            if self._synced >= target:
                return
            written = self._written
            await asyncio.to_thread(os.fdatasync, self._descriptor)
            self._synced = written

    def close(self) -> None:
        """Close the journal. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: dict[str, Any]) -> None:
        """Write a line whole or not at all.

        Raises:
            ResourceExhausted: the disk is full (reason MANAGER_DISK_FULL).
        """
        size = os.fstat(self._descriptor).st_size
        try:
            with room_is_ours():
                write_all(self._descriptor, (json.dumps(line) + "\n").encode())
        except BaseException:
            os.ftruncate(
                self._descriptor, size
            )  # the next line must not go on where this one broke off
            raise
        self._written += 1
        self._lines += 1
        needed = 2 * len(self._sandboxes) + len(self._ahead) + len(self._ended) + 1000
        if self._lines > _REWRITE_FACTOR * needed and not self._sync_lock.locked():
            self._shorten()

    def _try_append(self, line: dict[str, Any]) -> None:
        """Write a line that says what is gone; without it the next manager takes it for lost, and no more is wrong."""
        try:
            self._append(line)
        except (OSError, HoneError) as error:
            log.error("record not written", extra={"file": str(self._path), "error": str(error)})

    def _shorten(self) -> None:
        try:
            shorter = self._rewrite()
        except OSError as error:
            log.error("journal not rewritten", extra={"file": str(self._path), "error": str(error)})
            self._lines = 0  # the old one goes on, and is rewritten when it has grown as much again
        else:
            os.close(self._descriptor)
            self._descriptor = shorter

    def _rewrite(self) -> int:
        """Replace the journal by one that holds only what is kept; return its descriptor, at the end."""
        temporary = self._path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            lines = list(self._current_lines())
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(temporary, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.replace(temporary, self._path)
        _sync_folder(self._path.parent)
        self._lines = len(lines)
        return descriptor

    def _current_lines(self) -> Iterator[dict[str, Any]]:
        for record in self._sandboxes.values():
            yield _begin_line(record)
            if record.cause is not None:
                yield _finish_line(record)
        for sandbox_id in self._ahead:
            yield _ahead_line(sandbox_id)
        for rollout_id in self._ended:
            yield {"op": "end", "rollout_id": rollout_id}

    def _replay(self) -> None:
        if not self._path.exists():
            return
        text = self._path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError) as error:
                # A line cut off by a crash is the usual cause; the sandboxes are dead in any case.
                extra = {"file": str(self._path), "line": number, "error": str(error)}
                log.warning("record skipped: not a line of the journal", extra=extra)

    def _apply(self, line: dict[str, Any]) -> None:
        if line["op"] == "begin":
            key = BoxKey(
                rollout_id=line["rollout_id"],
                purpose=Purpose(line["purpose"]),
                sequence=line["sequence"],
            )
            self._ahead.pop(line["sandbox_id"], None)
            self._put(
                SandboxRecord(
                    sandbox_id=line["sandbox_id"],
                    key=key,
                    run_id=line["run_id"],
                    epoch=line["epoch"],
                    trace_parent=line["trace_parent"],
                )
            )
        elif line["op"] == "finish":
            record = self._sandboxes.get(line["sandbox_id"])
            if record is not None:
                cause, polluted = Cause(line["cause"]), line.get("polluted", False)
                self._put(replace(record, cause=cause, told=line["told"], polluted=polluted))
        elif line["op"] == "ahead":
            self._ahead[line["sandbox_id"]] = None
        elif line["op"] == "drop":
            self._forget(line["sandbox_id"])
        elif line["op"] == "end":
            self._put_ended(line["rollout_id"])
        else:
            raise ValueError(f"unknown op {line['op']!r}")

    def _put(self, record: SandboxRecord) -> None:
        self._sandboxes[record.sandbox_id] = record
        self._last_by_key[record.key] = record.sandbox_id
        if len(self._sandboxes) > self._max_sandboxes:
            for old in self._sandboxes.values():
                if old.cause is not None and old.told:
                    self._forget(old.sandbox_id)
                    break

    def _forget(self, sandbox_id: str) -> None:
        self._ahead.pop(sandbox_id, None)
        record = self._sandboxes.pop(sandbox_id, None)
        if record is not None and self._last_by_key.get(record.key) == sandbox_id:
            del self._last_by_key[record.key]

    def _put_ended(self, rollout_id: str) -> None:
        self._ended[rollout_id] = None
        self._ended.move_to_end(rollout_id)
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begin_line(record: SandboxRecord) -> dict[str, Any]:
    return {
        "op": "begin",
        "sandbox_id": record.sandbox_id,
        "rollout_id": record.key.rollout_id,
        "purpose": str(record.key.purpose),
        "sequence": record.key.sequence,
        "run_id": record.run_id,
        "epoch": record.epoch,
        "trace_parent": record.trace_parent,
    }


def _finish_line(record: SandboxRecord) -> dict[str, Any]:
    return {
        "op": "finish",
        "sandbox_id": record.sandbox_id,
        "cause": str(record.cause),
        "told": record.told,
        "polluted": record.polluted,
    }


def _ahead_line(sandbox_id: str) -> dict[str, Any]:
    return {"op": "ahead", "sandbox_id": sandbox_id}
