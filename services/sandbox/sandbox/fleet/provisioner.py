"""Where a sandbox for a create comes from: the warm pool, or a creation when there is room and its turn has come.

On failure nothing is left and no room is promised. On success the promise of room goes with the box.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.backends.protocol import Box
from sandbox.fleet.admission import Admission
from sandbox.fleet.creations import Creation
from sandbox.fleet.maker import Maker, Unclaimable
from sandbox.fleet.pool import WarmPool
from sandbox.fleet.records import SandboxRecord
from sandbox.fleet.turns import Turns
from servicekit.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Provided:
    """A sandbox that is ready for its rollout."""

    record: SandboxRecord
    box: Box
    warm: bool


class Provisioner:
    """Provides."""

    def __init__(self, *, admission: Admission, turns: Turns, maker: Maker, pool: WarmPool) -> None:
        """Stands on these four."""
        self._admission = admission
        self._turns = turns
        self._maker = maker
        self._pool = pool

    async def provide(self, creation: Creation) -> Provided:
        """Provide a sandbox.

        Raises:
            ResourceExhausted: no room (NO_ROOM), or no turn in time (QUEUE_TIMEOUT).
            DeadlineExceeded: it was not ready in time (PROVISION_TIMEOUT).
            HoneError: it could not be made.
        """
        try:
            return await self._from_pool(creation) or await self._made(creation)
        except OSError as error:  # the manager itself lacks descriptors or memory
            raise Unavailable(f"no sandbox can be made: {error}", reason="NO_MEANS") from error

    async def _from_pool(self, creation: Creation) -> Provided | None:
        """Hand over one that was made ahead; None if there is none that can be."""
        spec = creation.spec
        while (warm := self._pool.take(spec)) is not None:
            creation.queued = False
            record = _record(creation, warm.sandbox_id)
            try:
                await self._maker.hand_over(warm.box, record, spec)
            except BaseException as error:  # also when cancelled: the promise goes back
                self._admission.release(spec.limits.memory_bytes)
                if not isinstance(error, Unclaimable):
                    raise
                self._pool.spoilt(warm, str(error))
            else:
                self._pool.handed_over(warm)
                return Provided(record=record, box=warm.box, warm=True)
        creation.queued = True
        return None

    async def _made(self, creation: Creation) -> Provided:
        """Make one."""
        spec, memory_bytes = creation.spec, creation.spec.limits.memory_bytes
        await self._let_warm_ones_go(lambda: self._admission.shortage(memory_bytes))
        self._admission.reserve(memory_bytes)
        try:
            async with self._turns.turn(spec.run_id, spec.wait_seconds):
                creation.queued = False
                # Those before it in the queue may have taken what was free.
                await self._let_warm_ones_go(self._admission.free_shortage)
                if short := self._admission.free_shortage():
                    raise self._admission.no_room(short)
                record = _record(creation, self._maker.new_id())
                box = await self._maker.make(record, spec)
        except BaseException:  # also when cancelled: the promise goes back in any case
            self._admission.release(memory_bytes)
            raise
        return Provided(record=record, box=box, warm=False)

    async def _let_warm_ones_go(self, shortage: Callable[[], str]) -> None:
        """End warm sandboxes while something is short; a destruction that hangs must not hang the create."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._turns.queue_seconds):
                while shortage() and await self._pool.give_way():
                    pass


def _record(creation: Creation, sandbox_id: str) -> SandboxRecord:
    spec = creation.spec
    return SandboxRecord(
        sandbox_id=sandbox_id,
        key=spec.key,
        run_id=spec.run_id,
        epoch=creation.epoch,
        trace_parent=spec.trace_parent,
    )
