"""Rooms without isolation, for tests of kinds: a folder and this machine's Python stand in for a box.

Only code that keeps to itself may run in them; what is hostile is tested over the real service.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from grader.instruments.boxes import Box, BoxSpec, FileTooLargeError, Origin, Ran, Room
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

PYTHON = "/usr/bin/python3"


class LocalBox:
    """A folder that stands for a box's root; paths below /work mean below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("/work", "/tmp"):
            self.place(folder).mkdir(parents=True, exist_ok=True)

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        stdin: bytes = b"",
        max_output_bytes: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        here = str(self.place("/work"))
        if stdin[:1] == b"\0":  # a frame, whose length changes with its content
            data = stdin[4:].replace(b"/work", here.encode())
            stdin = len(data).to_bytes(4, "big") + data
        argv = [part.replace("/work", here) for part in command]
        argv[0] = PYTHON if argv[0] == "python3" else argv[0]
        begun = time.monotonic()
        try:
            done = await asyncio.to_thread(
                subprocess.run,
                argv,
                input=stdin,
                capture_output=True,
                timeout=timeout_seconds,
                cwd=here,
                env={"PATH": "/usr/bin:/bin", "TMPDIR": str(self.place("/tmp")), **(env or {})},
                check=False,
            )
        except subprocess.TimeoutExpired as err:
            return Ran(
                exit_code=None,
                stopped_by="timeout",
                stdout=err.stdout or b"",
                stderr=err.stderr or b"",
                seconds=timeout_seconds,
            )
        except FileNotFoundError as err:
            return Ran(
                exit_code=127, stopped_by="", stdout=b"", stderr=str(err).encode(), seconds=0.0
            )
        return Ran(
            exit_code=None if done.returncode < 0 else done.returncode,
            stopped_by="signal" if done.returncode < 0 else "",
            stdout=done.stdout[:max_output_bytes],
            stderr=done.stderr[:max_output_bytes],
            seconds=time.monotonic() - begun,
        )

    async def exists(self, path: str) -> bool:
        place = self.place(path)
        return place.exists() or place.is_symlink()

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        place = self.place(path)
        if not place.is_file():
            return None
        if place.stat().st_size > max_bytes:
            raise FileTooLargeError(f"{path} is larger than {max_bytes}")
        return place.read_bytes()

    async def write(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            self.place(path).parent.mkdir(parents=True, exist_ok=True)
            self.place(path).write_bytes(content)


class LocalRooms:
    """Rooms below a folder; agents by sandbox_id are folders that `leave` fills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[BoxSpec] = []
        self.living = 0
        self._count = 0

    def leave(self, sandbox_id: str, files: Mapping[str, bytes]) -> Origin:
        """Be an agent that has left files; return the origin of its rollout."""
        root = self.folder / sandbox_id
        for path, content in files.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return Origin(rollout_id="r1", run_id="run", epoch=1, sandbox_id=sandbox_id)

    @asynccontextmanager
    async def room(self, origin: Origin | None) -> AsyncIterator[Room]:
        yield _LocalRoom(self, self.folder / origin.sandbox_id if origin else None)

    def new_folder(self) -> Path:
        self._count += 1
        return self.folder / f"box-{self._count}"


class _LocalRoom:
    def __init__(self, rooms: LocalRooms, agent: Path | None) -> None:
        self._rooms = rooms
        self._agent = agent

    @asynccontextmanager
    async def box(self, spec: BoxSpec) -> AsyncIterator[Box]:
        root = self._rooms.new_folder()
        if spec.from_agent or spec.agent_folders:
            if self._agent is None or not self._agent.exists():
                raise GradingFaultError(
                    "the agent's files are gone",
                    kind=GraderErrorKind.SANDBOX,
                    retryable=False,
                    client=False,
                )
            for folder in ("/",) if spec.from_agent else spec.agent_folders:
                source = self._agent / folder.lstrip("/")
                if source.is_dir():
                    shutil.copytree(
                        source, root / folder.lstrip("/"), symlinks=True, dirs_exist_ok=True
                    )
        box = LocalBox(root)
        await box.write(spec.files)
        self._rooms.made.append(spec)
        self._rooms.living += 1
        try:
            yield box
        finally:
            self._rooms.living -= 1
            shutil.rmtree(root, ignore_errors=True)
