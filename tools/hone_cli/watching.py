"""Follows a run to its end: survives a restart of the learner, and turns Ctrl-C into a clean stop."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from hone.learner.v1 import learner_pb2, learner_pb2_grpc

from hone_cli.addresses import AddressBook
from hone_cli.errors import UNREACHABLE, CliError, service_error
from hone_cli.runview import RunView
from servicekit.channels import connect
from servicekit.errors import Cancelled, HoneError, Unavailable

_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 5.0
_PATIENCE_SECONDS = 600.0
_STOP_TIMEOUT_SECONDS = 24 * 3600.0


class RunSource(Protocol):
    """Where reports of a run come from."""

    def watch(self, run_id: str) -> AsyncIterator[learner_pb2.WatchRunResponse]:
        """Everything that happened and happens; typed errors."""
        ...

    async def stop(self, run_id: str) -> None:
        """Stops the run once no update is under way; returns when it has stopped."""
        ...

    def address(self) -> str:
        """Where it is, for sentences."""
        ...


class LearnerSource:
    """The learner, looked up anew for each connection."""

    def __init__(self, book: AddressBook) -> None:
        """Connects when asked."""
        self._book = book

    async def watch(self, run_id: str) -> AsyncIterator[learner_pb2.WatchRunResponse]:
        """Yields the learner's reports."""
        async with connect(self._book.find("learner")) as channel:
            stub = learner_pb2_grpc.LearnerServiceStub(channel)
            async for response in stub.WatchRun(learner_pb2.WatchRunRequest(run_id=run_id)):
                yield response

    async def stop(self, run_id: str) -> None:
        """Asks the learner to stop the run."""
        async with connect(self._book.find("learner")) as channel:
            stub = learner_pb2_grpc.LearnerServiceStub(channel)
            await stub.StopRun(
                learner_pb2.StopRunRequest(run_id=run_id), timeout=_STOP_TIMEOUT_SECONDS
            )

    def address(self) -> str:
        """The present address, as far as known."""
        with contextlib.suppress(CliError):
            return self._book.find("learner")
        return "its address"


@dataclass(slots=True)
class StopButton:
    """Counts presses of Ctrl-C."""

    presses: int = 0
    pressed: asyncio.Event | None = None

    def press(self) -> None:
        """Called by the signal handler."""
        self.presses += 1
        if self.pressed is not None:
            self.pressed.set()


class LeftRunError(Exception):
    """The watcher left on a second Ctrl-C; the run goes on stopping without it."""


class Watcher:
    """Follows one run."""

    def __init__(
        self,
        source: RunSource,
        run_id: str,
        view: RunView,
        button: StopButton,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Does nothing yet; see `follow`."""
        self._source = source
        self._run_id = run_id
        self._view = view
        self._button = button
        self._clock = clock
        self._pause = pause
        self._last_step = -1
        self._stopping = False

    async def follow(self) -> learner_pb2.Run:
        """Returns the run as it ended.

        Raises:
            CliError: the learner stayed away, or knows no such run.
            LeftRunError: Ctrl-C was pressed twice.
        """
        self._button.pressed = asyncio.Event()
        following = asyncio.create_task(self._follow())
        stopping: asyncio.Task[None] | None = None
        try:
            while True:
                pressed = asyncio.create_task(self._button.pressed.wait())
                await asyncio.wait({following, pressed}, return_when=asyncio.FIRST_COMPLETED)
                pressed.cancel()
                if following.done():
                    return following.result()
                self._button.pressed.clear()
                if self._button.presses > 1:
                    raise LeftRunError
                self._stopping = True
                self._view.note(
                    "stopping; an update under way is finished first "
                    "(Ctrl-C again leaves without waiting)"
                )
                stopping = asyncio.create_task(self._ask_to_stop())
        finally:
            for task in (following, stopping):
                if task is not None:
                    task.cancel()
            await asyncio.gather(
                following, *([stopping] if stopping else []), return_exceptions=True
            )

    async def _ask_to_stop(self) -> None:
        try:
            await self._source.stop(self._run_id)
        except HoneError as error:
            self._view.note(f"the learner could not be asked to stop: {error.message}")
        except CliError as error:
            self._view.note(f"the learner could not be asked to stop: {error}")

    async def _follow(self) -> learner_pb2.Run:
        """Reads reports, connecting again when the learner goes away."""
        away_since: float | None = None
        wait = _FIRST_WAIT_SECONDS
        while True:
            cause: Exception | None = None
            try:
                async for response in self._source.watch(self._run_id):
                    if away_since is not None:
                        self._view.note("the learner is back; the run goes on")
                        away_since, wait = None, _FIRST_WAIT_SECONDS
                    ended = self._take(response)
                    if ended is not None:
                        return ended
            except (Unavailable, Cancelled) as error:
                cause = error
            except CliError as error:
                if error.exit_code != UNREACHABLE:
                    raise
                cause = error
            except HoneError as error:
                raise service_error(error, "learner", self._source.address()) from error
            now = self._clock()
            if away_since is None:
                away_since = now
                self._view.note(
                    f"the learner at {self._source.address()} went away; waiting for it to come back"
                )
            if now - away_since > _PATIENCE_SECONDS:
                raise CliError(
                    f"the learner stayed away for {_PATIENCE_SECONDS / 60:.0f} minutes; start the "
                    f"suite with `hone up`, then `hone train --resume {self._run_id}`",
                    UNREACHABLE,
                ) from cause
            await self._pause(wait)
            wait = min(wait * 2, _LONGEST_WAIT_SECONDS)

    def _take(self, response: learner_pb2.WatchRunResponse) -> learner_pb2.Run | None:
        """Shows one report; a step told again after a reconnection is shown once."""
        match response.WhichOneof("event"):
            case "step":
                if response.step.step > self._last_step:
                    self._last_step = response.step.step
                    self._view.step(response.step)
            case "progress":
                self._view.progress(response.progress)
            case "ended":
                return response.ended
        return None
