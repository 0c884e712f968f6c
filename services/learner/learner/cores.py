"""The training core over torch: one worker thread that alone touches the weights.

torch is imported on that thread when a run first needs it, so that the service answers at once and `--help` is light.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from learner.ports import Restored, RowData, ScoredRollout
from learner.rendered import RenderedPair, RowRenderer, Rows
from learner.settings import LearnerSettings
from modelstore.resolve import resolve_model
from runspec.schema import WITH_OPTIONAL_STD, RunSpec
from trajectory.rendering import ChatTokenizer

if TYPE_CHECKING:
    from learner.training.algorithms.pairs import Pair
    from learner.training.trainer import Trainer

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
        self._checkpoints = folder / "checkpoints"
        self._adapter = adapter
        self._data = data
        self._settings = settings
        self._conversations: list[Rows] = []
        self._pairs: list[RenderedPair] = []
        self._held_out: list[RenderedPair] = []
        self._off_task: list[Rows] = []
        self._trainer: Trainer | None = None
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
        return await self._on_worker(
            lambda: self._loaded().rollout_step(groups, progress=tell, stop=self._stop)
        )

    async def sft_step(self, rows: Sequence[int], progress: Progress) -> dict[str, float]:
        """Updates the policy by the supervised rows at these indices."""
        tell = self._telling(progress)
        chosen = [made for index in rows for made in self._conversations[index]]
        return await self._on_worker(
            lambda: self._loaded().sft_step(chosen, progress=tell, stop=self._stop)
        )

    async def preference_step(self, rows: Sequence[int], progress: Progress) -> dict[str, float]:
        """Updates the policy by the pairs at these indices."""
        tell = self._telling(progress)
        chosen = [self._pairs[index] for index in rows]
        return await self._on_worker(
            lambda: self._loaded().preference_step(_pairs(chosen), progress=tell, stop=self._stop)
        )

    async def measure(self, progress: Progress) -> dict[str, float]:
        """Returns figures of the held-out pairs."""
        tell = self._telling(progress)
        return await self._on_worker(
            lambda: self._loaded().measure_pairs(
                _pairs(self._held_out), progress=tell, stop=self._stop
            )
        )

    async def off_task(self, progress: Progress) -> float:
        """Returns the mean log-probability of the off-task rows."""
        tell = self._telling(progress)
        rows = [made for row in self._off_task for made in row]
        return await self._on_worker(
            lambda: self._loaded().measure_rows(rows, progress=tell, stop=self._stop)
        )

    async def save(self, restored: Restored) -> None:
        """Writes a checkpoint, whole or not at all."""
        await self._on_worker(lambda: self._save(restored))

    async def export(self, folder: Path) -> None:
        """Writes what the run made as others open it: an adapter, a whole model, or a reward model."""
        await self._on_worker(lambda: self._export(folder))

    def interrupt(self) -> None:
        """Lets the update under way end between two micro-batches."""
        self._stop.set()

    async def close(self) -> None:
        """Waits for the worker and frees the weights."""
        self._stop.set()
        await asyncio.to_thread(self._worker.shutdown, wait=True)
        if self._trainer is not None:
            from modelstore.compute import release_memory

            self._trainer = None
            release_memory()

    async def _on_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _telling(self, progress: Progress) -> Progress:
        """Returns a function that the worker may call: it hands the counts over to the event loop."""
        loop = asyncio.get_running_loop()

        def tell(done: int, total: int) -> None:
            loop.call_soon_threadsafe(progress, done, total)

        return tell

    def _loaded(self) -> "Trainer":
        assert self._trainer is not None, "restore comes first"
        return self._trainer

    def _restore(self) -> Restored | None:
        from learner.training.checkpoint import latest_checkpoint, load_checkpoint
        from learner.training.model import PolicySettings, load_policy, load_tokenizer
        from learner.training.trainer import Trainer
        from modelstore.compute import tune_compute

        spec = self._spec
        folder = resolve_model(spec.model.path, self._settings.model_cache_dir)
        tune_compute(self._settings.threads)
        if spec.algorithm == "reward_model":
            from learner.training.reward_export import check_classifier

            check_classifier(folder)
        policy = load_policy(
            PolicySettings(
                folder=folder,
                adapter=self._adapter,
                reference=spec.model.reference,
                dtype=spec.model.dtype or "float32",
                rank=spec.lora.rank,
                alpha=spec.lora.alpha,
                target_modules=spec.lora.target_modules,
                seed=spec.seed,
                value_head=spec.algorithm == "ppo",
                score_head=spec.algorithm == "reward_model",
                full=spec.train.weights == "full",
                refers=spec.algorithm == "dpo" or (spec.reinforces and spec.train.kl_coef > 0),
            )
        )
        self._trainer = Trainer(policy, _trainer_settings(spec))
        if self._data.conversations or self._data.pairs or self._data.off_task:
            self._render(load_tokenizer(folder))
        checkpoint = latest_checkpoint(self._checkpoints)
        if checkpoint is None:
            return None
        load_checkpoint(checkpoint, self._trainer)
        return Restored(
            step=checkpoint.step,
            policy_version=checkpoint.policy_version,
            state=checkpoint.state,
        )

    def _save(self, restored: Restored) -> None:
        from learner.training.checkpoint import save_checkpoint

        trainer = self._loaded()
        assert trainer.step == restored.step, (trainer.step, restored.step)
        assert trainer.policy_version == restored.policy_version
        save_checkpoint(
            self._checkpoints, trainer, restored.state, keep=self._spec.train.keep_checkpoints
        )

    def _export(self, folder: Path) -> None:
        from learner.training.model import load_tokenizer

        policy, spec = self._loaded().policy, self._spec
        base = resolve_model(spec.model.path, self._settings.model_cache_dir)
        if spec.algorithm == "reward_model":
            from learner.training.reward_export import export_reward_model

            export_reward_model(policy, base, load_tokenizer(base), folder)
            return
        policy.export(folder)
        if spec.train.weights == "full":
            load_tokenizer(base).save_pretrained(str(folder))

    def _render(self, tokenizer: ChatTokenizer) -> None:
        """Lays the rows out as the algorithm reads them.

        Raises:
            InvalidArgument: a row is longer than a rollout may be, or the chat template refuses it.
        """
        rows = RowRenderer(tokenizer, self._spec, self._data)
        self._conversations = rows.conversations(self._data)
        self._pairs = rows.pairs(self._data.pairs, "data.train")
        limit = self._spec.eval.max_tasks or None
        if self._data.off_task:
            # They are away from the task: its system prompt and tools are not theirs.
            plain = self._spec.rollout.model_copy(update={"system_prompt": "", "tools": ()})
            spec = self._spec.model_copy(update={"rollout": plain})
            self._off_task = RowRenderer(tokenizer, spec, self._data).off_task(self._data)
        self._held_out = rows.pairs(self._data.held_out[:limit], "data.eval")


def _pairs(rendered: Sequence[RenderedPair]) -> "list[Pair]":
    from learner.training.algorithms.pairs import Pair

    return [
        Pair(chosen=pair.chosen, rejected=pair.rejected, margin=pair.margin) for pair in rendered
    ]


def _trainer_settings(spec: RunSpec) -> Any:
    from learner.training.algorithms.dpo import DpoSettings
    from learner.training.algorithms.policy_gradient import PolicyGradientSettings
    from learner.training.algorithms.ppo import PpoSettings
    from learner.training.algorithms.reward_model import RewardModelSettings
    from learner.training.algorithms.table import KINDS
    from learner.training.schedule import ScheduleSettings
    from learner.training.trainer import TrainerSettings

    train = spec.train
    settings = TrainerSettings(
        schedule=ScheduleSettings(
            learning_rate=train.learning_rate,
            max_steps=train.max_steps,
            warmup_steps=train.warmup_steps,
            kind=train.schedule,
        ),
        max_grad_norm=train.max_grad_norm,
        weight_decay=train.weight_decay,
        updates_per_step=train.updates_per_step,
        value_learning_rate=train.value_learning_rate,
    )
    if spec.algorithm == "dpo":
        kind = DpoSettings(beta=train.beta, label_smoothing=train.label_smoothing)
        return replace(settings, preferences=kind)
    if spec.algorithm == "reward_model":
        return replace(settings, preferences=RewardModelSettings())
    if not spec.reinforces:
        return settings
    policy = replace(
        KINDS.get(spec.algorithm, PolicyGradientSettings()),
        clip_low=train.clip_ratio,
        clip_high=train.clip_ratio_high,
        dual_clip=train.dual_clip,
        kl_coef=train.kl_coef,
        kl_estimator=train.kl_estimator,
        kl_in_reward=train.kl_in == "reward",
        importance_sampling=train.importance_sampling,
        importance_cap=train.importance_cap,
        aggregation=train.loss_aggregation,
        max_tokens=spec.rollout.max_new_tokens * spec.rollout.max_turns,
        overlong_buffer=train.overlong_buffer,
        turn_rewards=train.turn_rewards,
    )
    if spec.algorithm in WITH_OPTIONAL_STD and not train.norm_adv_by_std:
        policy = replace(policy, advantages=KINDS["dr_grpo"].advantages)
    rollouts: PolicyGradientSettings | PpoSettings = policy
    if spec.algorithm == "ppo":
        rollouts = PpoSettings(
            policy=policy,
            gamma=train.gamma,
            gae_lambda=train.gae_lambda,
            value_coef=train.value_coef,
            value_clip=train.value_clip,
        )
    return replace(settings, temperature=spec.rollout.temperature, rollouts=rollouts)
