"""Lets calls in: a token against the rollout and the sandbox that it names, and the lease while a call is inside."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.access import Gate, require_purpose
from sandbox.backends.protocol import BackendInfo, BoxLost
from sandbox.fleet.entry import Entry
from sandbox.fleet.fleet import Fleet
from sandbox.refusals import gone
from sandbox.types import Caller, Cause, Feature
from servicekit.errors import FailedPrecondition, NotFound, PermissionDenied


class Door:
    """Stands between every call and the sandboxes."""

    def __init__(self, fleet: Fleet, gate: Gate) -> None:
        """Finds sandboxes in `fleet`; `gate` knows the newest epochs."""
        self._fleet = fleet
        self._gate = gate
        self._calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    def admit(self, caller: Caller, rollout_id: str, *, operator_may: bool = False) -> None:
        """Let a call about a rollout pass, or raise; see `Gate.admit`."""
        self._gate.admit(caller, rollout_id, operator_may=operator_may)

    def use(self, caller: Caller, rollout_id: str, sandbox_id: str) -> Entry:
        """Return a sandbox that the caller may use, its lease renewed.

        Raises:
            PermissionDenied, FailedPrecondition: the caller may not.
            NotFound, Unavailable: it does not live.
        """
        self._gate.admit(caller, rollout_id)
        entry = self.living(rollout_id, sandbox_id)
        require_purpose(caller, entry.record.key.purpose)
        entry.lease.renew()
        return entry

    def living(self, rollout_id: str, sandbox_id: str) -> Entry:
        """Return a sandbox of a rollout.

        Raises:
            PermissionDenied: it belongs to another.
            NotFound, FailedPrecondition, Unavailable: it does not live; says why.
        """
        found = self._fleet.find(sandbox_id)
        if found is None:
            raise NotFound(f"no sandbox {sandbox_id!r} is known here", reason="SANDBOX_UNKNOWN")
        if isinstance(found, Entry):
            check_owner(rollout_id, sandbox_id, found.record.key.rollout_id)
            return found
        check_owner(rollout_id, sandbox_id, found.key.rollout_id)
        raise gone(found)

    @contextmanager
    def inside(
        self, caller: Caller, rollout_id: str, sandbox_id: str, feature: Feature | None = None
    ) -> Iterator[Entry]:
        """Give a sandbox to a call that works in it, and keep its lease meanwhile.

        Raises:
            FailedPrecondition: its backend does not have the feature (reason UNSUPPORTED).
        """
        entry = self.use(caller, rollout_id, sandbox_id)
        if feature is not None:
            require_feature(entry.backend, feature)
        with self.counted(), entry.lease.in_use():
            try:
                yield entry
            except BoxLost as error:
                raise ended(entry) from error

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a call that a drain waits for."""
        self._calls += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._quiet.set()

    @property
    def is_quiet(self) -> bool:
        """Whether no call is inside."""
        return not self._calls

    async def quiet(self) -> None:
        """Wait until no call is inside."""
        await self._quiet.wait()


def ended(entry: Entry) -> Exception:
    """Return why a sandbox that was alive when the call began is not any more."""
    return gone(entry.record_with(entry.cause or Cause.MANAGER_LOST))


def require_feature(info: BackendInfo, feature: Feature) -> None:
    """Refuse what a backend does not have.

    Raises:
        FailedPrecondition: it has not (reason UNSUPPORTED).
    """
    if feature not in info.features:
        raise FailedPrecondition(
            f"the backend {info.backend} has no {feature}; it has "
            f"{', '.join(sorted(info.features)) or 'none of the optional features'}",
            reason="UNSUPPORTED",
        )


def check_owner(rollout_id: str, sandbox_id: str, owner: str) -> None:
    """Refuse a sandbox that belongs to another rollout.

    Raises:
        PermissionDenied: it does.
    """
    # An operator names the rollout too: a mistaken id must not end somebody else's sandbox.
    if owner != rollout_id:
        raise PermissionDenied(
            f"sandbox {sandbox_id} belongs to another rollout than {rollout_id}",
            reason="WRONG_ROLLOUT",
        )
