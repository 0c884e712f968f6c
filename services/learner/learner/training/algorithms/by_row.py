"""Sums over the tokens of each row, given back to each token.

Shapes: P tokens, in any order; R rows among them.
"""

import torch


def row_sums(values_P: torch.Tensor, row_P: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns for each token the sum over its row, and how many tokens the row has."""
    rows, place_P = torch.unique(row_P, return_inverse=True)
    total_R = values_P.new_zeros(len(rows)).index_add(0, place_P, values_P)
    count_R = torch.bincount(place_P, minlength=len(rows))
    return total_R[place_P], count_R[place_P]
