"""What excess costs: factors and penalties for length and effort."""


def linear_share(excess: float, rate: float) -> float:
    """Return max(0, 1 - rate * max(0, excess)): the share of a reward that is left.

    Args:
        excess: units above what is free; below 0 there is no excess.
        rate: per unit, at least 0.
    """
    return max(0.0, 1.0 - rate * max(0.0, excess))


def soft_overlong(length: float, *, maximum: float, cache: float) -> float:
    """Return the soft overlong penalty, from -1 to 0.

    0 up to maximum - cache; then ((maximum - cache) - length) / cache down to -1 at the maximum; beyond it -1.
    Yu et al. 2025, DAPO, arXiv:2503.14476, equation 13 (L_max is the maximum, L_cache the cache).

    Args:
        length: of the response, in the units of the other two.
        maximum: longest length that is not refused.
        cache: above 0; the stretch before the maximum over which the penalty grows.
    """
    if length <= maximum - cache:
        return 0.0
    if length <= maximum:
        return (maximum - cache - length) / cache
    return -1.0
