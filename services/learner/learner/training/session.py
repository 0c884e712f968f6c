"""A run's weights in one process: opened, trained, saved and exported.

With `train.processes` above 1 every rank has a session of its own, and all do the same calls in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import torch

from learner.ports import Restored, ScoredRollout
from learner.training.algorithms.dpo import DpoSettings
from learner.training.algorithms.pairs import Pair
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.algorithms.ppo import PpoSettings
from learner.training.algorithms.reward_model import RewardModelSettings
from learner.training.algorithms.table import KINDS
from learner.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from learner.training.model import PolicySettings, load_policy, load_tokenizer
from learner.training.ranks import Alone, Ranks
from learner.training.rendered import RenderedPair
from learner.training.reward_export import check_classifier, export_reward_model
from learner.training.rows import MaskedRow
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from learner.training.update import Progress
from modelstore.compute import release_memory, tune_compute
from runspec.schema import WITH_OPTIONAL_STD, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What a session is about; it travels to other processes."""

    spec: RunSpec
    base: Path
    """Folder of the model that `model.path` names."""
    adapter: Path | None
    checkpoints: Path
    threads: int
    """Of torch, of each process; 0 means one per core, or as OMP_NUM_THREADS says."""


class Session:
    """One process's part of a run; see the module."""

    def __init__(
        self,
        settings: SessionSettings,
        ranks: Ranks | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Opens nothing yet; without a device it is the GPU, or the CPU where there is none."""
        self._settings = settings
        self._ranks = ranks or Alone()
        self._device = device
        self._trainer: Trainer | None = None

    def restore(self) -> Restored | None:
        """Loads the model and the newest whole checkpoint, if there is one."""
        settings, spec = self._settings, self._settings.spec
        checkpoint = latest_checkpoint(settings.checkpoints)
        plan = tune_compute(settings.threads, checkpoint.float32_backend if checkpoint else "")
        # All ranks round alike, whatever each of them measured.
        tune_compute(settings.threads, self._ranks.tell(plan.float32_backend))
        if spec.algorithm == "reward_model":
            check_classifier(settings.base)
        policy = load_policy(
            PolicySettings(
                folder=settings.base,
                adapter=settings.adapter,
                reference=spec.model.reference,
                dtype=spec.model.dtype or "float32",
                rank=spec.lora.new_rank,
                alpha=spec.lora.new_alpha,
                target_modules=spec.lora.target_modules,
                seed=spec.seed,
                value_head=spec.algorithm == "ppo",
                score_head=spec.algorithm == "reward_model",
                full=spec.train.weights == "full",
                checkpointing=spec.train.gradient_checkpointing,
                refers=spec.algorithm == "dpo" or (spec.reinforces and spec.train.kl_coef > 0),
            ),
            self._device,
        )
        self._trainer = Trainer(policy, trainer_settings(spec), self._ranks)
        if checkpoint is None:
            return None
        load_checkpoint(checkpoint, self._trainer)
        return Restored(
            step=checkpoint.step,
            policy_version=checkpoint.policy_version,
            state=checkpoint.state,
        )

    def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Updates the policy by one batch of groups."""
        return self._loaded().rollout_step(groups, progress=progress, stop=stop)

    def sft_step(
        self, rows: Sequence[MaskedRow], progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Updates the policy by supervised rows."""
        return self._loaded().sft_step(rows, progress=progress, stop=stop)

    def preference_step(
        self, pairs: Sequence[RenderedPair], progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Updates the policy by pairs."""
        return self._loaded().preference_step(_pairs(pairs), progress=progress, stop=stop)

    def measure(
        self, pairs: Sequence[RenderedPair], progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Returns figures of pairs."""
        return self._loaded().measure_pairs(_pairs(pairs), progress=progress, stop=stop)

    def measure_rows(self, rows: Sequence[MaskedRow], progress: Progress, stop: Event) -> float:
        """Returns the mean log-probability of the rows' tokens."""
        return self._loaded().measure_rows(rows, progress=progress, stop=stop)

    def save(self, restored: Restored) -> None:
        """Writes a checkpoint, whole or not at all."""
        trainer = self._loaded()
        assert trainer.step == restored.step, (trainer.step, restored.step)
        assert trainer.policy_version == restored.policy_version
        keep = self._settings.spec.train.keep_checkpoints
        save_checkpoint(self._settings.checkpoints, trainer, restored.state, keep=keep)

    def export(self, folder: Path) -> None:
        """Writes what the run made as others open it: an adapter, a whole model, or a reward model."""
        policy, spec, base = self._loaded().policy, self._settings.spec, self._settings.base
        if spec.algorithm == "reward_model":
            export_reward_model(policy, base, load_tokenizer(base), folder)
            return
        policy.export(folder)
        if spec.train.weights == "full" and policy.writes:
            load_tokenizer(base).save_pretrained(str(folder))

    def close(self) -> None:
        """Frees the weights."""
        self._trainer = None
        release_memory()

    def _loaded(self) -> Trainer:
        assert self._trainer is not None, "restore comes first"
        return self._trainer


def _pairs(rendered: Sequence[RenderedPair]) -> list[Pair]:
    return [
        Pair(
            chosen=pair.chosen,
            rejected=pair.rejected,
            margin=pair.margin,
            soft_label=pair.soft_label,
        )
        for pair in rendered
    ]


def trainer_settings(spec: RunSpec) -> TrainerSettings:
    """Returns how a run's steps are taken."""
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
