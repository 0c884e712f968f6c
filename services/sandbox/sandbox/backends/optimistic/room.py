"""One environment that several rollouts share, and what each of them may believe of it.

The rule. The state is looked at whenever a rollout joins, leaves or is asked about, if anything ran since the last
look. Where two looks in a row differ, the environment changed in between. Nobody can say who changed it. So whoever was
in it then is polluted, whoever wrote, unless it was there alone: then the change is its own. In any case nobody joins
an environment that has changed; newcomers get a fresh one. What was changed and put back between two looks is not seen.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox.backends.optimistic.marks import Mark, Observer
from sandbox.backends.protocol import Box, BoxLost
from sandbox.types import Limits, Purpose

Kind = tuple[str, str, str, Limits, str, Purpose | None]
"""Rollouts that share an environment agree in this: template, limits, network and what it is for."""


class Room:
    """A shared environment; made clean."""

    def __init__(
        self, room_id: str, kind: Kind, box: Box, observer: Observer, *, share: int, end: float
    ) -> None:
        """Holds a fresh sandbox that at most `share` rollouts use at a time, none for longer than until `end`."""
        self.room_id = room_id
        self.kind = kind
        self.box = box
        self.end = end
        self._observer = observer
        self._share = share
        self._members: set[str] = set()
        self._polluted: set[str] = set()
        self._changed = False
        self._touched = True
        self._running = 0
        self._mark: Mark | None = None
        self._looking = asyncio.Lock()

    @property
    def members(self) -> frozenset[str]:
        """Who is in it."""
        return frozenset(self._members)

    @property
    def is_usable(self) -> bool:
        """Whether somebody may still join, as far as is known."""
        return not self._changed and len(self._members) < self._share

    def close(self) -> None:
        """Let nobody in any more: the environment is gone."""
        self._changed = True

    async def join(self, member: str) -> bool:
        """Let a rollout in if the environment is as it was made.

        Raises:
            BoxLost: it is gone.
        """
        async with self._looking:
            await self._look()
            if not self.is_usable:
                return False
            self._members.add(member)
            return True

    async def leave(self, member: str) -> None:
        """Let a rollout out; what it changed is first held against the others."""
        async with self._looking:
            try:
                await self._look()
            except BoxLost:
                self._changed = True
            finally:
                self._members.discard(member)
                self._polluted.discard(member)

    async def is_polluted(self, member: str) -> bool:
        """Say whether somebody else may have changed what this rollout saw.

        Raises:
            BoxLost: it is gone.
        """
        async with self._looking:
            await self._look()
            return member in self._polluted

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Note that something runs that may change the environment."""
        self._touched = True
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._touched = True

    async def _look(self) -> None:
        if not self._touched:
            return
        self._touched = self._running > 0  # what begins while we look sets it again
        try:
            seen = await self._observer.mark(self.box, is_quiet=not self._running)
        except BaseException:  # also when cancelled: it has not been seen
            self._touched = True
            raise
        before, self._mark = self._mark, seen
        if before is not None and seen.differs(before):
            self._changed = True
            if len(self._members) > 1:
                self._polluted |= self._members
