"""The Docker backend: one hardened container per sandbox, by whatever runtime the daemon has (runc, runsc, Kata).

The root file system is the image, read-only; /work, /tmp and /root are sized file systems in memory of the sandbox's
own, made and removed with the container. The container's first process is the engine's init above a stopped shell of a
user that no command runs as, so nothing inside can end it.

Every container bears the name of its manager and a deadline: at start and while it runs, a manager removes what a dead
one left, what is past its deadline, and what it does not know itself.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sandbox.backends.docker.box import DockerBox
from sandbox.backends.docker.engine import Engine, Missing, Refused
from sandbox.backends.docker.files import ContainerFiles
from sandbox.backends.docker.kill import HELPER_MARK, Beside, Killer, Within
from sandbox.backends.docker.spec import (
    DEADLINE_LABEL,
    ID_LABEL,
    MANAGER_LABEL,
    WRITABLE,
    ContainerSpecs,
    container_name,
    name_of,
)
from sandbox.backends.folder import StateFolder
from sandbox.backends.manager_name import ManagerName
from sandbox.backends.protocol import BackendInfo, BoxLost
from sandbox.rootfs import DEFAULT_ENV
from sandbox.settings import DockerOptions
from sandbox.types import BoxSpec, Command, Termination
from servicekit.errors import FailedPrecondition, HoneError, Unavailable

log = logging.getLogger(__name__)

_PAST_DEADLINE_SECONDS = 60.0
_RECONNECT_SECONDS = 0.5
_CANCEL_SECONDS = 5.0
"""How long a cancelled creation waits for the daemon to have removed it; then it goes on in the background."""

_REMOVALS = 3
_PROBE_SECONDS = 0.2
_PROBE_KILL_SECONDS = 15.0
_STOPPED = Command(
    exec_id="probe", argv=("/bin/sh", "-c", "kill -STOP $$"), timeout_seconds=_PROBE_SECONDS
)


class DockerBackend:
    """Makes sandboxes by a Docker daemon."""

    def __init__(
        self,
        state_dir: Path,
        options: DockerOptions,
        *,
        clock: Callable[[], float] = time.time,
        make_name: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Keeps its lock, its name and archives on their way in `state_dir`."""
        self._folder = StateFolder(state_dir)
        self._options = options
        self._clock = clock
        self._make_name = make_name
        self._engine = Engine(
            options.host, seconds=options.call_seconds, threads=options.parallel_calls
        )
        self._specs: ContainerSpecs | None = None
        self._killer: Killer | None = None
        self._name: ManagerName | None = None
        self._boxes: dict[str, DockerBox] = {}
        """By container."""
        self._making: set[str] = set()
        self._live: set[str] = set()
        self._images: dict[str, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._cleaning: set[asyncio.Task[None]] = set()

    def lock(self) -> None:
        """Take the folder for this process; see `Backend.lock`."""
        self._folder.lock()

    async def start(self) -> BackendInfo:
        """Get ready; see `Backend.start`."""
        self.lock()
        if not self._options.image:
            raise FailedPrecondition(
                "the backend docker needs an image: set HONE_SANDBOX_DOCKER__IMAGE, best by digest"
            )
        self._name = ManagerName.own(self._folder.instance())
        info = await self._engine.connect()
        self._specs = ContainerSpecs(self._options, self._engine.sdk, str(self._name), info)
        missing = self._specs.missing_limits()
        if missing:
            raise FailedPrecondition(
                f"the Docker daemon at {self._options.host} cannot limit {', '.join(missing)}; run it with control "
                "groups for memory and pids",
                reason="ISOLATION_UNAVAILABLE",
                attributable="infra",
            )
        await self.reap(frozenset())
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        async with asyncio.timeout(self._options.call_seconds):
            await self._listening.wait()
        detail = await self._probe()
        return BackendInfo(backend="docker", isolation=self._specs.isolation(), detail=detail)

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> DockerBox:
        """Make a sandbox; see `Backend.create`."""
        making = asyncio.get_running_loop().create_task(self._make(spec, on_lost))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # The daemon cannot be stopped half-way: what it makes in the end is removed.
            undoing = asyncio.get_running_loop().create_task(_undo(making))
            self._cleaning.add(undoing)
            undoing.add_done_callback(self._cleaning.discard)
            await asyncio.wait({undoing}, timeout=_CANCEL_SECONDS)
            raise

    async def reap(self, known: frozenset[str]) -> int:
        """Remove remains; see `Backend.reap`."""
        assert self._name is not None
        sdk = self._engine.sdk
        try:
            found: list[dict[str, Any]] = await self._engine.call(
                "list containers", sdk.containers, all=True, filters={"label": [MANAGER_LABEL]}
            )
        except (Refused, Unavailable) as error:
            log.warning("the Docker daemon lists no containers", extra={"error": str(error)})
            return 0
        keep = (
            {container_name(sandbox_id) for sandbox_id in known} | self._making | set(self._boxes)
        )
        reaped = 0
        for container in found:
            name = name_of(container)
            whose = name.partition(HELPER_MARK)[0]
            if whose in keep or not self._is_remains(container["Labels"]):
                continue
            with contextlib.suppress(Unavailable):
                await self._remove(name)
                reaped += ID_LABEL in container["Labels"]
        return reaped

    def live_count(self) -> int:
        """Count live sandboxes; see `Backend.live_count`."""
        return len(self._live)

    async def close(self) -> None:
        """Stop; see `Backend.close`."""
        for box in list(self._boxes.values()):
            await box.destroy()
        if self._cleaning:
            await asyncio.wait(set(self._cleaning))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._engine.close()
        self._folder.release()

    async def _make(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> DockerBox:
        assert self._specs is not None and self._killer is not None
        container = container_name(spec.sandbox_id)
        image = spec.template.image or self._options.image
        self._making.add(container)
        try:
            image_id = await self._image_id(image)
            arguments = self._specs.arguments(spec, image_id, self._clock())
            await self._engine.call(
                "create a container", self._engine.sdk.create_container, **arguments
            )
            self._live.add(container)
            box = self._box(spec, container, image_id, on_lost)
            self._boxes[container] = box
            await self._engine.call("start a container", self._engine.sdk.start, container)
            if spec.snapshot is not None:
                await box.restore(spec.snapshot)
            return box
        except BaseException as error:  # also when cancelled: nothing may be left of it
            if container in self._boxes:
                await self._boxes[container].destroy()
            elif not isinstance(error, FailedPrecondition):
                await self._remove_for_good(container)
            if isinstance(error, Missing | BoxLost):
                raise Unavailable(f"sandbox could not be made: {error}") from error
            if isinstance(error, Refused):
                raise FailedPrecondition(
                    f"sandbox could not be made from {image}: {error}", attributable="infra"
                ) from error
            raise
        finally:
            self._making.discard(container)

    def _box(
        self, spec: BoxSpec, container: str, image_id: str, on_lost: Callable[[str], None]
    ) -> DockerBox:
        assert self._specs is not None and self._killer is not None
        user, group = self._options.user_and_group()
        return DockerBox(
            spec.sandbox_id,
            container=container,
            image_id=image_id,
            engine=self._engine,
            killer=self._killer,
            files=ContainerFiles(self._engine, container, user, group, self._folder.path),
            user=user,
            writable=WRITABLE,
            can_wreck_root=self._options.writable_root,
            remove=partial(self._remove_for_good, container),
            on_lost=on_lost,
        )

    async def _image_id(self, image: str) -> str:
        if image not in self._images:
            try:
                found = await self._engine.call(
                    "inspect an image", self._engine.sdk.inspect_image, image
                )
            except Refused as error:
                raise FailedPrecondition(
                    f"image {image!r} is not there: {error.message}; docker pull it where the daemon runs",
                    reason="IMAGE_MISSING",
                    attributable="infra",
                ) from error
            self._images[image] = str(found["Id"])
        return self._images[image]

    def _is_remains(self, labels: dict[str, str]) -> bool:
        """Say whether a container that is not in use here may be removed from here."""
        assert self._name is not None
        name = ManagerName.parse(labels[MANAGER_LABEL])
        if name is None or name == self._name or self._name.knows_dead(name):
            return True
        deadline = labels.get(DEADLINE_LABEL, "")
        return deadline.isdigit() and self._clock() > int(deadline) + _PAST_DEADLINE_SECONDS

    async def _remove(self, container: str) -> None:
        """Remove a container with what is in it; one that is gone is no error."""
        try:
            await self._engine.call(
                "remove a container",
                self._engine.sdk.remove_container,
                container,
                force=True,
                v=True,
            )
        except Missing:
            pass
        except Refused as error:  # somebody else removes it already
            raise Unavailable(f"container {container}: {error}") from error
        self._live.discard(container)

    async def _remove_for_good(self, container: str) -> None:
        for attempt in range(_REMOVALS):
            try:
                await self._remove(container)
                break
            except Unavailable as error:
                extra = {"container": container, "attempt": attempt, "error": str(error)}
                log.warning("container not removed; reaping tries again", extra=extra)
        self._boxes.pop(container, None)

    async def _watch(self) -> None:
        """Hear of deaths and of kills for memory; look around after every gap."""
        assert self._name is not None
        while True:
            try:
                async for event in self._engine.events(f"{MANAGER_LABEL}={self._name}"):
                    if not event:
                        self._listening.set()
                        await self._look_around()
                    else:
                        self._take(event)
            except (HoneError, Refused) as error:
                log.warning("no events from the Docker daemon", extra={"error": str(error)})
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _look_around(self) -> None:
        """Find boxes that died while nobody listened."""
        boxes = {name: box for name, box in self._boxes.items() if name not in self._making}
        if not boxes:
            return
        found = await self._engine.call(
            "list containers", self._engine.sdk.containers, filters={"label": [MANAGER_LABEL]}
        )
        running = {name_of(container) for container in found}
        for name, box in boxes.items():
            if name not in running:
                box.note_death()

    def _take(self, event: dict[str, Any]) -> None:
        attributes = event["Actor"]["Attributes"]
        box = self._boxes.get(attributes.get("name", ""))
        if event["Action"] == "destroy":
            self._live.discard(attributes.get("name", ""))
        if box is None:
            return
        if event["Action"] == "oom":
            box.note_oom()
        elif event["Action"] in ("die", "destroy"):
            box.note_death()

    async def _probe(self) -> str:
        """Make one sandbox, run a shell in it and kill it; choose how commands are killed here.

        Raises:
            FailedPrecondition: this daemon cannot make sandboxes that are usable.
        """
        assert self._specs is not None
        engine, options = self._engine, self._specs.helper_options()
        ways: dict[str, Killer] = {
            "from beside": Beside(engine, options, self._options.call_seconds),
            "from within": Within(engine, self._options.user),
        }
        problems: list[str] = []
        for way, self._killer in ways.items():
            problem = await self._problem()
            if not problem:
                return f"commands are killed {way}" + (
                    f" ({'; '.join(problems)})" if problems else ""
                )
            problems.append(f"{way}: {problem}")
        raise FailedPrecondition(
            f"the Docker daemon at {self._options.host} makes no usable sandboxes: {'; '.join(problems)}; needed are "
            f"/bin/sh in the image {self._options.image}, and exec and init of the runtime {self._specs.runtime}",
            reason="ISOLATION_UNAVAILABLE",
            attributable="infra",
        )

    async def _problem(self) -> str:
        """Return what does not work with the killer that is set; nothing if all does."""
        spec = BoxSpec(sandbox_id=f"probe-{self._make_name()[:12]}")
        try:
            box = await self.create(spec, lambda _: None)
        except Unavailable as error:
            return error.message
        try:
            async with asyncio.timeout(_PROBE_KILL_SECONDS):
                hello = await box.run(
                    replace(_STOPPED, argv=("/bin/sh", "-c", ":"), timeout_seconds=10.0),
                    DEFAULT_ENV,
                    None,
                )
                if hello.exit_code or hello.termination is not Termination.EXITED:
                    return f"/bin/sh: {hello.termination}, {hello.stderr.decode(errors='replace').strip()}"
                stopped = await box.run(_STOPPED, DEFAULT_ENV, None)
        except (TimeoutError, BoxLost, Unavailable) as error:
            return f"a stopped command is not killed: {error}"
        finally:
            await box.destroy()
        return (
            "" if stopped.termination is Termination.TIMED_OUT else f"ended {stopped.termination}"
        )


async def _undo(making: asyncio.Task[DockerBox]) -> None:
    with contextlib.suppress(HoneError):
        await (await making).destroy()
