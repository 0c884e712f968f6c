"""Keys and values of prompts and turns already read, found again by token ids.

One cache belongs to one policy: keys and values made by other weights are never found, because
they lie in another cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A stored prefix and how much of it is shared."""

    keys_values: torch.Tensor
    """[layers, 2, heads, >= length, head size]."""
    length: int


@dataclass(slots=True)
class _Entry:
    token_ids: np.ndarray
    keys_values: torch.Tensor
    used: int


class PrefixCache:
    """The most recently used prefixes, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Starts empty."""
        self._max_bytes = max_bytes
        self._entries: list[_Entry] = []
        self._bytes = 0
        self._clock = 0

    def find(self, token_ids: np.ndarray) -> Match | None:
        """Returns the longest stored common prefix, at most all but the last token."""
        best: _Entry | None = None
        longest = 0
        for entry in self._entries:
            shared = common_length(entry.token_ids, token_ids)
            if shared > longest:
                best, longest = entry, shared
        longest = min(longest, len(token_ids) - 1)
        if best is None or longest <= 0:
            return None
        self._clock += 1
        best.used = self._clock
        return Match(keys_values=best.keys_values, length=longest)

    def put(self, token_ids: Sequence[int], keys_values: torch.Tensor) -> None:
        """Stores a prefix, in place of one with the same ids."""
        ids = np.asarray(token_ids, dtype=np.int32)
        kept = []
        for entry in self._entries:
            if np.array_equal(entry.token_ids, ids):
                self._bytes -= entry.keys_values.nbytes
            else:
                kept.append(entry)
        self._clock += 1
        kept.append(_Entry(ids, keys_values, self._clock))
        self._entries = kept
        self._bytes += keys_values.nbytes
        self._evict()

    def _evict(self) -> None:
        self._entries.sort(key=lambda entry: entry.used)
        while self._bytes > self._max_bytes and len(self._entries) > 1:
            self._bytes -= self._entries.pop(0).keys_values.nbytes


def common_length(first: np.ndarray, second: np.ndarray) -> int:
    """Returns how many leading ids two sequences share."""
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    return int(different.argmax()) if different.any() else length
