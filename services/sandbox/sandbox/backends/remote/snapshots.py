"""Snapshots that a remote service keeps for us, and when they may go.

A snapshot of ours is a small file that names the service's. The manager moves and removes that file as it likes, so it
is a hard link of one in a folder of this backend: when the other name is gone, the snapshot is removed at the service.
The file is written before the service is asked, so that none is forgotten in a crash.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.backends.remote.api import RemoteApi
from servicekit.errors import DataLoss, HoneError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One snapshot at the service."""

    template: str
    """The service's name for what a sandbox is to start from."""
    rootfs_digest: str
    """What the sandbox that was saved had started from."""


class SavedSnapshots:
    """The snapshots at the service."""

    def __init__(self, folder: Path, api: RemoteApi, new_name: Callable[[], str]) -> None:
        """Keeps its own names in `folder`; `new_name` makes names that are ours at the service."""
        self._folder = folder
        self._api = api
        self._new_name = new_name
        self._saving: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    async def save(self, remote_id: str, rootfs_digest: str, target: Path) -> bool:
        """Save a sandbox; `target` becomes the file that names it. False if the sandbox is gone."""
        name = self._new_name()
        own = self._folder / name
        self._saving.add(name)
        try:
            await asyncio.to_thread(_write, own, {"name": name})
            snapshot_id = await self._api.snapshot(remote_id, name)
            if snapshot_id is None:
                own.unlink()
                return False
            about = {"snapshot_id": snapshot_id, "rootfs_digest": rootfs_digest}
            await asyncio.to_thread(_write, own, {"name": name, **about})
            target.unlink(missing_ok=True)
            os.link(own, target)
        finally:
            self._saving.discard(name)
        return True

    @staticmethod
    def read(path: Path) -> Saved:
        """Return what a file of ours says.

        Raises:
            DataLoss: the file is not one of ours.
        """
        try:
            said = json.loads(path.read_bytes())
            return Saved(
                template=str(said["snapshot_id"]), rootfs_digest=str(said["rootfs_digest"])
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataLoss(f"{path}: names no snapshot of the service: {error}") from error

    async def sweep(self) -> None:
        """Remove at the service what nobody holds any more; what fails is tried on the next round."""
        for own in await asyncio.to_thread(self._unheld):
            try:
                await self._api.delete_snapshot(own.name)
            except HoneError as error:
                log.warning("snapshot not removed yet", extra={"error": error.message})
                return
            own.unlink(missing_ok=True)

    def _unheld(self) -> list[Path]:
        return [
            own
            for own in self._folder.iterdir()
            if own.name not in self._saving and own.stat().st_nlink == 1
        ]


def _write(path: Path, content: dict[str, str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
