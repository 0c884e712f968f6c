"""Published weights on this machine, adapters or whole models: fetched once by digest, unpacked, shared."""

import asyncio
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Protocol

from rollout.jobs import AdapterRef
from servicekit.errors import DataLoss

WEIGHTS = ("adapter_model.safetensors", "model.safetensors")
"""Files of which a blob holds one: an adapter's, or a whole model's."""


class BlobFetcher(Protocol):
    """Where adapters come from."""

    async def fetch(self, ref: AdapterRef, destination: Path) -> None:
        """Writes the blob to a file once its size and sha256 are right.

        Raises:
            NotFound: there is none.
            DataLoss: it is not what the reference says.
        """


class AdapterFolders:
    """Unpacked adapters by sha256."""

    def __init__(self, folder: Path, fetcher: BlobFetcher) -> None:
        """Keeps folders below `folder`."""
        self._folder = folder
        self._fetcher = fetcher
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, ref: AdapterRef) -> Path:
        """Returns the folder of an adapter, fetched and unpacked if it is not there.

        Raises:
            NotFound: there is no such blob.
            DataLoss: the blob is not what the reference says, or no weights are in it.
        """
        target = self._folder / ref.sha256
        async with self._locks.setdefault(ref.sha256, asyncio.Lock()):
            if not target.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=self._folder, prefix=".fetch-") as scratch:
                    packed = Path(scratch) / "adapter.tar"
                    await self._fetcher.fetch(ref, packed)
                    await asyncio.to_thread(_unpack, packed, Path(scratch) / "out", target, ref)
        return target

    async def drop(self, ref: AdapterRef) -> None:
        """Removes an adapter that no policy is loaded from."""
        await asyncio.to_thread(shutil.rmtree, self._folder / ref.sha256, ignore_errors=True)
        self._locks.pop(ref.sha256, None)


def _unpack(packed: Path, scratch: Path, target: Path, ref: AdapterRef) -> None:
    """Unpacks beside the target and moves it there in one step."""
    try:
        with tarfile.open(packed) as archive:
            archive.extractall(scratch, filter="data")
    except (tarfile.TarError, OSError) as err:
        raise DataLoss(f"adapter blob {ref.name!r} is not a readable tar archive: {err}") from err
    found = sorted(path for name in WEIGHTS for path in scratch.rglob(name))
    if len(found) != 1:
        raise DataLoss(
            f"adapter blob {ref.name!r} should hold one {' or '.join(WEIGHTS)}, found {len(found)}",
        )
    # Another replica on this machine may have been faster; either copy is the same bytes.
    if not target.is_dir():
        found[0].parent.rename(target)
