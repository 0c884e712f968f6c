"""Follows log files and prints their lines with a coloured name in front.

Processes write to their files themselves, so a slow terminal never holds a service up. A file that grows too large is
copied aside and emptied; that is safe because every writer appends.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

_POLL_SECONDS = 0.15
_MAX_BYTES = 64 * 1024 * 1024
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95)
_QUIET_KEYS = frozenset(
    {"time", "level", "service", "logger", "message", "trace_id", "span_id", "exception"}
)
_LEVEL_COLOURS = {"WARNING": 33, "ERROR": 31, "CRITICAL": 31}


class Printer:
    """Writes lines to the terminal; colours only where there is one."""

    def __init__(
        self, write: Callable[[str], None], *, colour: bool, names: tuple[str, ...]
    ) -> None:
        """Gives each name a colour."""
        self._write = write
        self._colour = colour
        self._width = max((len(name) for name in names), default=0)
        self._codes = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}

    def line(self, name: str, text: str, level: str = "INFO") -> None:
        """Prints one line of a process, or of the launcher."""
        prefix = f"{name:<{self._width}} |"
        if self._colour:
            prefix = f"\033[{self._codes.get(name, 1)}m{prefix}\033[0m"
            if level in _LEVEL_COLOURS:
                text = f"\033[{_LEVEL_COLOURS[level]}m{text}\033[0m"
        self._write(f"{prefix} {text}\n")


class LogTail:
    """Follows one file from where it ends now."""

    def __init__(self, name: str, path: Path, printer: Printer | None) -> None:
        """Starts at the file's end."""
        self._name = name
        self._path = path
        self._printer = printer
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    async def follow(self, stop: asyncio.Event) -> None:
        """Prints new lines until told to stop, then what is left."""
        while not stop.is_set():
            self.step()
            try:
                await asyncio.wait_for(stop.wait(), _POLL_SECONDS)
            except TimeoutError:
                continue
        self.step()

    def step(self) -> None:
        """Prints what was written since the last step."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._offset:
            self._offset, self._rest = 0, b""
        if size > self._offset:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(size - self._offset)
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._print(line)
        if size > _MAX_BYTES:
            set_aside(self._path)
            self._offset, self._rest = 0, b""

    def _print(self, raw: bytes) -> None:
        if self._printer is not None and raw.strip():
            level, text = readable(raw.decode("utf-8", errors="replace"))
            if level != "DEBUG":
                self._printer.line(self._name, text, level)


def readable(line: str) -> tuple[str, str]:
    """Level and text for people of a log line; a line that is no JSON stays as it is."""
    record = _record(line)
    if record is None:
        return "INFO", line
    level = str(record.get("level", "INFO"))
    extras = " ".join(f"{k}={v}" for k, v in record.items() if k not in _QUIET_KEYS)
    parts = [str(record.get("time", ""))[11:19], level[:4], str(record["message"]), extras]
    text = " ".join(part for part in parts if part)
    exception = record.get("exception")
    return level, f"{text}\n{exception}" if exception else text


def _record(line: str) -> dict[str, object] | None:
    """The log record in a line, if there is one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "message" in record else None


def last_complaint(path: Path, since: int) -> str:
    """The last error that a process logged, else its last line; for a sentence about why it ended."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, path.stat().st_size - 65536))
            lines = [raw for raw in file.read().decode("utf-8", "replace").splitlines() if raw]
    except OSError:
        return ""
    for raw in reversed(lines):
        record = _record(raw)
        if record is not None and record.get("level") in ("ERROR", "CRITICAL"):
            return str(record["message"])
    record = _record(lines[-1]) if lines else None
    return str(record["message"]) if record else lines[-1] if lines else ""


def set_aside(path: Path) -> None:
    """Copies a log to NAME.1 and empties it."""
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)
