"""Where everything of one local suite lies: the .hone folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths under one .hone folder."""

    root: Path
    """The .hone folder, absolute."""

    @classmethod
    def in_folder(cls, folder: Path) -> "Layout":
        """The layout of the suite that runs in a folder."""
        return cls(folder.absolute() / ".hone")

    @property
    def endpoints(self) -> Path:
        """JSON of service to host:port."""
        return self.root / "endpoints.json"

    @property
    def state(self) -> Path:
        """JSON of the launcher and its processes; see `hone_cli.launcher.state`."""
        return self.root / "up.json"

    @property
    def lock(self) -> Path:
        """Locked for as long as a launcher lives."""
        return self.root / "up.lock"

    @property
    def key_file(self) -> Path:
        """The key that signs rollout tokens."""
        return self.root / "keys" / "rollout-token.pem"

    @property
    def nats(self) -> Path:
        """NATS' configuration and store."""
        return self.root / "nats"

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self.root / "logs" / f"{name}.log"

    def data(self, name: str) -> Path:
        """Folder of a process's own state."""
        return self.root / "data" / name

    def make_folders(self) -> None:
        """Creates the folders that must exist before anything starts; others cannot look into them."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.root / "logs", self.root / "data", self.nats):
            folder.mkdir(exist_ok=True)


def write_json(path: Path, value: object) -> None:
    """Replaces a file in one step, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
