"""Archives under way, on the manager's disk: each is gone when its call ends, however it ends."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path


class Spool:
    """A folder of files without a future."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder; what a dead manager left in it is removed."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            left.unlink()

    @contextlib.contextmanager
    def place(self) -> Iterator[Path]:
        """Give a path at which nothing is yet; what is there at the end is removed."""
        path = self._folder / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
