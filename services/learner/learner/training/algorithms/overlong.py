"""The soft overlong penalty (DAPO, arXiv:2503.14476 eq. 13), added to a rollout's score.

0                                  up to max - buffer policy tokens
((max - buffer) - length) / buffer up to max
-1                                 beyond
"""


def overlong_penalty(length: int, *, longest: int, buffer: int) -> float:
    """Returns the penalty, from -1 to 0, of a rollout of `length` policy tokens; a buffer of 0 means none."""
    if buffer == 0 or length <= longest - buffer:
        return 0.0
    if length > longest:
        return -1.0
    return ((longest - buffer) - length) / buffer
