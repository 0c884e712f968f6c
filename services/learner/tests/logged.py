"""Reads what loggers wrote, by other means than wrote it, for tests."""

import json
from collections.abc import Callable
from pathlib import Path

Points = dict[int, list[tuple[str, float]]]
"""Every figure that a log holds, as often as it holds it, by step."""


def read_tensorboard(folder: Path, shared: Path) -> Points:
    """Reads every event of every file, so that nothing is forgotten on the way as the page would."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: Points = {}
    for file in sorted((folder / "tensorboard").glob("events.*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(event.step, []).append((value.tag, value.simple_value))
    return found


def read_wandb(folder: Path, shared: Path) -> Points:
    """Reads the records of every offline run."""
    from wandb.proto import wandb_internal_pb2

    found: Points = {}
    for file in (folder / "wandb").glob("offline-run-*/*.wandb"):
        for record in _records(file.read_bytes()):
            read = wandb_internal_pb2.Record.FromString(record)
            if read.WhichOneof("record_type") != "history":
                continue
            items = {item.key or item.nested_key[0]: item for item in read.history.item}
            step = read.history.step.num
            found.setdefault(step, []).extend(
                (key, json.loads(item.value_json))
                for key, item in items.items()
                if not key.startswith("_")
            )
    return found


def _records(data: bytes) -> list[bytes]:
    """Splits a log in LevelDB's format: 7 bytes of heading, blocks of 32 KiB, parts with a heading of 7 bytes."""
    block, at, records, open_parts = 32_768, 7, [], b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:
            break
        part = data[at + 7 : at + 7 + size]
        if len(part) < size:
            break  # torn
        at += 7 + size
        open_parts += part
        if kind in (1, 4):
            records.append(open_parts)
            open_parts = b""
    return records


def read_mlflow(folder: Path, shared: Path) -> Points:
    """Reads the tables, whatever MLflow itself would make of them."""
    import sqlite3

    found: Points = {}
    if not (shared / "mlflow.db").exists():
        return found
    with sqlite3.connect(shared / "mlflow.db") as database:
        rows = database.execute(
            "select step, key, value from metrics join runs using (run_uuid)"
            " where lifecycle_stage = 'active' order by key"
        )
        for step, key, value in rows:
            found.setdefault(step, []).append((key, value))
    return found


READERS: dict[str, Callable[[Path, Path], Points]] = {
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}
