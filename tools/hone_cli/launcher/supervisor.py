"""Keeps a set of processes running: starts them in waves, restarts what crashes, drains in order."""

import asyncio
import time
from collections.abc import Callable, Sequence

from hone_cli.launcher.child import Child, ProcessSpec
from hone_cli.launcher.logtail import last_complaint
from hone_cli.launcher.restarts import MAX_CRASHES, WINDOW_SECONDS, RestartPolicy

Say = Callable[[str, str], None]
"""Prints a sentence about a process: text, level."""

_READY_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 20.0
HEALTHY_SECONDS = 60.0


class Supervisor:
    """Runs processes until told to stop or until one of them cannot be kept running."""

    def __init__(
        self,
        waves: Sequence[Sequence[ProcessSpec]],
        drain_order: Sequence[str],
        *,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
        policy: Callable[[], RestartPolicy] = RestartPolicy,
    ) -> None:
        """Starts nothing yet.

        Args:
            waves: started one after the other, each when all of the one before are ready.
            drain_order: names in the order of draining; replicas NAME-2 and so on go with NAME.
            say: prints what people should know.
            clock: monotonic seconds.
            policy: makes the restart policy of each process.
        """
        self._waves = [[Child(spec) for spec in wave] for wave in waves]
        self._drain_order = drain_order
        self._say = say
        self._clock = clock
        self._policies = {child.spec.name: policy() for child in self.children}
        self._draining: set[str] = set()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self.gave_up: str = ""
        """Why the suite cannot go on; empty as long as it can."""

    @property
    def children(self) -> list[Child]:
        """All processes in the order of starting."""
        return [child for wave in self._waves for child in wave]

    def stop(self) -> None:
        """Begins to drain; a second call kills what is left."""
        if self._stop.is_set():
            self._say("stopping at once", "WARNING")
            for child in self.children:
                self._draining.add(child.spec.name)
                child.kill()
        self._stop.set()
        self._wake.set()

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Runs everything; returns 0 after a drain that was asked for, 1 after giving up.

        Args:
            on_ready: called once, when every process answers.
        """
        async with asyncio.TaskGroup() as tasks:
            try:
                if await self._start_all(tasks):
                    on_ready()
                    await self._wake.wait()
            finally:
                await self._drain()
        return 1 if self.gave_up else 0

    async def _start_all(self, tasks: asyncio.TaskGroup) -> bool:
        """Starts wave by wave; returns False if it was told to stop or gave up on the way."""
        for wave in self._waves:
            for child in wave:
                tasks.create_task(self._keep(child), name=child.spec.name)
            for child in wave:
                if not await self._until_ready(child):
                    return False
        return True

    async def _until_ready(self, child: Child) -> bool:
        begun = self._clock()
        next_word = begun + _PATIENCE_SECONDS
        while not self._wake.is_set():
            probe = child.spec.ready
            if child.running and (probe is None or await probe()):
                return True
            now = self._clock()
            if now >= next_word:
                next_word = now + _PATIENCE_SECONDS
                name, log = child.spec.name, child.spec.log_path
                self._say(f"still waiting for {name} ({now - begun:.0f} s); see {log}", "WARNING")
            await self._pause(_READY_POLL_SECONDS)
        return False

    async def _keep(self, child: Child) -> None:
        """Starts the process and starts it again until it is drained or crashes too often."""
        name = child.spec.name
        while not self._wake.is_set():
            try:
                await child.start()
            except OSError as error:
                self._give_up(f"{name} cannot be started: {error}")
                return
            if name in self._draining:
                child.kill()  # its turn to drain came while it was starting
            code = await child.wait()
            if name in self._draining or self._wake.is_set():
                return
            why = last_complaint(child.spec.log_path, child.log_offset)
            delay = self._policies[name].next_delay(self._clock())
            if delay is None:
                self._give_up(
                    f"{name} ended {MAX_CRASHES} times within {WINDOW_SECONDS:.0f} s; "
                    f"read {child.spec.log_path}{f' ({why})' if why else ''}"
                    f"{f'; {child.spec.hint}' if child.spec.hint else ''}"
                )
                return
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            reason = f" ({why})" if why else ""
            self._say(f"{name} ended {how}{reason}; starting it again in {delay:g} s", "WARNING")
            await self._pause(delay)

    async def _drain(self) -> None:
        """Stops everything in order; what has no place in the order goes last."""
        self._wake.set()
        left = self.children
        for name in self._drain_order:
            group = [child for child in left if _base(child.spec.name) == name]
            left = [child for child in left if child not in group]
            await asyncio.gather(*(self._drain_one(child) for child in group))
        await asyncio.gather(*(self._drain_one(child) for child in left))

    async def _drain_one(self, child: Child) -> None:
        name = child.spec.name
        if name in self._draining and not child.running:
            return
        self._draining.add(name)
        if child.running:
            self._say(f"stopping {name}", "INFO")
        if not await child.drain():
            seconds = child.spec.drain_seconds
            self._say(f"{name} did not stop within {seconds:g} s and was killed", "WARNING")

    def _give_up(self, why: str) -> None:
        if not self.gave_up and not self._stop.is_set():
            self.gave_up = why
            self._say(why, "ERROR")
        self._wake.set()

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not past the moment of being told to stop."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return


def _base(name: str) -> str:
    """The service of a process: rollout for rollout-2."""
    service, _, number = name.rpartition("-")
    return service if number.isdigit() else name
