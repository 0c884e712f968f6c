"""Remembers the calls of recent rollouts, so that a repeated call returns the first result and runs nothing.

In memory and bounded: the oldest rollouts go first, never one with a call in flight. After a restart a calculator call
would run again, to the same result; a sandbox call would not, because its exec_id is its tool_call_id and the sandbox
service remembers that.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from servicekit.errors import FailedPrecondition
from tool_gateway.tools.base import ToolOutput


class CallLedger:
    """Calls by rollout and tool_call_id, running or done."""

    def __init__(self, *, max_rollouts: int, max_calls: int) -> None:
        """Start empty.

        Args:
            max_rollouts: rollouts that are remembered.
            max_calls: calls that are remembered per rollout.
        """
        self._max_rollouts = max_rollouts
        self._max_calls = max_calls
        self._rollouts: OrderedDict[str, OrderedDict[str, asyncio.Task[ToolOutput]]] = OrderedDict()
        self._epochs: OrderedDict[str, int] = OrderedDict()

    def admit(self, rollout_id: str, epoch: int) -> None:
        """Note a call under an epoch.

        Raises:
            FailedPrecondition: a newer epoch of the rollout was seen.
        """
        newest = self._epochs.get(rollout_id, epoch)
        if epoch < newest:
            raise FailedPrecondition(
                f"epoch {epoch} of rollout {rollout_id} is old; {newest} is the newest seen here",
                reason="EPOCH_OLD",
            )
        self._epochs[rollout_id] = epoch
        self._epochs.move_to_end(rollout_id)
        while len(self._epochs) > 4 * self._max_rollouts:
            self._epochs.popitem(last=False)

    async def once(
        self, rollout_id: str, tool_call_id: str, run: Callable[[], Coroutine[Any, Any, ToolOutput]]
    ) -> ToolOutput:
        """Return the first result of a call, running it if it is new.

        A call goes on when its caller goes away, so that a repeated request finds its result. A call that ended in an
        error of ours is forgotten.
        """
        calls = self._rollouts.setdefault(rollout_id, OrderedDict())
        self._rollouts.move_to_end(rollout_id)
        task = calls.get(tool_call_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(run(), name=f"tool call {tool_call_id}")
            calls[tool_call_id] = task
            self._forget_calls(calls)
            self._forget_rollouts()
        try:
            return await asyncio.shield(task)
        finally:
            failed = task.done() and not task.cancelled() and task.exception() is not None
            if failed and calls.get(tool_call_id) is task:
                del calls[tool_call_id]

    async def drain(self) -> None:
        """Wait until no call is running."""
        running = [
            task for calls in self._rollouts.values() for task in calls.values() if not task.done()
        ]
        await asyncio.gather(*running, return_exceptions=True)

    def _forget_calls(self, calls: OrderedDict[str, asyncio.Task[ToolOutput]]) -> None:
        done = [name for name, task in calls.items() if task.done()]
        for name in done[: max(0, len(calls) - self._max_calls)]:
            del calls[name]

    def _forget_rollouts(self) -> None:
        for rollout_id in list(self._rollouts):
            if len(self._rollouts) <= self._max_rollouts:
                break
            if all(task.done() for task in self._rollouts[rollout_id].values()):
                del self._rollouts[rollout_id]
