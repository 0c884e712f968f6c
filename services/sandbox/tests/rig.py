"""A manager over a backend under test, as the contract suite and the hostile cases use it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from backends_under_test import Census, Subject

from sandbox.backends.protocol import BackendInfo, Box
from sandbox.types import MIB, BoxSpec, Cause, Feature, Limits
from servicekit.errors import FailedPrecondition

LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=64 * MIB, shm_bytes=16 * MIB, max_processes=128)
GONE_SECONDS = 5.0


class Rig:
    """A started manager over one backend; a `Lab` for hostile cases."""

    def __init__(self, name: str, subject: Subject, suite: Any, use: Any, folder: Path) -> None:
        self.name = name
        self.subject = subject
        self.sees_processes = subject.sees_processes
        self.suite = suite
        self.backend = suite.backend
        self.scratch = folder / "scratch"
        self.info: BackendInfo
        self.lost: list[str] = []
        self._folder = folder
        self._use = use
        self._ids = iter(range(1 << 30))
        self._raw: list[Box] = []
        self._empty: Census = frozenset()

    async def make(self, **limits: float) -> Any:
        """Make a sandbox through the manager, with the calls that tests make of one."""
        wanted = replace(LIMITS, **limits)  # type: ignore[arg-type]
        made = await self.suite.create(self.suite.rollout_id(), limits=wanted)
        return self._use(self.suite, made.info)

    async def end(self, box: Any) -> None:
        """Destroy such a sandbox."""
        await self.suite.manager.destroy(box.caller, box.info.key.rollout_id, box.info.sandbox_id)

    def raw(self, box: Any) -> Box:
        """Return the backend's own side of a sandbox."""
        return self.suite.fleet.find(box.info.sandbox_id).box  # type: ignore[no-any-return]

    def box_spec(self, **changes: Any) -> BoxSpec:
        """Describe a sandbox that the backend is asked for directly."""
        sandbox_id = f"sbx_{next(self._ids):032x}"
        return replace(BoxSpec(sandbox_id=sandbox_id, limits=LIMITS), **changes)

    async def create(self, **changes: Any) -> Box:
        """Make a sandbox without the manager; it is destroyed when the test ends."""
        box = await self.backend.create(self.box_spec(**changes), self.lost.append)
        self._raw.append(box)
        return box  # type: ignore[no-any-return]

    def census(self) -> Census:
        """Return what exists outside the manager's memory, as far as the row can tell."""
        if self.subject.census is None:
            return frozenset()
        return self.subject.census(self.backend, self._folder)

    async def assert_nothing_more_than(self, before: Census) -> None:
        """Wait until nothing exists that did not before."""
        end = time.monotonic() + GONE_SECONDS
        while more := self.census() - before:
            assert time.monotonic() < end, f"left behind: {sorted(more)}"
            await asyncio.sleep(0.01)

    async def clear(self) -> None:
        """Destroy all that a test made; nothing may be left of it."""
        for box in self._raw:
            await box.destroy()
        self._raw = []
        self.lost.clear()
        await self.suite.fleet.destroy_all(Cause.CANCELLED)
        await self.assert_nothing_more_than(self._empty)
        assert self.backend.live_count() == 0
        for path in self.scratch.iterdir():
            path.unlink()

    async def start(self) -> None:
        """Start; skip with the reason where this machine cannot isolate."""
        try:
            self.info = await self.suite.manager.start()
        except FailedPrecondition as error:
            if error.reason == "ISOLATION_UNAVAILABLE":
                pytest.skip(f"{self.name}: {error.message}")
            raise
        self._empty = self.census()

    def need(self, feature: Feature) -> None:
        """Skip where the backend does not offer it."""
        if not self.subject.runs_programs:
            pytest.skip(f"{self.name} runs no programs")
        if feature not in self.info.features:
            pytest.skip(f"{self.name} does not offer {feature}")

    def need_programs(self) -> None:
        """Skip for a fake whose commands a test scripts."""
        if not self.subject.runs_programs:
            pytest.skip(f"{self.name} runs no programs")


@asynccontextmanager
async def running_rig(
    name: str, subject: Subject, folder: Path, suite_maker: Callable[..., Any], use: Any
) -> AsyncIterator[Rig]:
    """Run a manager over a backend under test."""
    async with subject.open(folder) as backend:
        rig = Rig(name, subject, suite_maker(backend, folder, time.time), use, folder)
        rig.scratch.mkdir()
        await rig.start()
        try:
            yield rig
        finally:
            await rig.suite.manager.close()
