"""How a memory's utility learns from a reward (MemRL, Zhang et al. 2026, arXiv:2601.03192)."""


def updated(
    utility: float,
    *,
    reward: float,
    learning_rate: float,
    discount: float = 0.0,
    max_next_utility: float = 0.0,
) -> float:
    """Return Q after one reward: (1 - alpha) Q + alpha (r + gamma max Q').

    With gamma = 0, MemRL's own case, this is Q + alpha (r - Q): a moving average of the rewards.

    Args:
        utility: Q, finite.
        reward: r, finite.
        learning_rate: alpha, above 0 and at most 1.
        discount: gamma, from 0 to 1.
        max_next_utility: max Q', the highest utility among what the next state recalls.
    """
    target = reward + discount * max_next_utility
    return (1 - learning_rate) * utility + learning_rate * target
