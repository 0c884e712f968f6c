"""The CPU engine: a transformers model under our own batching scheduler, on one worker thread.

All torch calls happen on that thread. The event loop hands jobs over through a queue and gets
results back through futures.
"""

import asyncio
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import transformers

from rollout.engines.base import (
    EngineError,
    Generation,
    GenerationRequest,
    ModelKey,
    PolicyKey,
    PolicyMissingError,
)
from rollout.engines.batching.model import RowModel
from rollout.engines.batching.scheduler import Job, PolicyBatch
from rollout.engines.batching.weights import WeightSet
from trajectory.rendering import ChatTokenizer

T = TypeVar("T")

GATHER_SECONDS = 0.01
"""How long an idle engine waits for more requests after the first, so that they share prompts."""


CLOSE_SECONDS = 10.0
"""How long closing waits for the worker; one that hangs in the model is left behind."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Something for the worker, and how to tell that it will not be done."""

    run: Callable[[], None]
    fail: Callable[[Exception], None]


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ends the worker."""


class TransformersEngine:
    """Samples with transformers on CPU threads."""

    name = "transformers"

    def __init__(
        self, *, threads: int, max_rows: int, cache_bytes: int, rng: random.Random
    ) -> None:
        """Takes limits; `threads` 0 means all cores, `rng` seeds requests that bring no seed."""
        self._threads = threads
        self._max_rows = max_rows
        self._cache_bytes = cache_bytes
        self._rng = rng
        self._inbox: queue.SimpleQueue[_Work | _Stop] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._accepting = False
        """Whether the worker will still see what is put in; read and written behind the gate."""
        self._worker: threading.Thread | None = None
        self._model: RowModel | None = None
        self._sets: dict[PolicyKey, WeightSet] = {}
        self._batches: dict[PolicyKey, PolicyBatch] = {}
        self._tokenizer: ChatTokenizer | None = None

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        if self._tokenizer is None:
            raise EngineError("the engine has not started")
        return self._tokenizer

    @property
    def max_context_tokens(self) -> int:
        """Positions that the model was made for."""
        return self._opened().max_context

    async def start(self, folder: Path, model: ModelKey) -> None:
        """Opens the model on the worker thread."""
        self._worker = threading.Thread(target=self._run, name="engine", daemon=True)
        self._accepting = True
        self._worker.start()
        await self._call(lambda: self._open(folder, model))

    async def load_policy(self, policy: PolicyKey, adapter_dir: Path | None) -> None:
        """Makes a weight set of the published weights: an adapter merged, or a whole model."""

        def load() -> None:
            if policy not in self._sets:
                self._sets[policy] = self._opened().weights.make(adapter_dir)

        await self._call(load)

    async def unload_policy(self, policy: PolicyKey) -> None:
        """Drops the weight set and its caches."""

        def unload() -> None:
            self._sets.pop(policy, None)
            batch = self._batches.pop(policy, None)
            if batch is not None:
                batch.fail_all(EngineError(f"policy {policy} was unloaded", retryable=True))

        await self._call(unload)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Samples one turn together with whatever else is waiting."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        seed = request.sampling.seed
        rng = random.Random(self._rng.getrandbits(64) if seed is None else seed)

        def settle(result: Generation | Exception) -> None:
            loop.call_soon_threadsafe(_settle, future, result)

        job = Job(request=request, rng=rng, done=settle)
        self._put(_Work(run=lambda: self._submit(job), fail=settle))
        try:
            return await future
        except asyncio.CancelledError:
            job.cancelled = True
            raise

    async def close(self) -> None:
        """Stops the worker; what it holds fails."""
        if self._worker is not None:
            self._inbox.put(_Stop())
            await asyncio.to_thread(self._worker.join, CLOSE_SECONDS)
            self._end()
            self._inbox.put(_Stop())  # For a worker that was too busy to see the first one.
            self._worker = None

    async def _call(self, work: Callable[[], T]) -> T:
        """Runs `work` on the worker thread between two steps."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | Exception) -> None:
            loop.call_soon_threadsafe(_settle, future, result)

        def run() -> None:
            try:
                result: T | Exception = work()
            except Exception as err:  # Belongs to the caller, whatever it is.
                result = err
            settle(result)

        self._put(_Work(run=run, fail=settle))
        return await future

    def _put(self, work: _Work) -> None:
        with self._gate:
            if not self._accepting:
                raise EngineError("engine transformers: does not run", retryable=True)
            self._inbox.put(work)

    def _open(self, folder: Path, model: ModelKey) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        self._model = RowModel(folder, model.dtype)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True
        )

    def _opened(self) -> RowModel:
        if self._model is None:
            raise EngineError("the engine has not started")
        return self._model

    def _submit(self, job: Job) -> None:
        try:
            self._enqueue(job)
        except Exception as err:  # The worker must outlive any request.
            job.done(EngineError(f"engine transformers: {err}", retryable=True))

    def _enqueue(self, job: Job) -> None:
        policy = job.request.policy
        weights = self._sets.get(policy)
        if weights is None:
            job.done(PolicyMissingError(f"policy {policy.run_id} v{policy.version} is not loaded"))
            return
        batch = self._batches.get(policy)
        if batch is None:
            batch = self._batches[policy] = PolicyBatch(
                self._opened(),
                policy,
                weights,
                max_rows=self._max_rows,
                cache_bytes=self._cache_bytes,
            )
        batch.submit(job)

    def _step(self, batch: PolicyBatch) -> None:
        try:
            batch.step()
        except Exception as err:  # Torch fails in many ways; the requests must end.
            batch.fail_all(
                EngineError(f"engine transformers: a step failed: {err}", retryable=True)
            )
            self._batches.pop(batch.policy, None)

    def _run(self) -> None:
        """Works until told to stop: takes what has arrived, then one step of each policy."""
        try:
            self._work()
        finally:
            self._end()
            for batch in self._batches.values():
                batch.fail_all(_stopped())

    def _end(self) -> None:
        """Lets nothing more in and fails what nobody will do, however the worker ended."""
        with self._gate:
            self._accepting = False
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, _Work):
                item.fail(_stopped())

    def _work(self) -> None:
        while self._receive():
            busy = [batch for batch in self._batches.values() if batch.busy]
            for batch in self._batches.values():
                if busy and batch not in busy:
                    batch.release()
            for batch in busy:
                self._step(batch)

    def _receive(self) -> bool:
        """Runs what is in the inbox; waits for it only when nothing is being sampled."""
        idle = not any(batch.busy for batch in self._batches.values())
        while True:
            try:
                item = self._inbox.get(block=idle, timeout=None)
            except queue.Empty:
                return True
            if isinstance(item, _Stop):
                return False
            item.run()
            if idle and any(batch.busy for batch in self._batches.values()):
                return self._gather()

    def _gather(self) -> bool:
        """Takes more requests until none came for a moment."""
        while True:
            try:
                item = self._inbox.get(timeout=GATHER_SECONDS)
            except queue.Empty:
                return True
            if isinstance(item, _Stop):
                return False
            item.run()


def _stopped() -> EngineError:
    return EngineError("engine transformers: has stopped", retryable=True)


def _settle(future: "asyncio.Future[T]", result: T | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
