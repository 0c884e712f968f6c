"""Builds the exact token record of a rollout as it happens. Ids come in; nothing is ever re-read from text."""

import math
from array import array
from collections.abc import Sequence

from trajectory.types import SamplingParams, TokenRecord, TokenRow, TokenSpan


class TokenRecordBuilder:
    """Appends what the policy read and what it sampled, and forks where history was rewritten."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        """Starts the first row with the prompt."""
        self._rows: list[TokenRow] = []
        self._nan_count = 0
        self._begin_row(prompt_ids)

    @property
    def length(self) -> int:
        """Tokens of the row that grows."""
        return len(self._ids)

    @property
    def row_ids(self) -> tuple[int, ...]:
        """Ids of the row that grows: the prompt of the next turn."""
        return tuple(self._ids)

    def read(self, token_ids: Sequence[int]) -> None:
        """Appends tokens that the policy did not sample."""
        self._ids += token_ids
        self._mask += [False] * len(token_ids)
        self._logprobs += [0.0] * len(token_ids)

    def sample(
        self, token_ids: Sequence[int], logprobs: Sequence[float], *, turn: int, policy_version: int
    ) -> None:
        """Appends a sampled turn; a token without a finite log-probability is masked and counted.

        Raises:
            ValueError: the two lists differ in length.
        """
        if len(token_ids) != len(logprobs):
            raise ValueError(
                f"turn {turn}: the engine gave {len(token_ids)} ids and {len(logprobs)} "
                "log-probabilities; both must be equal"
            )
        if not token_ids:
            return
        start = len(self._ids)
        # Log-probabilities travel as float32; rounding here makes every copy of the record equal.
        for token_id, logprob in zip(token_ids, array("f", logprobs), strict=True):
            finite = math.isfinite(logprob)
            self._nan_count += not finite
            self._ids.append(token_id)
            self._mask.append(finite)
            self._logprobs.append(logprob if finite else 0.0)
        self._spans.append(
            TokenSpan(start=start, end=len(self._ids), turn=turn, policy_version=policy_version)
        )

    def fork(self, prompt_ids: Sequence[int]) -> None:
        """Ends the row and begins another one with a rewritten prompt."""
        self._end_row()
        self._begin_row(prompt_ids)

    def build(self, sampling: SamplingParams) -> TokenRecord:
        """Returns the record; nothing may be appended afterwards."""
        self._end_row()
        return TokenRecord(
            rows=tuple(self._rows), sampling=sampling, nan_logprob_count=self._nan_count
        )

    def _begin_row(self, prompt_ids: Sequence[int]) -> None:
        self._ids = list(prompt_ids)
        self._mask = [False] * len(self._ids)
        self._logprobs = [0.0] * len(self._ids)
        self._spans: list[TokenSpan] = []

    def _end_row(self) -> None:
        self._rows.append(
            TokenRow(
                token_ids=tuple(self._ids),
                loss_mask=tuple(self._mask),
                logprobs=tuple(self._logprobs),
                spans=tuple(self._spans),
            )
        )
