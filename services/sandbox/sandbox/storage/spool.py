"""Archives under way, on the manager's disk: each is gone when its call ends, however it ends."""

import contextlib
import errno
import uuid
from collections.abc import Iterator
from pathlib import Path

from servicekit.errors import ResourceExhausted


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


@contextlib.contextmanager
def room_is_ours() -> Iterator[None]:
    """Say that the manager's own disk is full where that is why a write fails.

    Raises:
        ResourceExhausted: it is (reason MANAGER_DISK_FULL).
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ResourceExhausted(
            "the manager's disk has no room left", reason="MANAGER_DISK_FULL"
        ) from error
