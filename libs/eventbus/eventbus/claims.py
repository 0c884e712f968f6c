"""Claims: who runs a rollout, until when, and under which epoch.

A claim is taken before any side effect and renewed while the work goes on. A lease that ran out is never taken up
to run the work again: whoever finds it takes the claim over only to report that the executor was lost.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from servicekit.errors import DataLoss


class ClaimState(StrEnum):
    """How far the claimed work got."""

    RUNNING = "running"
    COMMITTED = "committed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One version of a claim; `renew` and `commit` return the next."""

    rollout_id: str
    owner: str
    epoch: int
    """Counts owners, from 1. Work done under an older epoch is refused everywhere."""
    lease_seconds: float
    lease_deadline: float
    """Seconds since the epoch of time, by the clock of whoever wrote it."""
    state: ClaimState
    revision: int
    """Of the store's entry; 0 before it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """The claim is ours: do the work."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Somebody's lease is live: leave the work alone and look again after `remaining_seconds`."""

    claim: Claim
    remaining_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The lease ran out while the work was running: take the claim over and report the executor lost."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The work is done and told: there is nothing to do."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The executor is lost. Report it; the report's derived event id makes saying it again harmless."""

    claim: Claim


ClaimOutcome = Acquired | Held | Expired | Committed | Lost
"""What trying to claim finds."""

TakeOverOutcome = Lost | Held | Committed
"""What taking over finds: the claim is lost (by us or by somebody before us), or it turned out not to be."""


class Claims(Protocol):
    """Compare-and-set claims, one per rollout."""

    async def try_claim(self, rollout_id: str, owner: str, lease_seconds: float) -> ClaimOutcome:
        """Claims a rollout that nobody has claimed before; otherwise says what there is."""
        ...

    async def renew(self, claim: Claim) -> Claim:
        """Extends the lease by `claim.lease_seconds` from the clock's time.

        Raises:
            ClaimLost: the claim was taken over, committed or removed.
        """
        ...

    async def take_over(self, rollout_id: str, owner: str) -> TakeOverOutcome:
        """Marks an expired claim as lost under the next epoch, so that the old owner's renew and commit fail.

        Raises:
            NotFound: nobody has claimed the rollout.
        """
        ...

    async def commit(self, claim: Claim) -> Claim:
        """Marks the work as done. Committing again under the same owner and epoch changes nothing.

        Raises:
            ClaimLost: the claim was taken over or removed.
        """
        ...

    async def get(self, rollout_id: str) -> Claim | None:
        """Returns the claim as it stands."""
        ...


def encode_claim(claim: Claim, write_id: str) -> bytes:
    """Returns the entry as stored.

    Args:
        claim: What to store; its revision is the store's business.
        write_id: Unique per write, so that a writer whose answer got lost can recognise its own entry.
    """
    fields = {
        "owner": claim.owner,
        "epoch": claim.epoch,
        "lease_seconds": claim.lease_seconds,
        "lease_deadline": claim.lease_deadline,
        "state": claim.state.value,
        "write_id": write_id,
    }
    return json.dumps(fields, sort_keys=True).encode()


def decode_claim(rollout_id: str, value: bytes, revision: int) -> Claim:
    """Returns the claim that an entry holds.

    Raises:
        DataLoss: the entry is not a claim.
    """
    try:
        fields = json.loads(value)
        return Claim(
            rollout_id=rollout_id,
            owner=str(fields["owner"]),
            epoch=int(fields["epoch"]),
            lease_seconds=float(fields["lease_seconds"]),
            lease_deadline=float(fields["lease_deadline"]),
            state=ClaimState(fields["state"]),
            revision=revision,
        )
    except (ValueError, KeyError, TypeError) as err:
        raise DataLoss(
            f"claim of rollout {rollout_id}, revision {revision}, cannot be read ({err!r}): found "
            f"{value[:200]!r}",
            reason="CLAIM_UNREADABLE",
        ) from err


def new_claim(rollout_id: str, owner: str, lease_seconds: float, now: float) -> Claim:
    """Returns the first claim of a rollout, not yet written."""
    return Claim(
        rollout_id=rollout_id,
        owner=owner,
        epoch=1,
        lease_seconds=lease_seconds,
        lease_deadline=now + lease_seconds,
        state=ClaimState.RUNNING,
        revision=0,
    )


def renewed(claim: Claim, now: float) -> Claim:
    """Returns the claim with a fresh lease."""
    return replace(claim, lease_deadline=now + claim.lease_seconds)


def found(claim: Claim, now: float) -> Held | Expired | Committed | Lost:
    """Returns what an existing claim means to somebody who wants the work."""
    if claim.state is ClaimState.COMMITTED:
        return Committed(claim=claim)
    if claim.state is ClaimState.LOST:
        return Lost(claim=claim)
    remaining = claim.lease_deadline - now
    if remaining > 0:
        return Held(claim=claim, remaining_seconds=remaining)
    return Expired(claim=claim)


def same_tenure(held: Claim, current: Claim) -> bool:
    """Tells whether two versions are of one owner's one claim."""
    return held.owner == current.owner and held.epoch == current.epoch
