"""DAPO: what GRPO needs for long chains of thought (arXiv:2503.14476).

    clip-higher          the ratio may rise further than it may fall: 1 - 0.2 to 1 + 0.28
    token-level loss     aggregation token_mean, eq. 12
    dynamic sampling     only groups with both right and wrong answers teach, eq. 11
    overlong shaping     a penalty that rises over the last tokens, eq. 13; see `overlong`

Advantages are GRPO's. Groups that teach nothing are left out of the averages too, as if they had not been sampled.
"""

from learner.training.algorithms.by_turn import Earned, members_differ


def teaches(groups: Earned) -> list[bool]:
    """Says for each group whether dynamic sampling keeps it: its rewards differ."""
    return [members_differ(group) for group in groups]
