"""Makes single sandboxes in the order that makes a crash harmless: the journal says it before the backend does it.

What fails, is cancelled or takes too long leaves nothing: no box, no record. A box that dies while it is being made or
handed over never gets out of here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from sandbox.backends.protocol import Backend, Box, BoxLost
from sandbox.fleet.records import Records, SandboxRecord
from sandbox.refusals import snapshot_mismatch
from sandbox.types import BoxSpec, CreateSpec, Owner, Template
from servicekit.errors import DeadlineExceeded, Unavailable

AHEAD_LIFETIME_SECONDS = 86_400.0 + 2 * 3600.0
"""Own end of a sandbox that is made ahead: the longest lifetime, and longer than any stays in the pool."""


class Unclaimable(Exception):
    """A sandbox that was made ahead cannot be handed over; it is gone."""


class Maker:
    """Makes boxes and hands them over."""

    def __init__(
        self,
        *,
        backend: Backend,
        records: Records,
        provision_seconds: float,
        new_id: Callable[[], str],
        on_lost: Callable[[str], None],
    ) -> None:
        """Makes nothing by itself.

        Args:
            backend: Makes them.
            records: Is told first.
            provision_seconds: How long one may take to become ready.
            new_id: Makes sandbox ids.
            on_lost: Told the id of a finished box that dies unasked.
        """
        self._backend = backend
        self._records = records
        self._seconds = provision_seconds
        self.new_id = new_id
        self._on_lost = on_lost
        self._owned: dict[str, bool] = {}
        self._ahead: dict[str, bool] = {}
        """Ids under way, and whether each died meanwhile."""

    @property
    def owned_count(self) -> int:
        """How many are being made or handed over for a rollout."""
        return len(self._owned)

    @property
    def ahead_count(self) -> int:
        """How many are being made for the pool."""
        return len(self._ahead)

    def ids(self) -> Iterator[str]:
        """Yield the ids of all that are under way."""
        yield from self._owned
        yield from self._ahead

    async def make(self, record: SandboxRecord, spec: CreateSpec) -> Box:
        """Make a sandbox for its rollout, files written.

        Raises:
            DeadlineExceeded: it was not ready in time (PROVISION_TIMEOUT).
            HoneError: it could not be made.
        """
        self._records.begin(record)
        async with self._under_way(record.sandbox_id, self._owned):
            box = await self._backend.create(
                BoxSpec(
                    sandbox_id=record.sandbox_id,
                    template=spec.template,
                    limits=spec.limits,
                    lifetime_seconds=spec.lifetime_seconds,
                    network_profile=spec.network_profile,
                    owner=_owner(record),
                    snapshot=spec.snapshot,
                ),
                self._died,
            )
            if spec.rootfs_digest not in ("", box.rootfs_digest):
                await box.destroy()
                raise snapshot_mismatch(spec.snapshot_id, "root file system")
            await self._fill(box, record.sandbox_id, spec)
        return box

    async def make_ahead(self, sandbox_id: str, template: Template) -> Box:
        """Make a sandbox for nobody yet; raises as `make`."""
        self._records.begin_ahead(sandbox_id)
        async with self._under_way(sandbox_id, self._ahead):
            spec = BoxSpec(
                sandbox_id=sandbox_id,
                template=template,
                limits=template.limits,
                lifetime_seconds=AHEAD_LIFETIME_SECONDS,
                network_profile=template.network_profile,
            )
            box = await self._backend.create(spec, self._died)
            if self._ahead[sandbox_id]:
                await box.destroy()
                raise Unavailable(f"sandbox {sandbox_id} died as soon as it was made")
        return box

    async def hand_over(self, box: Box, record: SandboxRecord, spec: CreateSpec) -> None:
        """Give a sandbox that was made ahead to a rollout, files written.

        Raises:
            Unclaimable: it is not to be had any more, and gone.
            HoneError: the rollout's files could not be written; it is gone.
        """
        self._records.begin(record)
        async with self._under_way(record.sandbox_id, self._owned):
            try:
                await box.claim(_owner(record))
                if self._owned[record.sandbox_id]:
                    raise BoxLost("it died before it was claimed")
            except (Unavailable, BoxLost) as error:
                await box.destroy()
                raise Unclaimable(str(error)) from error
            except BaseException:  # also when cancelled
                await box.destroy()
                raise
            await self._fill(box, record.sandbox_id, spec)

    @asynccontextmanager
    async def _under_way(self, sandbox_id: str, ids: dict[str, bool]) -> AsyncIterator[None]:
        ids[sandbox_id] = False
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except BaseException as error:  # also when cancelled: the record must not stay open
            self._records.drop(sandbox_id)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"a sandbox was not ready within {self._seconds:g} s",
                    reason="PROVISION_TIMEOUT",
                ) from error
            raise
        finally:
            del ids[sandbox_id]

    async def _fill(self, box: Box, sandbox_id: str, spec: CreateSpec) -> None:
        """Write the files that a sandbox starts with; if that fails, nothing is left of it."""
        try:
            for file in spec.files:
                await box.write_file(file)
            if self._owned[sandbox_id]:
                raise BoxLost(f"sandbox {sandbox_id} died before it was handed over")
        except BaseException as error:  # also when cancelled
            await box.destroy()
            if isinstance(error, BoxLost):
                raise Unavailable(str(error), reason="SANDBOX_LOST") from error
            raise

    def _died(self, sandbox_id: str) -> None:
        for ids in (self._owned, self._ahead):
            if sandbox_id in ids:
                ids[sandbox_id] = True
                return
        self._on_lost(sandbox_id)


def _owner(record: SandboxRecord) -> Owner:
    key = record.key
    return Owner(rollout_id=key.rollout_id, run_id=record.run_id, purpose=key.purpose)
