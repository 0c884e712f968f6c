"""Reward models: loaded on demand, a few at a time, asked by one thread.

What waits for a model while it is busy is scored together, MAX_TOGETHER calls at a time. A score does not depend on
what it is scored with (see `engines.reward_head`), so that changes only the time; what breaks together is tried alone.
"""

import asyncio
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rollout.engines.base import ModelKey
from servicekit.errors import DataLoss, HoneError, InvalidArgument
from trajectory.rendering import RenderError
from trajectory.types import ChatMessage

_LOG = logging.getLogger("hone.rollout")

Conversation = Sequence[ChatMessage]
MAX_TOGETHER = 16
"""Calls that are answered at once: with more, the first would wait for the last, and all could miss their deadlines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardScore:
    """What a reward model says of one conversation."""

    score: float
    token_count: int
    truncated: bool
    """Its beginning did not fit the model's context and was left out."""


class RewardScorer(Protocol):
    """One loaded reward model; all calls come from one thread."""

    def encode(self, conversation: Conversation) -> tuple[int, ...]:
        """Turns a conversation into ids.

        Raises:
            RenderError: the model's chat template refuses it.
        """
        ...

    def score(self, rows: Sequence[Sequence[int]]) -> list[RewardScore]:
        """Scores rows of ids, each as if it were alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    conversations: Sequence[Conversation]
    answer: "Future[list[RewardScore]]" = field(default_factory=Future)


class RewardModels:
    """Reward models by folder and number type."""

    def __init__(
        self,
        *,
        open_model: Callable[[Path, str], RewardScorer],
        resolve: Callable[[str], Path],
        max_loaded: int,
    ) -> None:
        """Load nothing yet.

        Args:
            open_model: opens a folder as a number type; raises InvalidArgument if it holds no reward model.
            resolve: finds the folder of a model; raises ValueError if there is none.
            max_loaded: models that stay loaded.
        """
        self._open_model = open_model
        self._resolve = resolve
        self._max_loaded = max_loaded
        self._loaded: OrderedDict[ModelKey, RewardScorer] = OrderedDict()
        self._waiting: dict[ModelKey, list[_Asked]] = {}
        self._guard = threading.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward-models")

    async def score(
        self, model: ModelKey, conversations: Sequence[Conversation]
    ) -> list[RewardScore]:
        """Scores conversations, in their order.

        Raises:
            InvalidArgument: there is no such reward model, or its chat template refuses a conversation.
            DataLoss: the model gives no finite score.
        """
        asked = _Asked(conversations=conversations)
        with self._guard:
            self._waiting.setdefault(model, []).append(asked)
        self._thread.submit(self._serve, model)
        return await asyncio.wrap_future(asked.answer)

    async def close(self) -> None:
        """Lets go of the models; what is being scored goes on to its end on its thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _serve(self, model: ModelKey) -> None:
        """Answers those who wait for a model; a former call may have done so already.

        Each who asks submits one call, so there is one for whoever is left.
        """
        with self._guard:
            asking = self._waiting.pop(model, [])
            waiting = asking[:MAX_TOGETHER]
            if len(asking) > MAX_TOGETHER:
                self._waiting[model] = asking[MAX_TOGETHER:]
        # Whoever gave up meanwhile is not scored.
        waiting = [asked for asked in waiting if asked.answer.set_running_or_notify_cancel()]
        if not waiting:
            return
        try:
            self._answer(model, waiting)
        # Whatever a model raises is the answer to whoever asked it.
        except Exception as err:
            unanswered = [asked for asked in waiting if not asked.answer.done()]
            one_of_several = len(unanswered) > 1 and not isinstance(err, HoneError)
            if one_of_several:
                _LOG.warning("scoring alone", extra={"model": model.path, "error": repr(err)})
            for asked in unanswered:
                if one_of_several:
                    self._answer_alone(model, asked)
                else:
                    asked.answer.set_exception(err)

    def _answer_alone(self, model: ModelKey, asked: _Asked) -> None:
        try:
            self._answer(model, [asked])
        except Exception as err:  # As above.
            asked.answer.set_exception(err)

    def _answer(self, model: ModelKey, waiting: Sequence[_Asked]) -> None:
        scorer = self._opened(model)
        rows: list[tuple[int, ...]] = []
        readable: list[tuple[_Asked, int]] = []
        for asked in waiting:
            try:
                encoded = [scorer.encode(conversation) for conversation in asked.conversations]
            except RenderError as err:
                asked.answer.set_exception(InvalidArgument(f"conversations: {err}"))
                continue
            readable.append((asked, len(rows)))
            rows += encoded
        scores = scorer.score(rows) if rows else []
        for asked, start in readable:
            own = scores[start : start + len(asked.conversations)]
            wrong = next((score.score for score in own if not math.isfinite(score.score)), None)
            if wrong is None:
                asked.answer.set_result(own)
            else:
                asked.answer.set_exception(
                    DataLoss(
                        f"reward model {model.path!r} gives {wrong}, which is not a finite number",
                        reason="SCORE_NOT_FINITE",
                    )
                )

    def _opened(self, model: ModelKey) -> RewardScorer:
        known = self._loaded.get(model)
        if known is not None:
            self._loaded.move_to_end(model)
            return known
        try:
            folder = self._resolve(model.path)
        except (ValueError, OSError) as err:
            raise InvalidArgument(f"model {model.path!r} cannot be opened: {err}") from err
        while len(self._loaded) >= self._max_loaded:
            gone, _ = self._loaded.popitem(last=False)
            _LOG.info("reward model dropped", extra={"model": gone.path})
        scorer = self._loaded[model] = self._open_model(folder, model.dtype)
        _LOG.info("reward model loaded", extra={"model": model.path})
        return scorer
