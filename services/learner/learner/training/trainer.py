"""Runs optimiser steps over a policy.

All methods run on one thread, the same for all of them, and block; the service gives them a worker
thread. A step happens as a whole or not at all: if it is interrupted or not finite, the weights are as
they were before.

Shapes: T policy tokens of a batch, P policy tokens of a micro-batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import torch

from learner.ports import ScoredRollout, Stopped
from learner.training.algorithms.base import Algorithm, Batch, FirstPass, ScoredTokens
from learner.training.algorithms.dpo import Dpo, DpoSettings
from learner.training.algorithms.pairs import Pair
from learner.training.algorithms.policy_gradient import PolicyGradient, PolicyGradientSettings
from learner.training.algorithms.ppo import Ppo, PpoSettings
from learner.training.algorithms.reward_model import RewardModel, RewardModelSettings
from learner.training.algorithms.sft import Sft, sft_batch
from learner.training.errors import NonFiniteStep
from learner.training.logprobs import Microbatch, TokenScores, choose_scorer
from learner.training.model import Policy
from learner.training.rows import MaskedRow
from learner.training.schedule import ScheduleSettings, learning_rate
from learner.training.step import StepMemory, StepWork, compared, report
from trajectory.tree import DEFAULT_MAX_NODES

Progress = Callable[[int, int], None]
"""Takes how many rows are done, and of how many."""


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

    def __init__(self, policy: Policy, settings: TrainerSettings) -> None:
        """Makes a fresh optimiser for the policy.

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
        self.step = 0
        """Steps that are done."""
        self.policy_version = 0
        """Version of the weights as they are; every step makes a new one."""
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
        self._scorer = choose_scorer(policy.model, policy.device, settings.max_nodes)

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
        memory = self._memory(work)
        loss, done = 0.0, 0
        with torch.no_grad():
            for part in work.parts:
                if stop is not None and stop.is_set():
                    raise Stopped
                if work.algorithm.needs_reference:
                    self._ask_reference(work, memory, part)
                loss += float(self._loss(work, memory, part, first=True)[0])
                done += part.num_rows
                if progress is not None:
                    progress(done, len(work.batch.tokens.rows))
        return {"loss": loss} | compared(work, memory)

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
            weights_T=self._tensor(batch.weights_T),
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
            memory = self._memory(work)
            if work.algorithm.needs_scores_first:
                self._score_first(work, memory, stop)
            before = self._snapshot() if work.num_updates > 1 else None
            try:
                for update in range(work.num_updates):
                    self._update(work, memory, update, progress, stop)
            except (NonFiniteStep, Stopped):
                if before is not None:
                    self._restore(before)
                raise
            finally:
                self.optimizer.zero_grad(set_to_none=True)
            figures |= report(work, memory)
        self.step += 1
        self.policy_version += 1
        return figures

    def _memory(self, work: StepWork) -> StepMemory:
        def full(value: float) -> torch.Tensor:
            return torch.full((work.batch.tokens.num_tokens,), value, device=self.policy.device)

        referred: frozenset[int] = frozenset()
        if work.algorithm.needs_reference:
            referred = frozenset(range(len(work.parts)))
        elif self.settings.measure_kl and work.batch.engine_logprobs_T is not None:
            # A forward pass of everything would add half of a step's time; each step takes the next part.
            referred = frozenset({self.step % len(work.parts)})
        return StepMemory(
            old_logprobs_T=full(0.0),
            entropy_T=full(0.0),
            reference_logprobs_T=full(math.nan),
            referred=referred,
            advantages_T=self._tensor(work.batch.advantages_T),
            engine_logprobs_T=full(math.nan)
            if work.batch.engine_logprobs_T is None
            else self._tensor(work.batch.engine_logprobs_T),
            importance_T=full(1.0),
            rewards_T=full(0.0),
            values_T=full(0.0),
            returns_T=full(0.0),
        )

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(self.policy.device, torch.float32)

    def _score_first(self, work: StepWork, memory: StepMemory, stop: Event | None) -> None:
        """Goes over the batch without gradients, for advantages that need log-probabilities."""
        for part in work.parts:
            if stop is not None and stop.is_set():
                raise Stopped
            with torch.no_grad():
                scored = part.score(
                    self.policy.model, work.temperature, self._value_head(work.algorithm)
                )
            memory.old_logprobs_T[part.tokens_P] = scored.logprobs_P
            if scored.values_P is not None:
                memory.values_T[part.tokens_P] = scored.values_P
            if work.algorithm.needs_reference:
                self._ask_reference(work, memory, part)
        targets = work.algorithm.targets(
            work.batch,
            FirstPass(
                old_logprobs_T=memory.old_logprobs_T.double().cpu().numpy(),
                reference_logprobs_T=memory.reference_logprobs_T.double().cpu().numpy(),
                values_T=memory.values_T.double().cpu().numpy(),
            ),
        )
        memory.advantages_T = self._tensor(targets.advantages_T)
        if targets.returns_T is not None:
            memory.returns_T = self._tensor(targets.returns_T)
        memory.figures |= targets.figures
        # No engine sampled the tokens that hold the value of a cut-off; there is nothing to correct.
        memory.engine_logprobs_T = torch.where(
            work.real_T, memory.engine_logprobs_T, memory.old_logprobs_T
        )

    def _value_head(self, algorithm: Algorithm) -> torch.nn.Linear | None:
        if not algorithm.needs_values:
            return None
        assert self.policy.value_head is not None, "the policy was loaded without a value head"
        return self.policy.value_head

    def _update(
        self,
        work: StepWork,
        memory: StepMemory,
        update: int,
        progress: Progress | None,
        stop: Event | None,
    ) -> None:
        """Takes one optimiser update over the whole batch."""
        self.optimizer.zero_grad(set_to_none=True)
        num_rows = len(work.batch.tokens.rows)
        total, done = num_rows * work.num_updates, num_rows * update
        loss = clipped = 0.0
        for index, part in enumerate(work.parts):
            if stop is not None and stop.is_set():
                raise Stopped
            asked = work.algorithm.needs_scores_first and work.algorithm.needs_reference
            if update == 0 and index in memory.referred and not asked:
                self._ask_reference(work, memory, part)
            part_loss, part_clipped = self._backward(work, memory, part, first=update == 0)
            loss += part_loss
            clipped += part_clipped
            done += part.num_rows
            if progress is not None:
                progress(done, total)
        norm = float(
            torch.nn.utils.clip_grad_norm_(
                list(self.policy.parameters.values()), self.settings.max_grad_norm
            )
        )
        if not _is_finite(norm):
            raise NonFiniteStep(f"the gradient's norm is {norm}", work.rollout_ids)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            schedule = replace(self.settings.schedule, learning_rate=peak)
            group["lr"] = learning_rate(schedule, self.step)
        self.optimizer.step()
        memory.losses.append(loss)
        memory.grad_norms.append(norm)
        memory.clipped.append(clipped / work.batch.tokens.num_tokens)

    def _ask_reference(self, work: StepWork, memory: StepMemory, part: Microbatch) -> None:
        with self.policy.reference() as reference:
            scored = part.score(reference, work.temperature)
        memory.reference_logprobs_T[part.tokens_P] = scored.logprobs_P

    def _backward(
        self, work: StepWork, memory: StepMemory, part: Microbatch, *, first: bool
    ) -> tuple[float, float]:
        """Adds one micro-batch to the gradient; returns its share of the loss and its clipped tokens."""
        loss, clipped = self._loss(work, memory, part, first=first)
        value = float(loss.detach())
        if not _is_finite(value):
            raise NonFiniteStep(f"the loss is {value}", work.rollout_ids)
        loss.backward()  # type: ignore[no-untyped-call]
        return value, clipped

    def _loss(
        self, work: StepWork, memory: StepMemory, part: Microbatch, *, first: bool
    ) -> tuple[torch.Tensor, float]:
        """Returns a micro-batch's share of the loss, and its clipped tokens."""
        tokens = part.tokens_P
        scores: TokenScores = part.score(
            self.policy.model, work.temperature, self._value_head(work.algorithm)
        )
        if first:
            memory.old_logprobs_T[tokens] = scores.logprobs_P.detach()
            memory.entropy_T[tokens] = scores.entropy_P
        found = work.algorithm.token_loss(
            ScoredTokens(
                logprobs_P=scores.logprobs_P,
                old_logprobs_P=memory.old_logprobs_T[tokens],
                reference_logprobs_P=memory.reference_logprobs_T[tokens],
                advantages_P=memory.advantages_T[tokens],
                engine_logprobs_P=memory.engine_logprobs_T[tokens],
                values_P=scores.values_P,
                old_values_P=memory.values_T[tokens],
                returns_P=memory.returns_T[tokens],
                row_P=work.row_T[tokens],
                pairs=None if work.pairs is None else work.pairs.at(tokens),
            )
        )
        if first and found.importance_P is not None:
            memory.importance_T[tokens] = found.importance_P
        if first and found.rewards_P is not None:
            memory.rewards_T[tokens] = found.rewards_P
        weights_P = work.weights_T[tokens]
        loss = (weights_P * found.loss_P).sum()
        if found.value_loss_P is not None:
            memory.value_losses.append(float((weights_P * found.value_loss_P).sum()))
        clipped = 0.0 if found.clipped_P is None else float(found.clipped_P.sum())
        return loss, clipped

    def _snapshot(self) -> tuple[list[torch.Tensor], dict[str, Any]]:
        weights = [parameter.detach().clone() for parameter in self.policy.parameters.values()]
        state = self.optimizer.state_dict()
        copied = {
            key: {name: value.clone() for name, value in entry.items()}
            for key, entry in state["state"].items()
        }
        return weights, {"state": copied, "param_groups": state["param_groups"]}

    def _restore(self, before: tuple[list[torch.Tensor], dict[str, Any]]) -> None:
        weights, state = before
        with torch.no_grad():
            for parameter, saved in zip(self.policy.parameters.values(), weights, strict=True):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state)


def _is_finite(value: float) -> bool:
    return value - value == 0.0
