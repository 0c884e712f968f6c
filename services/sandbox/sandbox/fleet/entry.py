"""One row of the table of sandboxes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sandbox.backends.protocol import BackendInfo, Box
from sandbox.fleet.execs import ExecBook
from sandbox.fleet.leases import Lease
from sandbox.fleet.records import SandboxRecord
from sandbox.types import Cause, SandboxInfo


@dataclass(slots=True, kw_only=True)
class Entry:
    """A live sandbox; mutable, owned by the fleet."""

    record: SandboxRecord
    box: Box
    lease: Lease
    backend: BackendInfo
    env: Mapping[str, str]
    memory_bytes: int
    create_time: float
    provision_seconds: float
    template: str
    warm: bool
    """Whether it came from the warm pool."""
    execs: ExecBook
    cause: Cause | None = None
    """Set when its destruction begins."""
    destroying: asyncio.Task[None] | None = None

    def record_with(self, cause: Cause) -> SandboxRecord:
        """Return its record as it is, or will be, once it is gone."""
        return replace(self.record, cause=cause)

    def info(self) -> SandboxInfo:
        """Return what is known of it."""
        return SandboxInfo(
            sandbox_id=self.record.sandbox_id,
            key=self.record.key,
            run_id=self.record.run_id,
            epoch=self.record.epoch,
            backend=self.backend.backend,
            isolation=self.backend.isolation,
            rootfs_digest=self.box.rootfs_digest,
            create_time=self.create_time,
            deadline_time=self.lease.deadline,
            idle_deadline_time=self.lease.idle_deadline,
            provision_seconds=self.provision_seconds,
            template=self.template,
            warm=self.warm,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The answer to a create."""

    info: SandboxInfo
    created: bool
    """False when an earlier call made it."""
