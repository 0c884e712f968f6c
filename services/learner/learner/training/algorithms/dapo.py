"""DAPO: what GRPO needs for long chains of thought (arXiv:2503.14476).

    clip-higher          the ratio may rise further than it may fall: 1 - 0.2 to 1 + 0.28
    token-level loss     aggregation token_mean, eq. 12
    dynamic sampling     only groups with both right and wrong answers teach, eq. 11
    overlong shaping     a penalty that rises over the last tokens, eq. 13; see `overlong`

Advantages are GRPO's. Groups that teach nothing are left out of the averages too, as if they had not been sampled.

Shapes: G members of a group.
"""

from collections.abc import Sequence

import torch

from learner.training.algorithms.grpo import has_spread


def teaches(groups: Sequence[torch.Tensor]) -> list[bool]:
    """Says for each group whether dynamic sampling keeps it: its rewards differ."""
    return [has_spread(rewards_G) for rewards_G in groups]
