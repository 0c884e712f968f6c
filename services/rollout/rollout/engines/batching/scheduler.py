"""Decides which sequences read which tokens in the next step: continuous batching on one thread.

A prompt that shares a beginning with another one of the same policy waits for that one's keys and
values instead of computing them again; so the samples of a group cost one prompt between them.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from rollout.engines.base import Generation, GenerationRequest, PolicyKey, max_new_tokens
from rollout.engines.batching.model import RowModel
from rollout.engines.batching.prefixes import PrefixCache, common_length
from rollout.engines.batching.rows import Feed
from rollout.engines.batching.sampling import draw
from rollout.engines.batching.weights import WeightSet

WORTH_WAITING = 16
"""Shared tokens for which a prompt waits until another one has read them."""

MAX_PROMPT_TOKENS = 2048
"""New prompt tokens per step, so that rows that sample are not held up for long."""


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One generation on its way."""

    request: GenerationRequest
    rng: random.Random
    done: Callable[[Generation | Exception], None]
    """Told once, on the scheduler's thread."""
    prompt: np.ndarray = field(init=False)
    limit: int = 0
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stored: int = 0
    """Tokens whose keys and values are in the row."""
    cancelled: bool = False
    """Nobody waits for the result any more; set from another thread."""

    def __post_init__(self) -> None:
        """Makes the array form of the prompt."""
        self.prompt = np.asarray(self.request.prompt_ids, dtype=np.int32)

    def feed(self) -> Feed:
        """Returns the tokens that the row has not read."""
        if self.sampled:
            return Feed(start=self.stored, token_ids=self.sampled[-1:])
        return Feed(start=self.stored, token_ids=self.request.prompt_ids[self.stored :])


class PolicyBatch:
    """The sequences of one policy."""

    def __init__(
        self,
        model: RowModel,
        policy: PolicyKey,
        weights: WeightSet,
        *,
        max_rows: int,
        cache_bytes: int,
    ) -> None:
        """Starts without sequences."""
        self.policy = policy
        self._model = model
        self._weights = weights
        self._max_rows = max_rows
        self._cache_bytes = cache_bytes
        self._prefixes = PrefixCache(cache_bytes)
        self._rows = model.make_rows(max_rows)
        self._active: list[Job] = []
        self._waiting: deque[Job] = deque()

    @property
    def busy(self) -> bool:
        """There is something to do."""
        return bool(self._active or self._waiting)

    def submit(self, job: Job) -> None:
        """Queues a generation."""
        job.limit = max_new_tokens(job.request.sampling, len(job.prompt), self._model.max_context)
        if job.limit == 0:
            job.done(self._result(job, "length"))
        else:
            self._waiting.append(job)

    def release(self) -> None:
        """Frees the rows of an idle batch; another policy may need the memory."""
        if not self.busy:
            self._rows = self._model.make_rows(self._max_rows)

    def fail_all(self, error: Exception) -> None:
        """Ends everything with an error."""
        for job in (*self._active, *self._waiting):
            job.done(error)
        self._active.clear()
        self._waiting.clear()

    @torch.inference_mode()
    def step(self) -> None:
        """Admits what fits, reads one step, samples one token per row, finishes rows."""
        admitted = self._admit()
        # Rows that read a single token come first; see Rows.
        admitted.sort(key=lambda entry: len(entry.prompt) - entry.stored > 1)
        try:
            self._place(admitted)
        except Exception:  # Whatever it is, these must end with the rest.
            self._waiting.extend(job for job in admitted if job not in self._active)
            raise
        if not self._active:
            return
        feeds = [job.feed() for job in self._active]
        logits = self._model.forward(self._weights, self._rows, self._rows.plan(feeds))
        tokens, logprobs = draw(
            logits,
            [job.request.sampling for job in self._active],
            [job.rng.random() for job in self._active],
        )
        for job, feed, token, logprob in zip(self._active, feeds, tokens, logprobs, strict=True):
            job.stored = feed.start + len(feed.token_ids)
            job.sampled.append(token)
            job.logprobs.append(logprob)
        self._remember(admitted)
        self._finish()

    def _admit(self) -> list[Job]:
        """Takes jobs off the queue; those whose prompt another one is about to read stay."""
        admitted: list[Job] = []
        staying: deque[Job] = deque()
        room = self._max_rows - len(self._active)
        budget = MAX_PROMPT_TOKENS
        while self._waiting:
            job = self._waiting.popleft()
            if job.cancelled:
                continue
            if len(admitted) >= room or (admitted and budget <= 0):
                staying.append(job)
                break
            match = self._prefixes.find(job.prompt)
            known = match.length if match is not None else 0
            coming = max((common_length(a.prompt, job.prompt) for a in admitted), default=0)
            if min(coming, len(job.prompt) - 1) >= known + WORTH_WAITING:
                staying.append(job)
                continue
            job.stored = known
            budget -= len(job.prompt) - known
            admitted.append(job)
        staying.extend(self._waiting)
        self._waiting = staying
        return admitted

    def _place(self, admitted: list[Job]) -> None:
        active = len(self._active)
        self._rows.reserve(
            active + len(admitted),
            max((len(job.prompt) + job.limit for job in admitted), default=0),
        )
        for row, job in enumerate(admitted, start=active):
            match = self._prefixes.find(job.prompt) if job.stored else None
            if match is not None:
                self._rows.put(row, match.keys_values, job.stored)
        self._active.extend(admitted)

    def _remember(self, admitted: list[Job]) -> None:
        """Keeps the prompts that took work to read, for the next ones that begin alike."""
        first = len(self._active) - len(admitted)
        for row, job in enumerate(admitted, start=first):
            match = self._prefixes.find(job.prompt)
            known = match.length if match is not None else 0
            if len(job.prompt) - known >= WORTH_WAITING:
                self._prefixes.put(
                    job.request.prompt_ids, self._rows.copy_out(row, len(job.prompt))
                )

    def _finish(self) -> None:
        row = 0
        while row < len(self._active):
            job = self._active[row]
            reason = self._finish_reason(job)
            if not reason:
                row += 1
                continue
            if reason == "stop" and job.request.may_continue:
                read = (*job.request.prompt_ids, *job.sampled[:-1])
                self._prefixes.put(read, self._rows.copy_out(row, job.stored))
            last = self._active.pop()
            if last is not job:
                self._rows.move(len(self._active), row, last.stored)
                self._active[row] = last
            job.done(self._result(job, reason))

    @staticmethod
    def _finish_reason(job: Job) -> str:
        if job.cancelled:
            return "cancelled"
        if job.sampled[-1] in job.request.stop_ids:
            return "stop"
        return "length" if len(job.sampled) >= job.limit else ""

    @staticmethod
    def _result(job: Job, reason: str) -> Generation:
        return Generation(
            token_ids=tuple(job.sampled),
            logprobs=tuple(job.logprobs),
            finish_reason=reason,
            policy_version=job.request.policy.version,
        )
