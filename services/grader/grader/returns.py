"""Rewards of turns made into returns."""

import math
from collections.abc import Sequence


def total_reward(rewards: Sequence[float]) -> float:
    """Return the sum of the turns' rewards."""
    return math.fsum(rewards)


def returns_to_go(rewards: Sequence[float], gamma: float) -> tuple[float, ...]:
    """Return G_t = r_t + gamma G_(t+1) for each turn t; after the last turn the return is 0.

    Sutton and Barto, Reinforcement Learning, section 3.3. The first of them is the discounted return of the whole.

    Args:
        rewards: by turn.
        gamma: discount per turn, from 0 to 1.
    """
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return tuple(reversed(returns))
