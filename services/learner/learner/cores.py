"""The training core over torch: one worker thread that alone touches the weights.

torch is imported on that thread when a run first needs it, so that the service answers at once and `--help` is light.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from learner.ports import Restored, ScoredRollout
from learner.settings import LearnerSettings
from modelstore.resolve import resolve_model
from runspec.rows import SftRow
from runspec.schema import WITH_OPTIONAL_STD, RunSpec
from servicekit.errors import InvalidArgument
from trajectory.rendering import ChatRenderer, RenderedRow, with_system_prompt
from trajectory.types import ToolDefinition

if TYPE_CHECKING:
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
        rows: Sequence[SftRow],
        tools: Mapping[str, ToolDefinition],
        settings: LearnerSettings,
    ) -> None:
        """Prepares a core for a run in `folder`; nothing is loaded before `restore`."""
        self._spec = spec
        self._checkpoints = folder / "checkpoints"
        self._adapter = adapter
        self._rows = rows
        self._tools = tools
        self._settings = settings
        self._rendered: list[tuple[RenderedRow, ...]] = []
        """Training rows of each conversation; a template that rewrites history makes several."""
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
        chosen = [made for index in rows for made in self._rendered[index]]
        return await self._on_worker(
            lambda: self._loaded().sft_step(chosen, progress=tell, stop=self._stop)
        )

    async def save(self, restored: Restored) -> None:
        """Writes a checkpoint, whole or not at all."""
        await self._on_worker(lambda: self._save(restored))

    async def export(self, folder: Path) -> None:
        """Writes the adapter in the form that peft, vLLM and the rollout service open."""
        await self._on_worker(lambda: self._loaded().policy.export_adapter(folder))

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
            )
        )
        self._trainer = Trainer(policy, _trainer_settings(spec))
        if self._rows:
            self._rendered = self._render(
                ChatRenderer(load_tokenizer(folder), tool_format=spec.rollout.tool_format)
            )
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
        save_checkpoint(self._checkpoints, trainer, restored.state)

    def _render(self, renderer: ChatRenderer) -> list[tuple[RenderedRow, ...]]:
        """Lays the conversations out as rollouts of them would lie.

        Raises:
            InvalidArgument: a row is longer than a rollout may be.
        """
        spec, rendered = self._spec.rollout, []
        named = tuple(self._tools[name] for name in spec.tools)
        for number, row in enumerate(self._rows, start=1):
            messages = with_system_prompt(row.messages, spec.system_prompt)
            made = tuple(renderer.render_conversation(messages, row.tools or named))
            longest = max(len(part.token_ids) for part in made)
            if longest > spec.max_total_tokens:
                raise InvalidArgument(
                    f"row {number} has {longest} tokens; rollout.max_total_tokens is "
                    f"{spec.max_total_tokens}"
                )
            rendered.append(made)
        return rendered


def _trainer_settings(spec: RunSpec) -> Any:
    from learner.training.algorithms.policy_gradient import PolicyGradientSettings
    from learner.training.algorithms.ppo import PpoSettings
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
