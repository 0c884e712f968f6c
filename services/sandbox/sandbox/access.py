"""Who may do what: the rollout token of a call against the rollout and the sandbox that it names.

A newer epoch means that the rollout was claimed again; whoever holds an older one was replaced and may do nothing.
"""

from collections import OrderedDict

from sandbox.types import Caller, Purpose, Role
from servicekit.errors import FailedPrecondition, PermissionDenied

REMEMBERED_ROLLOUTS = 100_000
"""Newest epochs are remembered for this many rollouts, the least recently seen forgotten first."""


class Gate:
    """Remembers the newest epoch of each rollout and lets nobody with an older one pass."""

    def __init__(self, capacity: int = REMEMBERED_ROLLOUTS) -> None:
        """Starts without knowledge; `learn` adds what an earlier manager knew."""
        self._capacity = capacity
        self._epochs: OrderedDict[str, int] = OrderedDict()

    def learn(self, rollout_id: str, epoch: int) -> None:
        """Note that an epoch of a rollout exists."""
        self._epochs[rollout_id] = max(epoch, self._epochs.get(rollout_id, epoch))
        self._epochs.move_to_end(rollout_id)
        if len(self._epochs) > self._capacity:
            self._epochs.popitem(last=False)

    def admit(self, caller: Caller, rollout_id: str, *, operator_may: bool = False) -> None:
        """Let a call about a rollout pass, or raise.

        Raises:
            PermissionDenied: the token is for another rollout, or an operator's where none is of use.
            FailedPrecondition: a newer epoch of the rollout exists (reason EPOCH_OLD).
        """
        if caller.role is Role.OPERATOR:
            if operator_may:
                return
            raise PermissionDenied(
                "role operator may list and destroy sandboxes, not use them", reason="WRONG_ROLE"
            )
        if caller.rollout_id != rollout_id:
            raise PermissionDenied(
                f"the token is for rollout {caller.rollout_id}, the call is about {rollout_id}",
                reason="WRONG_ROLLOUT",
            )
        newest = self._epochs.get(rollout_id, caller.epoch)
        if caller.epoch < newest:
            raise FailedPrecondition(
                f"rollout {rollout_id}: the token's epoch is {caller.epoch}, epoch {newest} exists; "
                "another executor has taken over, stop",
                reason="EPOCH_OLD",
            )
        self.learn(rollout_id, caller.epoch)


def require_operator(caller: Caller) -> None:
    """Refuse everyone but operators.

    Raises:
        PermissionDenied: the role is another.
    """
    if caller.role is not Role.OPERATOR:
        raise PermissionDenied(
            f"role {caller.role} may not do this; it needs an operator's token", reason="WRONG_ROLE"
        )


def require_purpose(caller: Caller, purpose: Purpose) -> None:
    """Keep agents out of grading boxes: what lies there decides their reward.

    Raises:
        PermissionDenied: an agent's token meets a grading box.
    """
    if purpose is Purpose.GRADE and caller.role is Role.AGENT:
        raise PermissionDenied(
            "role agent may not touch a sandbox of purpose grade; it needs a grader's token",
            reason="WRONG_ROLE",
        )
