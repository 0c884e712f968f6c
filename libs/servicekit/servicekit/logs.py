"""Logs: one JSON line per event, with the ids of the trace that it belongs to."""

import json
import logging
import sys
import time
from typing import Any

from opentelemetry import trace

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a record with its extras as one line of JSON."""

    def __init__(self, service: str) -> None:
        """Remembers whose lines these are."""
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= extras_of(record)
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            line["trace_id"] = f"{context.trace_id:032x}"
            line["span_id"] = f"{context.span_id:016x}"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Writes a record with its extras for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, and the traceback below where there is one."""
        extras = " ".join(f"{key}={value}" for key, value in extras_of(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = (
            f"{clock} {record.levelname[:4]} {record.getMessage()}{' ' if extras else ''}{extras}"
        )
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def extras_of(record: logging.LogRecord) -> dict[str, Any]:
    """Returns what was passed as `extra`."""
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


def configure_logging(service: str, level: str, log_format: str) -> None:
    """Sends the root logger's records to stderr in the chosen format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # The exporter warns once per retry while a collector is away; one line per outage is ours to write.
    for noisy in ("opentelemetry", "nats.aio.client", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
