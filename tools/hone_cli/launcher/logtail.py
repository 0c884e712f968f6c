"""Follows log files and prints their lines with a coloured name in front.

Processes write to their files themselves, so a slow terminal never holds a service up. A file that grows too large is
copied aside and emptied; that is safe because every writer appends.
"""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_POLL_SECONDS = 0.15
_MAX_BYTES = 64 * 1024 * 1024
_LAST_WORDS = 20
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95)
_QUIET_KEYS = frozenset(
    {"time", "level", "service", "logger", "message", "trace_id", "span_id", "exception"}
)
_NATS_LINE = re.compile(
    r"^\[\d+\] \S+ (?P<time>\d\d:\d\d:\d\d)\S* \[(?P<level>[A-Z]{3})\] (?P<text>.*)$"
)
_NATS_LEVELS = {"WRN": "WARNING", "ERR": "ERROR", "FTL": "CRITICAL"}
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
            line = parse_line(raw.decode("utf-8", errors="replace"))
            if line.level != "DEBUG":
                self._printer.line(self._name, line.text, line.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a log."""

    level: str
    message: str
    """What happened."""
    text: str
    """The same for people: with time, level and extras."""


def parse_line(line: str) -> LogLine:
    """Reads a service's JSON line or a line of NATS; any other stays as it is.

    The informational lines of NATS count as DEBUG: they are its banner and say nothing of a suite.
    """
    nats = _NATS_LINE.match(line)
    if nats is not None:
        level = _NATS_LEVELS.get(nats["level"], "DEBUG")
        text = f"{nats['time']} {level[:4]} {nats['text']}"
        return LogLine(level=level, message=nats["text"], text=text)
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "message" not in record:
        return LogLine(level="INFO", message=line, text=line)
    level, message = str(record.get("level", "INFO")), str(record["message"])
    extras = " ".join(f"{k}={v}" for k, v in record.items() if k not in _QUIET_KEYS)
    parts = [str(record.get("time", ""))[11:19], level[:4], message, extras]
    text = " ".join(part for part in parts if part)
    if "exception" in record:
        text += f"\n{record['exception']}"
    return LogLine(level=level, message=message, text=text)


def last_complaint(path: Path, since: int) -> str:
    """Why a process ended, as far as its log says: its last error, else its last words outside the log format."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, path.stat().st_size - 65536))
            raw = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [parse_line(line) for line in raw.splitlines() if line.strip()][-_LAST_WORDS:]
    errors = [line.message for line in lines if line.level in ("ERROR", "CRITICAL")]
    if errors:
        return errors[-1]
    # A line that the formatter did not write is the end of a traceback, or of a program that has no log.
    return lines[-1].message if lines and lines[-1].text == lines[-1].message else ""


def set_aside(path: Path) -> None:
    """Copies a log to NAME.1 and empties it."""
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)
