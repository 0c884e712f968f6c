"""What callers are told about sandboxes that are gone or will not be made."""

from sandbox.fleet.records import SandboxRecord
from sandbox.types import BoxKey, Cause
from servicekit.errors import FailedPrecondition, HoneError, NotFound, Unavailable


def gone(record: SandboxRecord) -> HoneError:
    """Return what a call about a sandbox that is gone is answered."""
    name = f"sandbox {record.sandbox_id}"
    if record.cause is Cause.MANAGER_LOST:
        return Unavailable(
            f"{name} was lost with the process that held it; start a new attempt",
            reason="SANDBOX_LOST",
        )
    if record.cause is Cause.LIFETIME:
        return FailedPrecondition(f"{name} is past its lifetime", reason="ROLLOUT_TIMEOUT")
    return NotFound(f"{name} was destroyed, cause {record.cause}", reason="SANDBOX_DESTROYED")


def rollout_ended(rollout_id: str) -> HoneError:
    """Return the answer to a create for a rollout whose outcome is known."""
    return FailedPrecondition(
        f"rollout {rollout_id} has ended; it gets no other sandbox", reason="ROLLOUT_ENDED"
    )


def had_one(key: BoxKey, record: SandboxRecord) -> HoneError:
    """Return the answer to a create for an agent whose sandbox is gone."""
    return FailedPrecondition(
        f"rollout {key.rollout_id} had sandbox {record.sandbox_id}, destroyed with cause "
        f"{record.cause}; it gets no other, which needs another rollout_id",
        reason="SANDBOX_ENDED",
    )


def run_cancelled(run_id: str) -> HoneError:
    """Return the answer to a create that was stopped with all others of its run."""
    return FailedPrecondition(
        f"the sandboxes of run {run_id} were destroyed while this one was being made",
        reason="RUN_CANCELLED",
    )


def stopping() -> HoneError:
    """Return the answer to a create that came too late."""
    return Unavailable("the sandbox service is stopping", reason="DRAINING")


def snapshot_mismatch(snapshot_id: str, what: str) -> HoneError:
    """Return the answer to a create from a snapshot that was taken of something else."""
    return FailedPrecondition(
        f"snapshot {snapshot_id} was taken from a sandbox of another {what}; a sandbox starts only from a snapshot "
        "of its own template and backend",
        reason="SNAPSHOT_MISMATCH",
    )
