"""gVisor on this machine without a daemon: one `runsc run` per sandbox, with the agent of `pod_agent` in it.

The workload's system calls are answered by a kernel of its own in user space; the host's kernel sees gVisor's. Limits
of memory, processes and CPU are control groups of the host, over gVisor and the workload together.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sandbox.backends.agent_box import AgentBox
from sandbox.backends.agent_client import AgentClient, AgentLost
from sandbox.backends.folder import StateFolder
from sandbox.backends.local.cgroups import CgroupsUnavailable, find_tree
from sandbox.backends.local.manager_groups import ManagerGroups
from sandbox.backends.local.roots import Roots
from sandbox.backends.manager_name import ManagerName
from sandbox.backends.protocol import BackendInfo, BoxLost
from sandbox.backends.runsc import bundle
from sandbox.backends.runsc.bundle import GuestRoot
from sandbox.backends.runsc.guest import Guest
from sandbox.backends.verdict import State, Verdict
from sandbox.rootfs import DEFAULT_ENV, HOST_ROOT, plan_host_root
from sandbox.settings import RunscOptions
from sandbox.types import (
    MIB,
    BoxSpec,
    Chunk,
    Command,
    ExecOutcome,
    Limits,
    Owner,
    Termination,
)
from servicekit.errors import FailedPrecondition, HoneError, Unavailable

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_LOOK_SECONDS = 0.05
_LAST_WORDS_SECONDS = 2.0
_PROBE_SECONDS = 0.2
_PROBE_LIMIT_SECONDS = 60.0
_HELLO = Command(exec_id="hello", argv=("/bin/sh", "-c", "id -u"), timeout_seconds=20.0)
_STATUS = Command(exec_id="status", argv=("/bin/sh", "-c", "ls -l /"), timeout_seconds=20.0)
_STUBBORN = Command(
    exec_id="stubborn",
    argv=("/bin/sh", "-c", "trap '' TERM; (sleep 60 &) & kill -STOP $$"),
    timeout_seconds=_PROBE_SECONDS,
)


class RunscBox(AgentBox):
    """A sandbox in a gVisor of its own."""

    def __init__(self, sandbox_id: str, guest: Guest, **means: Any) -> None:
        """Takes the means that any box with an agent takes, and what it runs in."""
        super().__init__(sandbox_id, **means)
        self._guest = guest

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a command; see `Box.run`.

        The host's kernel kills for memory whatever part of gVisor it comes upon: after that nothing in it can be
        relied on, also if the agent still answers.
        """
        outcome = await super().run(command, env, emit)
        if outcome.termination in _MAYBE_MEMORY and self._guest.ran_out_of_memory():
            self.see(self._guest.verdict())
            await self._guest.kill()
            return replace(outcome, termination=Termination.OOM_KILLED)
        return outcome


_MAYBE_MEMORY = frozenset(
    {Termination.EXITED, Termination.SIGNALED, Termination.TIMED_OUT, Termination.OUTPUT_LIMIT}
)


class RunscBackend:
    """Makes sandboxes by gVisor's own program."""

    def __init__(
        self,
        state_dir: Path,
        options: RunscOptions,
        *,
        roots: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        make_name: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Keeps its lock, its name, and below `runsc` all that sandboxes are made of, in `state_dir`.

        `roots` are folders and archives to import at the start instead of when they are first asked for.
        """
        self._folder = StateFolder(state_dir)
        self._options = options
        self._sources = tuple(roots)
        self._clock = clock
        self._make_name = make_name
        self._home = self._folder.path / "runsc"
        self._boxes_dir = self._home / "boxes"
        self._roots = Roots(self._home / "roots", 0, clock=clock)
        self._plans: dict[str, asyncio.Task[GuestRoot]] = {}
        self._groups: ManagerGroups | None = None
        self._boxes: dict[str, RunscBox] = {}
        self._program = ""
        self._lacks = [
            "files are not limited in number",
            "a full limit of processes ends a sandbox",
        ]

    def lock(self) -> None:
        """Take the folder for this process; see `Backend.lock`."""
        self._folder.lock()

    async def start(self) -> BackendInfo:
        """Get ready; see `Backend.start`."""
        self._program = shutil.which(self._options.program) or ""
        if not self._program:
            raise _refusal(f"{self._options.program!r} is not installed; it is gVisor's program")
        if os.geteuid() != 0:
            raise _refusal(f"it needs root, and this is uid {os.geteuid()}")
        self.lock()
        name = ManagerName.own(self._folder.instance())
        try:
            tree = find_tree()
            self._groups = ManagerGroups(self._folder, name, tree, self._clock)
        except CgroupsUnavailable as error:
            raise _refusal(f"there are no limits without control groups: {error}") from error
        await self.reap(frozenset())
        await asyncio.to_thread(self._prepare)
        for source in (HOST_ROOT, *self._sources):
            await self._root(source)
        await self._probe()
        if "cpu" not in tree.controllers:
            self._lacks.append("no CPU limit: no cpu controller")
        return BackendInfo(
            backend="runsc",
            isolation=f"gvisor-{self._options.platform}",
            detail="; ".join(self._lacks),
        )

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> RunscBox:
        """Make a sandbox; see `Backend.create`."""
        assert self._groups is not None
        if spec.network_profile != "none":
            raise FailedPrecondition(
                f"network profile {spec.network_profile!r}: the backend runsc has none but `none`"
            )
        root = await self._root(spec.template.rootfs)
        try:
            group = self._groups.cgroups.create(spec.sandbox_id, self._limits(spec.limits))
        except OSError as error:
            raise Unavailable(f"sandbox: control group: {error}") from error
        place = self._boxes_dir / spec.sandbox_id
        guest = Guest(spec.sandbox_id, place, group, partial(self._ended, spec.sandbox_id))
        token = secrets.token_hex(_TOKEN_BYTES)
        client = AgentClient("sandbox", 0, token, guest.connect)
        box = self._box(spec, root, guest, client, on_lost)
        self._boxes[spec.sandbox_id] = box
        try:
            await self._launch(spec, root, guest, token)
            await self._greet(guest, client)
            if spec.snapshot is not None:
                await box.restore(spec.snapshot)
        except BaseException as error:  # also when cancelled: nothing may be left of it
            await box.destroy()
            if isinstance(error, OSError | AgentLost | BoxLost | TimeoutError):
                raise Unavailable(f"sandbox could not be made: {error!r}") from error
            raise
        return box

    async def reap(self, known: frozenset[str]) -> int:
        """Remove remains; see `Backend.reap`."""
        assert self._groups is not None
        reaped = await asyncio.to_thread(self._groups.reap, known | frozenset(self._boxes))
        keep = set(self._groups.live()) | set(self._boxes)
        with contextlib.suppress(FileNotFoundError):
            for folder in list(self._boxes_dir.iterdir()):
                if folder.name not in keep:
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return reaped

    def live_count(self) -> int:
        """Count live sandboxes; see `Backend.live_count`."""
        return 0 if self._groups is None else len(self._groups.live())

    async def close(self) -> None:
        """Stop; see `Backend.close`."""
        await asyncio.gather(*(box.destroy() for box in list(self._boxes.values())))
        if self._groups is not None:
            await asyncio.to_thread(self._groups.cgroups.close)
        self._folder.release()

    async def _launch(self, spec: BoxSpec, root: GuestRoot, guest: Guest, token: str) -> None:
        options = self._options
        user, group = options.user_and_group()
        config = bundle.config(
            root,
            spec.limits,
            agent=self._home / "agent",
            user=user,
            group=group,
            token_sha256=hashlib.sha256(token.encode()).hexdigest(),
        )
        runtime = [self._program, "--platform", options.platform, "--network", "none"]
        await guest.start([*runtime, "--ignore-cgroups"], config)

    async def _greet(self, guest: Guest, client: AgentClient) -> None:
        """Wait until the agent answers."""
        try:
            async with asyncio.timeout(self._options.start_seconds):
                await client.info()
        except (AgentLost, TimeoutError) as error:
            raise AgentLost(f"{error or 'no answer'}: {guest.last_words()}") from error

    def _box(
        self,
        spec: BoxSpec,
        root: GuestRoot,
        guest: Guest,
        client: AgentClient,
        on_lost: Callable[[str], None],
    ) -> RunscBox:
        async def take(owner: Owner) -> None:
            """Do nothing: whose it is stands in the journal alone."""

        async def look() -> Verdict:
            # A word about memory or processes may come a little later than the end that it explains.
            end = self._clock() + _LAST_WORDS_SECONDS
            while guest.verdict().state is State.LOST and self._clock() < end:
                await asyncio.sleep(_LOOK_SECONDS)
            verdict = guest.verdict()
            await guest.kill()
            return verdict

        async def remove() -> None:
            await guest.remove()
            self._boxes.pop(spec.sandbox_id, None)

        return RunscBox(
            spec.sandbox_id,
            guest,
            name=spec.sandbox_id,
            rootfs_digest=root.digest,
            agent=client,
            take=take,
            look=look,
            remove=remove,
            on_lost=on_lost,
            what="gVisor of",
        )

    def _ended(self, sandbox_id: str, verdict: Verdict) -> None:
        box = self._boxes.get(sandbox_id)
        if box is not None:
            box.see(verdict)

    def _limits(self, limits: Limits) -> Limits:
        """Add what gVisor itself takes."""
        options = self._options
        return replace(
            limits,
            memory_bytes=limits.memory_bytes + options.runtime_mib * MIB,
            max_processes=limits.max_processes * options.processes_each + options.runtime_processes,
        )

    def _prepare(self) -> None:
        self._boxes_dir.mkdir(parents=True, exist_ok=True)
        bundle.write_agent(self._home / "agent")

    async def _root(self, source: str) -> GuestRoot:
        """Return a root file system; made or imported once, also if a caller gives up meanwhile."""
        task = self._plans.get(source)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            work = asyncio.to_thread(self._make_root, source)
            task = self._plans[source] = asyncio.get_running_loop().create_task(work)
        return await asyncio.shield(task)

    def _make_root(self, source: str) -> GuestRoot:
        if source != HOST_ROOT:
            return bundle.build_root(self._roots.prepare(Path(source)), self._home)
        user, group = self._options.user_and_group()
        plan = bundle.with_user(plan_host_root(self._home), user, group)
        return bundle.build_root(plan, self._home / "host")

    async def _probe(self) -> None:
        """Make one sandbox, run programs in it, and kill a command that does not want to end.

        Raises:
            FailedPrecondition: this machine cannot do that.
        """
        spec = BoxSpec(sandbox_id=f"probe-{self._make_name()[:12]}")
        try:
            async with asyncio.timeout(_PROBE_LIMIT_SECONDS):
                box = await self.create(spec, lambda _: None)
                try:
                    problem = await self._problem(box)
                finally:
                    await box.destroy()
        except TimeoutError:
            problem = f"nothing came of it within {_PROBE_LIMIT_SECONDS:g} s"
        except BoxLost as error:
            problem = f"the first one died: {error}"
        except HoneError as error:
            problem = error.message
        if problem:
            raise _refusal(
                f"{self._program} with platform {self._options.platform} makes no usable sandboxes: {problem}"
            )

    async def _problem(self, box: RunscBox) -> str:
        user, _ = self._options.user_and_group()
        hello = await box.run(_HELLO, DEFAULT_ENV, None)
        if hello.stdout.decode(errors="replace").strip() != str(user):
            said = (hello.stderr or hello.stdout).decode(errors="replace").strip()
            return f"/bin/sh as user {user}: {hello.termination}, {said}"
        listing = await box.run(_STATUS, DEFAULT_ENV, None)
        if listing.exit_code:  # old versions of gVisor do not know AT_NO_AUTOMOUNT
            said = listing.stderr.decode(errors="replace").strip()
            self._lacks.append(f"it is older than some programs here: {said}")
        stubborn = await box.run(_STUBBORN, DEFAULT_ENV, None)
        ended = stubborn.termination
        return "" if ended is Termination.TIMED_OUT else f"a stopped command ended {ended}"


def _refusal(problem: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the backend runsc: {problem}", reason="ISOLATION_UNAVAILABLE", attributable="infra"
    )
