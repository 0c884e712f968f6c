"""Dr. GRPO: GRPO without its two biases (arXiv:2503.20783).

A_i = r_i - mean(r)          no division by std(r), which favours tasks that are nearly always right or wrong
token losses are divided by a constant and not by the rollout's length, which favours long wrong answers
"""

from collections.abc import Sequence

import torch

from learner.training.algorithms.grpo import centred


def advantages(groups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the advantages of each group."""
    return [centred(rewards_G) for rewards_G in groups]
