"""The training core over torch: one worker thread that alone touches the weights, or talks to the ranks that do.

torch is imported on that thread when a run first needs it, so that the service answers at once and `--help` is light.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from learner.ports import Restored, RowData, ScoredRollout
from learner.settings import LearnerSettings
from learner.training.rendered import RenderedPair, RowRenderer, Rows
from learner.workers.gang import Gang
from modelstore.resolve import resolve_model
from runspec.schema import RunSpec
from trajectory.rendering import ChatTokenizer

if TYPE_CHECKING:
    from learner.training.session import Session

T = TypeVar("T")
Progress = Callable[[int, int], None]


class TorchCore:
    """Implements `ports.TrainingCore` over `learner.training`."""

    def __init__(
        self,
        spec: RunSpec,
        folder: Path,
        adapter: Path | None,
        data: RowData,
        settings: LearnerSettings,
    ) -> None:
        """Prepares a core for a run in `folder`; nothing is loaded before `restore`."""
        self._spec = spec
        self._folder = folder
        self._adapter = adapter
        self._data = data
        self._settings = settings
        self._conversations: list[Rows] = []
        self._pairs: list[RenderedPair] = []
        self._held_out: list[RenderedPair] = []
        self._off_task: list[Rows] = []
        self._opened: Session | Gang | None = None
        self._stop = threading.Event()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner.torch")

    async def restore(self) -> Restored | None:
        """Loads the model and the newest whole checkpoint, if there is one."""
        return await self._on_worker(self._restore)

    async def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Progress
    ) -> dict[str, float]:
        """Updates the policy by one batch of groups."""
        tell = self._telling(progress)
        return await self._on_worker(lambda: self._session().rollout_step(groups, tell, self._stop))

    async def sft_step(self, rows: Sequence[int], progress: Progress) -> dict[str, float]:
        """Updates the policy by the supervised rows at these indices."""
        tell = self._telling(progress)
        chosen = [made for index in rows for made in self._conversations[index]]
        return await self._on_worker(lambda: self._session().sft_step(chosen, tell, self._stop))

    async def preference_step(self, rows: Sequence[int], progress: Progress) -> dict[str, float]:
        """Updates the policy by the pairs at these indices."""
        tell = self._telling(progress)
        chosen = [self._pairs[index] for index in rows]
        return await self._on_worker(
            lambda: self._session().preference_step(chosen, tell, self._stop)
        )

    async def measure(self, progress: Progress) -> dict[str, float]:
        """Returns figures of the held-out pairs."""
        tell = self._telling(progress)
        return await self._on_worker(
            lambda: self._session().measure(self._held_out, tell, self._stop)
        )

    async def off_task(self, progress: Progress) -> float:
        """Returns the mean log-probability of the off-task rows."""
        tell = self._telling(progress)
        rows = [made for row in self._off_task for made in row]
        return await self._on_worker(lambda: self._session().measure_rows(rows, tell, self._stop))

    async def save(self, restored: Restored) -> None:
        """Writes a checkpoint, whole or not at all."""
        await self._on_worker(lambda: self._session().save(restored))

    async def export(self, folder: Path) -> None:
        """Writes what the run made as others open it: an adapter, a whole model, or a reward model."""
        await self._on_worker(lambda: self._session().export(folder))

    def interrupt(self) -> None:
        """Lets the update under way end between two micro-batches."""
        self._stop.set()

    async def close(self) -> None:
        """Waits for the worker and frees the weights."""
        self._stop.set()
        await asyncio.to_thread(self._worker.shutdown, wait=True)
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)
            self._opened = None

    async def _on_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _telling(self, progress: Progress) -> Progress:
        """Returns a function that the worker may call: it hands the counts over to the event loop."""
        loop = asyncio.get_running_loop()

        def tell(done: int, total: int) -> None:
            loop.call_soon_threadsafe(progress, done, total)

        return tell

    def _session(self) -> "Session | Gang":
        assert self._opened is not None, "restore comes first"
        return self._opened

    def _restore(self) -> Restored | None:
        from learner.training.model import load_tokenizer
        from learner.training.session import Session, SessionSettings

        spec = self._spec
        base = resolve_model(spec.model.path, self._settings.model_cache_dir)
        if self._data.conversations or self._data.pairs or self._data.off_task:
            self._render(load_tokenizer(base))
        settings = SessionSettings(
            spec=spec,
            base=base,
            adapter=self._adapter,
            checkpoints=self._folder / "checkpoints",
            threads=self._settings.threads,
        )
        if spec.train.processes > 1:
            self._opened = Gang(
                settings,
                spec.train.processes,
                self._folder / "ranks",
                silence_seconds=self._settings.rank_silence_seconds,
            )
        else:
            self._opened = Session(settings)
        return self._opened.restore()

    def _render(self, tokenizer: ChatTokenizer) -> None:
        """Lays the rows out as the algorithm reads them.

        Raises:
            InvalidArgument: a row is longer than a rollout may be, or the chat template refuses it.
        """
        if self._data.off_task:
            # They are away from the task: its system prompt and tools are not theirs.
            plain = self._spec.rollout.model_copy(update={"system_prompt": "", "tools": ()})
            spec = self._spec.model_copy(update={"rollout": plain})
            self._off_task = RowRenderer(tokenizer, spec, self._data).off_task(self._data)
        if self._spec.reinforces:
            return
        rows = RowRenderer(tokenizer, self._spec, self._data)
        self._conversations = rows.conversations(self._data)
        self._pairs = rows.pairs(self._data.pairs, "data.train")
        limit = self._spec.eval.max_tasks or None
        self._held_out = rows.pairs(self._data.held_out[:limit], "data.eval")
