"""The folder of a backend's own state: held by one process at a time, with a name that outlives the process."""

import fcntl
import os
import uuid
from pathlib import Path

from servicekit.errors import FailedPrecondition


class StateFolder:
    """A folder that at most one manager works with."""

    def __init__(self, path: Path) -> None:
        """Holds nothing until `lock`."""
        self.path = path.absolute()
        self._lock_file = -1

    def lock(self) -> None:
        """Take the folder for this process. Idempotent.

        Raises:
            FailedPrecondition: another process has it.
        """
        if self._lock_file >= 0:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise FailedPrecondition(
                f"{path}: another sandbox manager works with this folder; stop it, or set data_dir"
            ) from error
        self._lock_file = descriptor

    def instance(self) -> str:
        """Return the name of this folder's managers, 12 hexadecimal digits; made once, the same after a restart."""
        path = self.path / "instance"
        if not path.exists():
            path.write_text(uuid.uuid4().hex[:12], encoding="ascii")
        return path.read_text(encoding="ascii").strip()

    def read(self, name: str) -> str:
        """Return what a file of the folder says; empty where it is missing."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def write(self, name: str, text: str) -> None:
        """Replace a file of the folder whole."""
        temporary = self.path / f"{name}.new"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path / name)

    def release(self) -> None:
        """Let go of the folder. Idempotent."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1
