"""How token losses become one loss: a weight per row, the same for each of its policy tokens.

A rollout may have several rows, since a rewritten history forks; its rows average inside the rollout,
so a fork does not count twice. With K rows in rollout i, T_ik policy tokens in its row k, N rollouts:

    token_mean      1 / (K_i * sum_i (1 / K_i) * sum_k T_ik)    DAPO, arXiv:2503.14476
    sequence_mean   1 / (N * K_i * T_ik)                        GRPO, arXiv:2402.03300
    constant        1 / (N * K_i * max_tokens)                  Dr. GRPO, arXiv:2503.20783
"""

from collections.abc import Callable, Sequence

Counts = Sequence[Sequence[int]]
"""Per rollout the policy tokens of each of its rows; none is zero."""

Weights = list[list[float]]
"""Per rollout the weight of each of its rows."""


def token_mean(counts: Counts, max_tokens: int) -> Weights:
    """Weighs every policy token of the batch alike."""
    total = sum(sum(rows) / len(rows) for rows in counts)
    return [[1.0 / (len(rows) * total)] * len(rows) for rows in counts]


def sequence_mean(counts: Counts, max_tokens: int) -> Weights:
    """Weighs every rollout alike, whatever its length."""
    return [[1.0 / (len(counts) * len(rows) * count) for count in rows] for rows in counts]


def constant(counts: Counts, max_tokens: int) -> Weights:
    """Divides by the length that a rollout may have, so that no length is favoured."""
    return [[1.0 / (len(counts) * len(rows) * max_tokens)] * len(rows) for rows in counts]


AGGREGATIONS: dict[str, Callable[[Counts, int], Weights]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "constant": constant,
}
"""By the name that `train.loss_aggregation` gives."""
