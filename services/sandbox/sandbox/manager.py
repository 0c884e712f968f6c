"""What callers may do with sandboxes: every call is checked against its token, then goes to the fleet or into a box."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from sandbox.access import Gate, require_operator, require_purpose
from sandbox.backends.protocol import BackendInfo, BoxLost
from sandbox.door import Door, check_owner, ended, require_feature
from sandbox.fleet.entry import Created, Entry
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.records import Records
from sandbox.refusals import snapshot_mismatch, stopping
from sandbox.storage.snapshots import SnapshotStore
from sandbox.types import (
    BoxFile,
    Caller,
    Cause,
    Chunk,
    Command,
    CreateSpec,
    ExecOutcome,
    Feature,
    FileContent,
    FileEntry,
    Purpose,
    SandboxInfo,
    Stats,
)
from servicekit.errors import PermissionDenied


class SandboxManager:
    """The service's calls, without grpc."""

    def __init__(
        self, fleet: Fleet, records: Records, gate: Gate, snapshots: SnapshotStore
    ) -> None:
        """Serves nothing until `start`."""
        self._fleet = fleet
        self._records = records
        self._gate = gate
        self._snapshots = snapshots
        self.door = Door(fleet, gate)
        self._backend: BackendInfo | None = None
        self._draining = False

    async def start(self) -> BackendInfo:
        """Get ready; epochs that an earlier manager saw are known again, snapshots that it kept are there."""
        for rollout_id, epoch in self._records.newest_epochs():
            self._gate.learn(rollout_id, epoch)
        await asyncio.to_thread(self._snapshots.open)
        self._backend = await self._fleet.start()
        return self._backend

    async def create(self, caller: Caller, spec: CreateSpec) -> Created:
        """Make the sandbox of a key, or return the one that lives.

        Raises:
            FailedPrecondition: the rollout has ended (ROLLOUT_ENDED), its sandbox was destroyed (SANDBOX_ENDED), or
                the snapshot is of another template or backend (SNAPSHOT_MISMATCH).
            NotFound: there is no such snapshot (SNAPSHOT_UNKNOWN).
            Unavailable: it was lost (SANDBOX_LOST), could not be made or told, or the service is stopping.
            ResourceExhausted: no room (NO_ROOM), or no turn in time (QUEUE_TIMEOUT).
            DeadlineExceeded: it was not ready in time (PROVISION_TIMEOUT).
        """
        self._gate.admit(caller, spec.key.rollout_id)
        require_purpose(caller, spec.key.purpose)
        if self._draining:
            raise stopping()
        with self.door.counted():
            if spec.snapshot_id and not self._fleet.has(spec.key):
                spec = await self._with_snapshot(caller, spec)
            return await self._fleet.obtain(spec, caller.epoch)

    async def destroy(self, caller: Caller, rollout_id: str, sandbox_id: str) -> None:
        """Destroy a sandbox on request; one that is gone, or never was, is no error."""
        self._gate.admit(caller, rollout_id, operator_may=True)
        found = self._fleet.find(sandbox_id)
        if found is None:
            return
        record = found.record if isinstance(found, Entry) else found
        check_owner(rollout_id, sandbox_id, record.key.rollout_id)
        require_purpose(caller, record.key.purpose)
        if isinstance(found, Entry):
            await self._fleet.destroy(found, Cause.REQUESTED)

    async def destroy_by_run(self, caller: Caller, run_id: str) -> int:
        """Destroy all sandboxes of a run and stop its creates; return how many."""
        require_operator(caller)
        return await self._fleet.cancel_run(run_id)

    async def run(
        self, caller: Caller, rollout_id: str, sandbox_id: str, command: Command
    ) -> ExecOutcome:
        """Run a command to its end; repeating its exec_id returns the first result."""
        entry = self.door.use(caller, rollout_id, sandbox_id)
        with self.door.counted():
            return await entry.execs.run_once(
                command.exec_id, lambda: self._run_in(entry, command, None)
            )

    async def stream(
        self, caller: Caller, rollout_id: str, sandbox_id: str, command: Command
    ) -> AsyncGenerator[Chunk | ExecOutcome, None]:
        """Run a command and yield its output as it comes, then its end; closing the iterator kills it."""
        entry = self.door.use(caller, rollout_id, sandbox_id)
        queue: asyncio.Queue[Chunk | None] = asyncio.Queue()  # bounded by the output cap
        with self.door.counted():
            task = self._fleet.spawn(
                entry.execs.run_new(
                    command.exec_id, lambda: self._run_in(entry, command, queue.put_nowait)
                )
            )
            task.add_done_callback(lambda _: queue.put_nowait(None))
            try:
                while (chunk := await queue.get()) is not None:
                    yield chunk
                yield await task
            finally:
                task.cancel()

    async def kill_exec(
        self, caller: Caller, rollout_id: str, sandbox_id: str, exec_id: str
    ) -> None:
        """End a running command with all it started; one that has ended is no error."""
        with self.door.inside(caller, rollout_id, sandbox_id) as entry:
            await entry.box.kill(exec_id)

    async def write_file(
        self, caller: Caller, rollout_id: str, sandbox_id: str, file: BoxFile
    ) -> None:
        """Write a file."""
        with self.door.inside(caller, rollout_id, sandbox_id, Feature.FILES) as entry:
            await entry.box.write_file(file)

    async def read_file(
        self,
        caller: Caller,
        rollout_id: str,
        sandbox_id: str,
        path: str,
        *,
        offset_bytes: int,
        max_bytes: int,
    ) -> FileContent:
        """Read a part of a file."""
        with self.door.inside(caller, rollout_id, sandbox_id, Feature.FILES) as entry:
            return await entry.box.read_file(path, offset_bytes, max_bytes)

    async def list_files(
        self, caller: Caller, rollout_id: str, sandbox_id: str, path: str
    ) -> list[FileEntry]:
        """List a folder, in order of name."""
        with self.door.inside(caller, rollout_id, sandbox_id, Feature.FILES) as entry:
            return await entry.box.list_files(path)

    async def stat_file(
        self, caller: Caller, rollout_id: str, sandbox_id: str, path: str
    ) -> FileEntry:
        """Say what a path is; a link is not followed."""
        with self.door.inside(caller, rollout_id, sandbox_id, Feature.FILES) as entry:
            return await entry.box.stat_file(path)

    def extend(
        self, caller: Caller, rollout_id: str, sandbox_id: str, idle_seconds: float
    ) -> SandboxInfo:
        """Move the end of the idle lease to this long from now; 0 means as long as at first."""
        entry = self.door.use(caller, rollout_id, sandbox_id)
        entry.lease.extend(idle_seconds)
        return entry.info()

    async def get(self, caller: Caller, rollout_id: str, sandbox_id: str) -> SandboxInfo:
        """Say what is known of a sandbox; does not renew its lease."""
        self._gate.admit(caller, rollout_id, operator_may=True)
        entry = self.door.living(rollout_id, sandbox_id)
        require_purpose(caller, entry.record.key.purpose)
        try:
            return replace(entry.info(), polluted=await entry.box.polluted())
        except BoxLost as error:
            raise ended(entry) from error

    def list(self, caller: Caller, run_id: str) -> list[SandboxInfo]:
        """List live sandboxes, newest first; an empty run_id means all."""
        require_operator(caller)
        chosen = [e.info() for e in self._fleet.entries() if run_id in ("", e.record.run_id)]
        return sorted(chosen, key=lambda info: (-info.create_time, info.sandbox_id))

    def stats(self) -> Stats:
        """Count."""
        return self._fleet.stats()

    async def drain(self) -> None:
        """Take no new sandboxes, let calls finish, then destroy what lives."""
        self._draining = True
        await self._fleet.drain()
        await self.door.quiet()
        await self._fleet.destroy_all(Cause.MANAGER_LOST)

    async def close(self) -> None:
        """Destroy what is left and stop."""
        self._draining = True
        await self._fleet.close()

    async def _with_snapshot(self, caller: Caller, spec: CreateSpec) -> CreateSpec:
        assert self._backend is not None
        require_feature(self._backend, Feature.SNAPSHOTS)
        found = self._snapshots.find(spec.key.rollout_id, spec.snapshot_id)
        origin = found.origin
        require_purpose(caller, origin.purpose)
        if origin.purpose is Purpose.GRADE and spec.key.purpose is Purpose.AGENT:
            raise PermissionDenied(
                f"snapshot {spec.snapshot_id} is a grading box's; no agent's sandbox starts from it",
                reason="WRONG_ROLE",
            )
        if (origin.backend, origin.template) != (self._backend.backend, spec.template.name):
            raise snapshot_mismatch(spec.snapshot_id, "template or backend")
        await self._snapshots.check(found)
        return replace(spec, snapshot=found.path, rootfs_digest=origin.rootfs_digest)

    async def _run_in(
        self, entry: Entry, command: Command, emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        with entry.lease.in_use():
            try:
                outcome = await entry.box.run(command, {**entry.env, **command.env}, emit)
            except BoxLost as error:
                raise ended(entry) from error
        self._fleet.note_exec(outcome)
        return outcome
