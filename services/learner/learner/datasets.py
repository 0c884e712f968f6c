"""Data sets, stored under the hash of their content."""

import hashlib
import re
from pathlib import Path
from typing import Literal

from learner.runs.store import write_atomically
from runspec.preferences import PreferenceRow, parse_preferences
from runspec.problems import RowErrors
from runspec.rows import parse_tasks
from runspec.sft_rows import SftRow, parse_sft_rows
from servicekit.errors import InvalidArgument, NotFound
from trajectory.types import Task

Kind = Literal["tasks", "sft", "preferences"]


class DatasetStore:
    """Keeps JSONL files; what is stored has been read once without fault."""

    def __init__(self, folder: Path) -> None:
        """Uses `folder`, which is made when the first set is."""
        self._folder = folder

    def store(self, kind: Kind, content: bytes) -> tuple[str, int]:
        """Checks and keeps a set; returns its id and number of rows.

        Raises:
            InvalidArgument: rows are malformed; each violation names its line and field.
        """
        try:
            count = len(_parse(kind, content, source=""))
        except RowErrors as errors:
            raise InvalidArgument(
                str(errors),
                violations={
                    f"line {error.line}: {error.field}": error.message for error in errors.errors
                },
            ) from errors
        if count == 0:
            raise InvalidArgument("the data set has no rows", violations={"chunk": "is empty"})
        dataset_id = f"{kind}-{hashlib.sha256(content).hexdigest()[:32]}"
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(dataset_id), content)
        return dataset_id, count

    def tasks(self, dataset_id: str) -> list[Task]:
        """Reads tasks.

        Raises:
            NotFound: no such set. InvalidArgument: it holds something else.
        """
        self._check_kind(dataset_id, "tasks")
        return parse_tasks(self._read(dataset_id), source=dataset_id, required=set())

    def sft_rows(self, dataset_id: str) -> list[SftRow]:
        """Reads conversations to imitate.

        Raises:
            NotFound: no such set. InvalidArgument: it holds something else.
        """
        self._check_kind(dataset_id, "sft")
        return parse_sft_rows(self._read(dataset_id), source=dataset_id)

    def preferences(self, dataset_id: str) -> list[PreferenceRow]:
        """Reads pairs of responses.

        Raises:
            NotFound: no such set. InvalidArgument: it holds something else.
        """
        self._check_kind(dataset_id, "preferences")
        return parse_preferences(self._read(dataset_id), source=dataset_id)

    def _check_kind(self, dataset_id: str, kind: Kind) -> None:
        if not dataset_id.startswith(f"{kind}-"):
            raise InvalidArgument(
                f"data set {dataset_id or '(none)'}: this run needs one of kind {kind}",
                violations={"data": f"is not of kind {kind}"},
            )

    def _read(self, dataset_id: str) -> bytes:
        try:
            return self._path(dataset_id).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"data set {dataset_id} is not stored here; upload it first") from None

    def _path(self, dataset_id: str) -> Path:
        if not re.fullmatch(r"(tasks|sft|preferences)-[0-9a-f]{32}", dataset_id):
            raise InvalidArgument(f"dataset_id: found {dataset_id[:80]!r}; UploadDataset gives ids")
        return self._folder / f"{dataset_id}.jsonl"


def _parse(
    kind: Kind, content: bytes, *, source: str
) -> list[Task] | list[SftRow] | list[PreferenceRow]:
    if kind == "tasks":
        return parse_tasks(content, source=source, required=set())
    if kind == "preferences":
        return parse_preferences(content, source=source)
    return parse_sft_rows(content, source=source)
