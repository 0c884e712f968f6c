"""Exports of runs: which checkpoint, made in a folder of its own, told file by file.

The folder lies beside the run and is gone when the last piece has been read, or the reader has gone away.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from learner.runs.checkpoints import Choice, Scores, link_checkpoint
from learner.runs.store import Run, RunStore
from modelstore.resolve import ModelUnusableError, resolve_model
from runspec.schema import RunSpec
from servicekit.errors import FailedPrecondition

log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024

PREFIX = ".export-"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """A file, before its content."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What was exported, after its last file."""

    run_id: str
    step: int
    policy_version: int
    merged: bool
    file_count: int


class Exporter:
    """Makes exports of the runs of one store."""

    def __init__(
        self, store: RunStore, model_cache_dir: Path, spec_of: Callable[[Run], RunSpec]
    ) -> None:
        """Finds base models as runs do; `spec_of` reads what a run was asked to do."""
        self._store = store
        self._spec_of = spec_of
        self._cache = model_cache_dir
        self._under_way: dict[Path, asyncio.Task[Manifest]] = {}

    async def export(
        self, run: Run, choice: Choice, *, merged: bool
    ) -> AsyncGenerator[FileHead | bytes | Manifest, None]:
        """Yields each file's head and content in pieces, then the manifest.

        Raises:
            NotFound: the checkpoint is not kept. FailedPrecondition: the run has no weights to export.
        """
        whole = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._store.folder(run.run_id)))
        making = asyncio.create_task(asyncio.to_thread(self._make, run, choice, merged, whole))
        self._under_way[whole] = making
        try:
            manifest = await asyncio.shield(making)
            for path in sorted((whole / "files").iterdir()):
                yield await asyncio.to_thread(_head, path)
                with path.open("rb") as file:
                    while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                        yield chunk
            yield manifest
        finally:
            # A thread cannot be called off: where the reader has gone away, it is the last to leave.
            if making.done():
                self._end(whole, making)
            else:
                making.add_done_callback(partial(self._end, whole))

    async def ended(self) -> None:
        """Waits until nothing is being made any more."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    def _end(self, whole: Path, making: "asyncio.Task[Manifest]") -> None:
        if not making.cancelled() and (error := making.exception()) is not None:
            log.warning("an export could not be made: %s", error, extra={"folder": str(whole)})
        del self._under_way[whole]
        self._sweep(whole.parent)

    def _make(self, run: Run, choice: Choice, merged: bool, whole: Path) -> Manifest:
        spec = self._spec_of(run)
        if spec.algorithm in ("evaluate", "reward_model"):
            where = f"; its model is {self._store.folder(run.run_id)}/reward_model"
            raise FailedPrecondition(
                f"run {run.run_id} is {spec.algorithm} and made no policy"
                + (where if spec.algorithm == "reward_model" else ""),
                reason="NOTHING_TO_EXPORT",
            )
        root = self._store.folder(run.run_id) / "checkpoints"
        chosen = link_checkpoint(root, choice, whole / "checkpoint")
        base = self._base(spec)
        folder = whole / "files"
        folder.mkdir()
        # torch is imported when an export first needs it, so that the service answers at once.
        from learner.training.exporting import Source, is_adapter, write_export

        source = Source(
            run_id=run.run_id,
            algorithm=spec.algorithm,
            step=chosen.step,
            policy_version=chosen.policy_version,
            checkpoint=whole / "checkpoint",
            base=base,
            base_name=spec.model.path,
            dtype=spec.model.dtype or "float32",
            score=Scores(root).of(chosen.policy_version),
        )
        write_export(source, folder, merged=merged)
        return Manifest(
            run_id=run.run_id,
            step=chosen.step,
            policy_version=chosen.policy_version,
            merged=merged or not is_adapter(source.checkpoint),
            file_count=len(list(folder.iterdir())),
        )

    def _base(self, spec: RunSpec) -> Path:
        try:
            return resolve_model(spec.model.path, self._cache)
        except ModelUnusableError as error:
            raise FailedPrecondition(str(error), reason="MODEL_UNUSABLE") from error

    def _sweep(self, folder: Path) -> None:
        """Removes what is left of exports in a run's folder, also of those that a crash cut off."""
        for left in folder.glob(f"{PREFIX}*"):
            if left not in self._under_way:
                shutil.rmtree(left, ignore_errors=True)


def _head(path: Path) -> FileHead:
    from learner.training.exporting import file_hash

    return FileHead(path=path.name, size_bytes=path.stat().st_size, sha256=file_hash(path))
