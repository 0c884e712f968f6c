"""What callers may do with sandboxes: every call is checked against its token, then goes to the fleet or into a box."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager

from sandbox.access import Gate, require_operator, require_purpose
from sandbox.backends.protocol import BackendInfo, BoxLost
from sandbox.entry import Created, Entry
from sandbox.fleet import Fleet
from sandbox.records import Records
from sandbox.refusals import gone, stopping
from sandbox.types import (
    BoxFile,
    Caller,
    Cause,
    Chunk,
    Command,
    CreateSpec,
    ExecOutcome,
    FileContent,
    SandboxInfo,
    Stats,
)
from servicekit.errors import NotFound, PermissionDenied


class SandboxManager:
    """The service's calls, without grpc."""

    def __init__(self, fleet: Fleet, records: Records, gate: Gate) -> None:
        """Serves nothing until `start`."""
        self._fleet = fleet
        self._records = records
        self._gate = gate
        self._calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._draining = False

    async def start(self) -> BackendInfo:
        """Get ready; epochs that an earlier manager saw are known again."""
        for rollout_id, epoch in self._records.newest_epochs():
            self._gate.learn(rollout_id, epoch)
        return await self._fleet.start()

    async def create(self, caller: Caller, spec: CreateSpec) -> Created:
        """Make the sandbox of a key, or return the one that lives.

        Raises:
            FailedPrecondition: the rollout has ended (ROLLOUT_ENDED), or its sandbox was destroyed (SANDBOX_ENDED).
            Unavailable: it was lost (SANDBOX_LOST), could not be made or told, or the service is stopping.
            ResourceExhausted: no room (NO_ROOM), or no turn in time (QUEUE_TIMEOUT).
            DeadlineExceeded: it was not ready in time (PROVISION_TIMEOUT).
        """
        self._gate.admit(caller, spec.key.rollout_id)
        require_purpose(caller, spec.key.purpose)
        if self._draining:
            raise stopping()
        with self._call():
            return await self._fleet.obtain(spec, caller.epoch)

    async def destroy(self, caller: Caller, rollout_id: str, sandbox_id: str) -> None:
        """Destroy a sandbox on request; one that is gone, or never was, is no error."""
        self._gate.admit(caller, rollout_id, operator_may=True)
        found = self._fleet.find(sandbox_id)
        if found is None:
            return
        record = found.record if isinstance(found, Entry) else found
        _check_owner(rollout_id, sandbox_id, record.key.rollout_id)
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
        entry = self._use(caller, rollout_id, sandbox_id)
        with self._call():
            return await entry.execs.run_once(
                command.exec_id, lambda: self._run_in(entry, command, None)
            )

    async def stream(
        self, caller: Caller, rollout_id: str, sandbox_id: str, command: Command
    ) -> AsyncGenerator[Chunk | ExecOutcome, None]:
        """Run a command and yield its output as it comes, then its end; closing the iterator kills it."""
        entry = self._use(caller, rollout_id, sandbox_id)
        queue: asyncio.Queue[Chunk | None] = asyncio.Queue()  # bounded by the output cap
        with self._call():
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
        entry = self._use(caller, rollout_id, sandbox_id)
        with self._call(), entry.lease.in_use():
            await entry.box.kill(exec_id)

    async def write_file(
        self, caller: Caller, rollout_id: str, sandbox_id: str, file: BoxFile
    ) -> None:
        """Write a file."""
        entry = self._use(caller, rollout_id, sandbox_id)
        with self._call(), entry.lease.in_use():
            try:
                await entry.box.write_file(file)
            except BoxLost as error:
                raise self._ended(entry) from error

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
        entry = self._use(caller, rollout_id, sandbox_id)
        with self._call(), entry.lease.in_use():
            try:
                return await entry.box.read_file(path, offset_bytes, max_bytes)
            except BoxLost as error:
                raise self._ended(entry) from error

    def extend(
        self, caller: Caller, rollout_id: str, sandbox_id: str, idle_seconds: float
    ) -> SandboxInfo:
        """Move the end of the idle lease to this long from now; 0 means as long as at first."""
        entry = self._use(caller, rollout_id, sandbox_id)
        entry.lease.renew(idle_seconds or None)
        return entry.info()

    def get(self, caller: Caller, rollout_id: str, sandbox_id: str) -> SandboxInfo:
        """Say what is known of a sandbox; does not renew its lease."""
        self._gate.admit(caller, rollout_id, operator_may=True)
        return self._living(rollout_id, sandbox_id).info()

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
        await self._quiet.wait()
        await self._fleet.destroy_all(Cause.MANAGER_LOST)

    async def close(self) -> None:
        """Destroy what is left and stop."""
        self._draining = True
        await self._fleet.close()

    def _use(self, caller: Caller, rollout_id: str, sandbox_id: str) -> Entry:
        self._gate.admit(caller, rollout_id)
        entry = self._living(rollout_id, sandbox_id)
        require_purpose(caller, entry.record.key.purpose)
        entry.lease.renew()
        return entry

    def _living(self, rollout_id: str, sandbox_id: str) -> Entry:
        found = self._fleet.find(sandbox_id)
        if found is None:
            raise NotFound(f"no sandbox {sandbox_id!r} is known here", reason="SANDBOX_UNKNOWN")
        if isinstance(found, Entry):
            _check_owner(rollout_id, sandbox_id, found.record.key.rollout_id)
            return found
        _check_owner(rollout_id, sandbox_id, found.key.rollout_id)
        raise gone(found)

    async def _run_in(
        self, entry: Entry, command: Command, emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        with entry.lease.in_use():
            try:
                outcome = await entry.box.run(command, {**entry.env, **command.env}, emit)
            except BoxLost as error:
                raise self._ended(entry) from error
        self._fleet.note_exec(outcome)
        return outcome

    def _ended(self, entry: Entry) -> Exception:
        """Return why a sandbox that was alive when the call began is not any more."""
        return gone(entry.record_with(entry.cause or Cause.MANAGER_LOST))

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a call that a drain waits for."""
        self._calls += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._quiet.set()


def _check_owner(rollout_id: str, sandbox_id: str, owner: str) -> None:
    # An operator names the rollout too: a mistaken id must not end somebody else's sandbox.
    if owner != rollout_id:
        raise PermissionDenied(
            f"sandbox {sandbox_id} belongs to another rollout than {rollout_id}",
            reason="WRONG_ROLLOUT",
        )
