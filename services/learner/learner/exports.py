"""Exports of runs: which checkpoint, made in a folder of its own, told file by file.

The folder lies beside the run and is gone when the last piece has been read, or the reader has gone away.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from learner.checkpoints import Choice, Scores, choose, link_tree
from learner.runs import Run, RunStore
from modelstore.resolve import resolve_model
from runspec.schema import RunSpec
from servicekit.errors import FailedPrecondition

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
        self._under_way: set[Path] = set()

    async def export(
        self, run: Run, choice: Choice, *, merged: bool
    ) -> AsyncGenerator[FileHead | bytes | Manifest, None]:
        """Yields each file's head and content in pieces, then the manifest.

        Raises:
            NotFound: the checkpoint is not kept. FailedPrecondition: the run has no weights to export.
        """
        whole = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._store.folder(run.run_id)))
        self._under_way.add(whole)
        try:
            manifest = await asyncio.to_thread(self._make, run, choice, merged, whole)
            for path in sorted((whole / "files").iterdir()):
                yield await asyncio.to_thread(_head, path)
                with path.open("rb") as file:
                    while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                        yield chunk
            yield manifest
        finally:
            self._under_way.discard(whole)
            self._sweep(run.run_id)

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
        chosen = choose(root, choice)
        # The run may go on and remove the checkpoint meanwhile.
        link_tree(chosen.folder, whole / "checkpoint")
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
            base=resolve_model(spec.model.path, self._cache),
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

    def _sweep(self, run_id: str) -> None:
        """Removes this export's folder, and what a crash left of others."""
        for folder in self._store.folder(run_id).glob(f"{PREFIX}*"):
            if folder not in self._under_way:
                shutil.rmtree(folder, ignore_errors=True)


def _head(path: Path) -> FileHead:
    from learner.training.exporting import file_hash

    return FileHead(path=path.name, size_bytes=path.stat().st_size, sha256=file_hash(path))
