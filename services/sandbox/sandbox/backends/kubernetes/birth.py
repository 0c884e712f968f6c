"""One pod on its way to being ready: what the watch says of it, turned into a result or a typed error."""

import asyncio
import re

from sandbox.backends.agent_client import AgentLost
from sandbox.backends.kubernetes.api import ApiStatus, ApiUnreachable, Object
from sandbox.backends.kubernetes.errors import typed
from sandbox.backends.protocol import BoxLost
from sandbox.backends.verdict import DEAD, State, Verdict
from servicekit.errors import FailedPrecondition, HoneError, ResourceExhausted, Unavailable

_UNSCHEDULABLE_RETRY_SECONDS = 10.0
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|no such image|does not exist|InvalidImageName|ErrImageNeverPull"
    r"|invalid reference|couldn't parse image",
    re.IGNORECASE,
)


class Birth:
    """Waits for one object."""

    def __init__(self, name: str, unschedulable_seconds: float) -> None:
        """Waits at most so long for a node that has room."""
        self.name = name
        self.last_error: ApiStatus | ApiUnreachable | None = None
        """Why the object could not be made so far."""
        self._unschedulable_seconds = unschedulable_seconds
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Object] = loop.create_future()
        self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._giving_up: asyncio.TimerHandle | None = None

    async def ready(self) -> Object:
        """Return the object once it is ready.

        Raises:
            HoneError: it never will be.
        """
        return await asyncio.shield(self._ready)

    def see(self, found: Object, verdict: Verdict) -> None:
        """Take note of the object's state."""
        if verdict.state is State.UNSCHEDULABLE:
            self._give_up_later(verdict.text)
            return
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        if verdict.state is State.READY and not self._ready.done():
            self._ready.set_result(found)
        elif verdict.state is State.NO_IMAGE:
            self.fail(_no_image(self.name, verdict.text))
        elif verdict.state in DEAD:
            self.fail(Unavailable(f"pod {self.name} failed: {verdict.text}", reason="POD_FAILED"))

    def fail(self, error: HoneError) -> None:
        """End the wait."""
        if not self._ready.done():
            self._ready.set_exception(error)

    def explain(self, error: BaseException, seconds: float) -> BaseException:
        """Return what a creation that failed so, with `seconds` to succeed, means to whoever asked."""
        if isinstance(error, HoneError) or not isinstance(error, Exception):
            return error
        if isinstance(error, TimeoutError):
            if self.last_error is not None:
                return typed(self.last_error, f"pod {self.name}")
            text = f"pod {self.name} was not ready within {seconds:g} s"
            return Unavailable(text, reason="PROVISION_TIMEOUT")
        if isinstance(error, ApiStatus | ApiUnreachable):
            return typed(error, f"pod {self.name}")
        if isinstance(error, AgentLost | BoxLost):
            return Unavailable(f"pod {self.name}: {error}", reason="POD_FAILED")
        return error

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._ready.cancel()

    def _give_up_later(self, text: str) -> None:
        if self._giving_up is None:
            error = ResourceExhausted(
                f"no node has room for pod {self.name}: {text}",
                reason="UNSCHEDULABLE",
                retry_after_seconds=_UNSCHEDULABLE_RETRY_SECONDS,
            )
            self._giving_up = asyncio.get_running_loop().call_later(
                self._unschedulable_seconds, self.fail, error
            )


def _no_image(name: str, text: str) -> HoneError:
    if _NO_SUCH_IMAGE.search(text):
        return FailedPrecondition(
            f"pod {name}: its image does not exist, {text}",
            reason="IMAGE_UNKNOWN",
            attributable="infra",
        )
    return Unavailable(f"pod {name}: its image cannot be pulled, {text}", reason="IMAGE_PULL")
