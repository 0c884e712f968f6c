"""The embedded backend: Linux namespaces and control groups on this machine, no daemon, no download.

It reports the level it reached and never falls back to a plain subprocess: where namespaces are missing it refuses to
start and says which step failed. Levels, strongest first:

    ns-root             root: namespaces, limits by control groups
    ns-rootless         an ordinary user to whom control groups are delegated
    ns-root-rlimits     root without usable control groups: limits per process only
    ns-rootless-rlimits an ordinary user without control groups
"""

import asyncio
import logging
import os
import resource
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sandbox.backends.folder import StateFolder
from sandbox.backends.local.box import LaunchError, LocalBox
from sandbox.backends.local.cgroups import (
    OWN_PROCESSES,
    BoxCgroup,
    CgroupsUnavailable,
    Tree,
    find_tree,
)
from sandbox.backends.local.files import make_pool
from sandbox.backends.local.manager_groups import ManagerGroups
from sandbox.backends.local.roots import Roots
from sandbox.backends.local.spawner_process import SpawnerProcess
from sandbox.backends.manager_name import ManagerName
from sandbox.backends.protocol import BackendInfo, BoxLost
from sandbox.rootfs import (
    DEFAULT_ENV,
    HOST_NAME,
    HOST_ROOT,
    SHELL,
    RootPlan,
    plan_host_root,
)
from sandbox.spawner import syscalls
from sandbox.types import BoxSpec, Command, Limits, Termination
from servicekit.errors import FailedPrecondition, Unavailable

log = logging.getLogger(__name__)

OUTER_UID = 100_000
"""Host uid and gid that imported roots belong to when the manager is root; no user of the host has it."""

_NUM_UIDS = 60_000
"""Each sandbox's root is one of so many uids after that: the kernel has limits per user, which no two may share."""

_PROBE = ("sh", "-c", "command -v python3 >/dev/null || echo no python3")
_ANSWER_SECONDS = 60.0
"""A keeper or spawner that is stuck for so long is given up; a keeper's own sandbox makes it slow, but not so slow."""

_OPEN_FILES = 1024
_ROOT_DIR = "root"
_DEVICES_DIR = "dev"
"""Below the state folder: mount points, empty for all but sandboxes and the spawner."""


class LocalBackend:
    """Makes sandboxes on this machine."""

    def __init__(
        self,
        state_dir: Path,
        *,
        roots: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        find_cgroups: Callable[[], Tree] = find_tree,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        """Keeps its lock, its own id, imported roots and what is bound into every root in `state_dir`.

        `roots` are folders and archives to import at the start instead of when they are first asked for.
        """
        self._find_tree = find_cgroups
        self._answer_seconds = answer_seconds
        self._state_dir = state_dir.absolute()
        self._folder = StateFolder(state_dir)
        self._clock = clock
        self._rootless = os.geteuid() != 0
        self._groups: ManagerGroups | None = None
        self._owner = os.getuid() if self._rootless else OUTER_UID
        self._roots = Roots(self._state_dir / "roots", self._owner, clock=clock)
        self._sources = tuple(roots)
        self._plans: dict[str, asyncio.Task[RootPlan]] = {}
        self._spawner: SpawnerProcess | None = None
        self._restart = asyncio.Lock()
        self._pool = make_pool()
        self._boxes: dict[str, LocalBox] = {}
        self._closing = False
        self._first_uid = 0
        self._uids_given = 0
        self._maps_owners = True
        """Whether imported roots can be shown as any user's; otherwise their sandboxes are all the roots' user."""

    async def start(self) -> BackendInfo:
        """Get ready; see `Backend.start`."""
        if sys.platform != "linux":
            raise FailedPrecondition(
                f"the backend local needs Linux, found {sys.platform}; run the service in a Linux VM",
                reason="ISOLATION_UNAVAILABLE",
                attributable="infra",
            )
        self.lock()
        self._name = ManagerName.own(self._folder.instance())
        self._first_uid = zlib.crc32(
            str(self._name).encode()
        )  # managers of one machine begin apart
        syscalls.set_child_subreaper()  # if the spawner dies, its orphans come here to be reaped
        for name in (_ROOT_DIR, _DEVICES_DIR):
            (self._state_dir / name).mkdir(exist_ok=True)
        missing = await asyncio.to_thread(self._find_cgroups)
        for source in (HOST_ROOT, *self._sources):
            await self._plan(source)
        await self._start_spawner()
        detail = await self._probe()
        level = "ns-rootless" if self._rootless else "ns-root"
        return BackendInfo(
            backend="local",
            isolation=f"{level}-rlimits" if self._groups is None else level,
            detail="; ".join(text for text in (missing, detail) if text),
        )

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> LocalBox:
        """Make a sandbox; see `Backend.create`."""
        sandbox_id, limits = spec.sandbox_id, spec.limits
        plan = await self._plan(spec.template.rootfs)
        group = await self._make_group(sandbox_id, limits)
        owner = self._new_owner() if self._maps_owners or not plan.base else self._owner
        box = LocalBox(
            sandbox_id,
            cgroup=group,
            rootfs_digest=plan.digest,
            owner=owner,
            health_paths=plan.health_paths,
            make_name=lambda: f".hone-{uuid.uuid4().hex}",
            pool=self._pool,
            on_lost=on_lost,
            answer_seconds=self._answer_seconds,
        )
        self._boxes[sandbox_id] = box
        try:
            await box.launch(await self._living_spawner(), self._spec(plan, limits, group, owner))
            if spec.snapshot is not None:
                await box.restore(spec.snapshot)
        except BaseException as error:  # also when cancelled: nothing may be left of it
            del self._boxes[sandbox_id]
            await box.destroy()
            if not box.keeper_pid and self._spawner is not None:
                self._spawner.must_answer(self._answer_seconds)
            if isinstance(error, LaunchError) and error.maps_no_owners and self._maps_owners:
                self._maps_owners = False
                log.warning(
                    "sandboxes over imported roots share one user: the kernel, or the file system of the data folder, "
                    "shows no root under another owner",
                    extra={"why": str(error)},
                )
                return await self.create(spec, on_lost)
            if isinstance(error, LaunchError | BoxLost):
                raise Unavailable(f"sandbox could not be made: {error}") from error
            raise
        box.on_destroyed = lambda: self._boxes.pop(sandbox_id, None)
        return box

    async def _make_group(self, sandbox_id: str, limits: Limits) -> BoxCgroup | None:
        """Make the control groups of a sandbox; when cancelled, none is left."""
        if self._groups is None:
            return None
        making = asyncio.ensure_future(
            asyncio.to_thread(self._groups.cgroups.create, sandbox_id, limits)
        )
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread cannot be stopped: what it makes is removed as soon as it is there.
            making.add_done_callback(_remove_made)
            await asyncio.wait([making])
            raise
        except OSError as error:
            raise Unavailable(f"sandbox: control group: {error}") from error

    async def reap(self, known: frozenset[str]) -> int:
        """Remove remains; see `Backend.reap`."""
        return 0 if self._groups is None else await asyncio.to_thread(self._groups.reap, known)

    @property
    def spawner_pid(self) -> int:
        """Process id of the spawner."""
        assert self._spawner is not None
        return self._spawner.pid

    def live_count(self) -> int:
        """Count live sandboxes; see `Backend.live_count`."""
        if self._groups is None:
            return sum(box.alive for box in self._boxes.values())
        return len(self._groups.live())

    async def close(self) -> None:
        """Stop; see `Backend.close`."""
        self._closing = True
        for box in list(self._boxes.values()):
            await box.destroy()
        if self._spawner is not None:
            await self._spawner.stop()
        if self._groups is not None:
            await asyncio.to_thread(self._groups.cgroups.close)
        self._pool.shutdown()
        self._folder.release()

    def lock(self) -> None:
        """Take the folder for this process; see `Backend.lock`."""
        self._folder.lock()

    def _find_cgroups(self) -> str:
        """Set up control groups; return why there are none, or what they lack."""
        try:
            tree = self._find_tree()
            self._groups = ManagerGroups(self._folder, self._name, tree, self._clock)
        except CgroupsUnavailable as error:
            return f"no group limits, only limits per process: {error}"
        return "" if "cpu" in tree.controllers else "no CPU limit: no cpu controller"

    async def _start_spawner(self) -> None:
        spawner = SpawnerProcess(self._state_dir / _DEVICES_DIR, self._on_spawner_death)
        try:
            await spawner.start()
        except OSError as error:
            raise Unavailable(f"the spawner does not start: {error}") from error
        self._spawner = spawner

    def _on_spawner_death(self) -> None:
        if not self._closing:
            log.error("spawner died; its sandboxes died with it, the next create starts another")

    async def _living_spawner(self) -> SpawnerProcess:
        async with self._restart:
            if self._spawner is None or not self._spawner.alive:
                if self._spawner is not None:
                    await self._spawner.stop()
                await self._start_spawner()
            assert self._spawner is not None
            return self._spawner

    async def _probe(self) -> str:
        """Make one sandbox and run a shell in it; return what is missing inside.

        Raises:
            FailedPrecondition: this machine cannot make sandboxes.
        """
        try:
            box = await self.create(BoxSpec(sandbox_id="probe"), lambda _: None)
        except Unavailable as error:
            who = f"uid {os.geteuid()}" if self._rootless else "root"
            raise FailedPrecondition(
                f"this machine does not let {who} make sandboxes: {error}; needed are Linux 5.12 or "
                "newer and, for an ordinary user, unprivileged user namespaces",
                reason="ISOLATION_UNAVAILABLE",
                attributable="infra",
            ) from error
        try:
            outcome = await box.run(Command(exec_id="probe", argv=_PROBE), DEFAULT_ENV, None)
        except BoxLost as error:
            raise FailedPrecondition(f"the first sandbox died at once: {error}") from error
        finally:
            await box.destroy()
        if outcome.termination is not Termination.EXITED or outcome.exit_code:
            raise FailedPrecondition(
                f"{SHELL} does not run in a sandbox: {outcome.termination}, exit code "
                f"{outcome.exit_code}, {outcome.stderr.decode(errors='replace').strip()}"
            )
        return outcome.stdout.decode().strip()

    async def _plan(self, source: str) -> RootPlan:
        """Return what a root file system is made of; made or imported once, also if a caller gives up meanwhile."""
        task = self._plans.get(source)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            if source == HOST_ROOT:
                work = asyncio.to_thread(plan_host_root, self._state_dir)
            else:
                work = asyncio.to_thread(self._roots.prepare, Path(source))
            task = self._plans[source] = asyncio.get_running_loop().create_task(work)
        return await asyncio.shield(task)

    def _new_owner(self) -> int:
        """Return the host uid of a new sandbox's root, which no other here has."""
        if self._rootless:
            return self._owner
        taken = {box.owner for box in self._boxes.values()}
        while True:
            self._uids_given += 1
            uid = OUTER_UID + 1 + (self._first_uid + self._uids_given) % _NUM_UIDS
            if uid not in taken:
                return uid

    def _spec(
        self, plan: RootPlan, limits: Limits, group: BoxCgroup | None, owner: int
    ) -> dict[str, Any]:
        limit_numbers = [
            (resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES),
            (resource.RLIMIT_CORE, 0, 0),
        ]
        if self._groups is None:
            processes = limits.max_processes + OWN_PROCESSES
            limit_numbers += [
                (resource.RLIMIT_NPROC, processes, processes),
                (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
            ]
        return {
            **plan.as_spec(),
            "join": group.join_paths() if group is not None else [],
            "born_in": group.birth_folder() if group is not None else "",
            "rootless": self._rootless,
            "uid": 0 if self._rootless else owner,
            "base_uid": 0 if self._rootless else OUTER_UID,
            "root_dir": str(self._state_dir / _ROOT_DIR),
            "dev_dir": str(self._state_dir / _DEVICES_DIR),
            "disk_bytes": limits.disk_bytes,
            "max_inodes": limits.max_inodes,
            "shm_bytes": limits.shm_bytes,
            "hostname": HOST_NAME,
            "rlimits": limit_numbers,
        }


def _remove_made(making: "asyncio.Future[BoxCgroup]") -> None:
    """Remove groups that nobody waits for any more; they are empty, so this takes no time."""
    if not making.cancelled() and making.exception() is None:
        making.result().remove(deadline_seconds=0.0)
