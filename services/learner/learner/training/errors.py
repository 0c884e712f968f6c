"""What can go wrong in a step."""

from collections.abc import Sequence


class NonFiniteStep(ArithmeticError):
    """Loss or gradient was not finite; the weights are as they were before the step."""

    def __init__(self, what: str, rollout_ids: Sequence[str] = ()) -> None:
        """Says what was not finite, and which rollouts were in the step."""
        super().__init__(f"{what}; the weights are unchanged")
        self.what = what
        self.rollout_ids = tuple(rollout_ids)

    def __reduce__(self) -> tuple[type["NonFiniteStep"], tuple[str, tuple[str, ...]]]:
        """Lets it travel between processes."""
        return NonFiniteStep, (self.what, self.rollout_ids)
