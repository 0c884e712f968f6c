"""What can go wrong in a step."""

from collections.abc import Sequence


class NonFiniteStep(ArithmeticError):
    """Loss or gradient was not finite; the weights are as they were before the step."""

    def __init__(self, what: str, rollout_ids: Sequence[str] = ()) -> None:
        """Says what was not finite, and which rollouts were in the step."""
        super().__init__(f"{what}; the weights are unchanged")
        self.rollout_ids = tuple(rollout_ids)
