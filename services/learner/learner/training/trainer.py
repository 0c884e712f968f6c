"""Runs optimiser steps over a policy: what a step learns from, and its settings. `update.py` takes the updates.

All methods run on one thread, the same for all of them, and block; the service gives them a worker thread. A step
happens as a whole or not at all: if it is interrupted or not finite, the weights are as they were before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Event

import torch

from learner.ports import ScoredRollout
from learner.training.algorithms.base import Algorithm, Batch
from learner.training.algorithms.dpo import Dpo, DpoSettings
from learner.training.algorithms.pairs import Pair
from learner.training.algorithms.policy_gradient import PolicyGradient, PolicyGradientSettings
from learner.training.algorithms.ppo import Ppo, PpoSettings
from learner.training.algorithms.reward_model import RewardModel, RewardModelSettings
from learner.training.algorithms.sft import Sft, sft_batch
from learner.training.logprobs import choose_scorer
from learner.training.policy import Policy
from learner.training.ranks import Alone, Ranks
from learner.training.rows import MaskedRow
from learner.training.schedule import ScheduleSettings, learning_rate
from learner.training.step import StepWork, compared, report
from learner.training.update import Progress, Updates, Watch, new_memory, on_device
from trajectory.tree import DEFAULT_MAX_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How steps are taken."""

    schedule: ScheduleSettings
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    updates_per_step: int = 1
    """Optimiser updates per batch of rollouts."""
    temperature: float = 1.0
    """At which rollouts are sampled; log-probabilities are taken at the same."""
    rollouts: PolicyGradientSettings | PpoSettings = field(default_factory=PolicyGradientSettings)
    """How to learn from rollouts."""
    preferences: DpoSettings | RewardModelSettings = field(default_factory=DpoSettings)
    """How to learn from pairs."""
    value_learning_rate: float = 1e-3
    """Peak rate of the head for values or scores, which starts from nothing; it follows the same schedule."""
    measure_kl: bool = True
    """Where the KL has no weight in the loss, measure it on one micro-batch of each step."""
    max_nodes: int = DEFAULT_MAX_NODES
    """Tokens that go through the model at once."""


class Trainer:
    """A policy with its optimiser; see the module."""

    def __init__(
        self, policy: Policy, settings: TrainerSettings, ranks: Ranks | None = None
    ) -> None:
        """Makes a fresh optimiser for the policy, whose weights are spread over the ranks if there are several.

        Raises:
            ValueError: the sampling temperature is not above 0.
        """
        if settings.temperature <= 0:
            raise ValueError(
                f"rollout.temperature: found {settings.temperature}; training needs one above 0, "
                "since greedy choices have no probability to learn from"
            )
        self.policy = policy
        self.settings = settings
        self.ranks: Ranks = Alone() if ranks is None else ranks
        self.step = 0
        """Steps that are done."""
        self.policy_version = 0
        """Version of the weights as they are; every step makes a new one."""
        # Tried on the whole model, before the ranks part it.
        self._scorer = choose_scorer(policy.model, policy.device, settings.max_nodes)
        self.ranks.place(policy)
        head = [] if policy.value_head is None else list(policy.value_head.parameters())
        in_head = {id(parameter) for parameter in head}
        body = [value for value in policy.parameters.values() if id(value) not in in_head]
        self._peaks = [settings.schedule.learning_rate]
        """Learning rate of each parameter group at its highest."""
        groups = [{"params": body}]
        if head:
            self._peaks.append(settings.value_learning_rate)
            groups.append({"params": head})
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=settings.schedule.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def sft_step(
        self,
        rows: Sequence[MaskedRow],
        *,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> dict[str, float]:
        """Imitates the rows by one update, and returns figures.

        Raises:
            NonFiniteStep: loss or gradient is not finite. Stopped: `stop` was set. ValueError: a row
                cannot be trained on.
        """
        work = self._work(sft_batch(rows), Sft(), temperature=1.0, num_updates=1)
        return self._take(work, progress, stop)

    def rollout_step(
        self,
        groups: Sequence[Sequence[ScoredRollout]],
        *,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> dict[str, float]:
        """Learns from the scored rollouts of some groups, and returns figures.

        Where nothing carries a signal the weights stay, and the figure `updates` is 0.

        Raises:
            NonFiniteStep: loss or gradient is not finite. Stopped: `stop` was set. ValueError: a row
                cannot be trained on.
        """
        settings = self.settings
        found = settings.rollouts
        algorithm = Ppo(found) if isinstance(found, PpoSettings) else PolicyGradient(found)
        work = self._work(
            algorithm.batch(groups),
            algorithm,
            temperature=settings.temperature,
            num_updates=settings.updates_per_step,
            rollout_ids=tuple(rollout.rollout_id for group in groups for rollout in group),
        )
        return self._take(work, progress, stop)

    def preference_step(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> dict[str, float]:
        """Learns from the pairs by one update, and returns figures.

        Raises:
            NonFiniteStep: loss or gradient is not finite. Stopped: `stop` was set. ValueError: a row
                cannot be trained on.
        """
        return self._take(self._comparison(pairs), progress, stop)

    def measure_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> dict[str, float]:
        """Returns loss and figures of the pairs; nothing is learned.

        Raises:
            Stopped: `stop` was set. ValueError: a row cannot be scored.
        """
        work = self._comparison(pairs)
        updates = self._updates(work, Watch(progress=progress, stop=stop))
        loss = updates.measure()
        return {"loss": loss} | compared(work, updates.memory)

    def measure_rows(
        self,
        rows: Sequence[MaskedRow],
        *,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> float:
        """Returns the mean log-probability of the policy tokens of all rows, in nats; nothing is learned.

        Raises:
            Stopped: `stop` was set. ValueError: a row cannot be scored.
        """
        work = self._work(sft_batch(rows), Sft(), temperature=1.0, num_updates=1)
        return -self._updates(work, Watch(progress=progress, stop=stop)).measure()

    def _comparison(self, pairs: Sequence[Pair]) -> StepWork:
        found = self.settings.preferences
        algorithm = Dpo(found) if isinstance(found, DpoSettings) else RewardModel()
        return self._work(algorithm.batch(pairs), algorithm, temperature=1.0, num_updates=1)

    def _work(
        self,
        batch: Batch,
        algorithm: Algorithm,
        *,
        temperature: float,
        num_updates: int,
        rollout_ids: tuple[str, ...] = (),
    ) -> StepWork:
        return StepWork(
            batch=batch,
            algorithm=algorithm,
            parts=self._scorer.split(batch.tokens) if batch.tokens.num_tokens else [],
            weights_T=on_device(batch.weights_T, self.policy.device),
            row_T=torch.from_numpy(batch.tokens.row_T).to(self.policy.device),
            real_T=torch.ones(batch.tokens.num_tokens, dtype=torch.bool, device=self.policy.device)
            if batch.real_T is None
            else torch.from_numpy(batch.real_T).to(self.policy.device),
            pairs=None if batch.pairs is None else batch.pairs.to(self.policy.device),
            temperature=temperature,
            num_updates=num_updates,
            rollout_ids=rollout_ids,
        )

    def _take(
        self, work: StepWork, progress: Progress | None, stop: Event | None
    ) -> dict[str, float]:
        rate = learning_rate(self.settings.schedule, self.step)
        figures = dict(work.batch.figures) | {"learning_rate": rate, "updates": 0.0}
        if work.parts:
            for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
                schedule = replace(self.settings.schedule, learning_rate=peak)
                group["lr"] = learning_rate(schedule, self.step)
            updates = self._updates(work, Watch(progress=progress, stop=stop))
            updates.take()
            figures |= report(work, updates.memory)
        self.step += 1
        self.policy_version += 1
        return figures

    def _updates(self, work: StepWork, watch: Watch) -> Updates:
        referred: frozenset[int] = frozenset()
        if work.algorithm.needs_reference:
            referred = frozenset(range(len(work.parts)))
        elif (
            self.settings.measure_kl
            and self.policy.can_refer
            and work.batch.engine_logprobs_T is not None
        ):
            # A forward pass of everything would add half of a step's time; each step takes the next part.
            referred = frozenset({self.step % len(work.parts)})
        return Updates(
            policy=self.policy,
            optimizer=self.optimizer,
            ranks=self.ranks,
            work=work,
            memory=new_memory(work, self.policy.device, referred),
            max_grad_norm=self.settings.max_grad_norm,
            watch=watch,
        )
