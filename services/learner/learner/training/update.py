"""Takes the updates of one step: micro-batch after micro-batch, on one rank or several.

A step happens as a whole or not at all: if it is interrupted or not finite, the weights are as they were before.

Shapes: T policy tokens of a batch, P policy tokens of a micro-batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import torch

from learner.ports import Stopped
from learner.training.algorithms.base import Algorithm, FirstPass, ScoredTokens
from learner.training.errors import NonFiniteStep
from learner.training.logprobs import Microbatch, TokenScores
from learner.training.policy import Policy
from learner.training.ranks import Ranks, Turn, turns
from learner.training.step import StepMemory, StepWork

Progress = Callable[[int, int], None]
"""Takes how many rows are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watch:
    """Who is told how a step goes, and who may end it."""

    progress: Progress | None = None
    stop: Event | None = None

    @property
    def stopped(self) -> bool:
        """Whether someone asked for the end."""
        return self.stop is not None and self.stop.is_set()

    def tell(self, done: int, total: int) -> None:
        """Tells how many rows are done."""
        if self.progress is not None:
            self.progress(done, total)


@dataclass(slots=True, kw_only=True)
class _Sums:
    """What the micro-batches of an update add up to on this rank."""

    clipped: float = 0.0
    value_loss: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Updates:
    """The updates of one step over a policy."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    ranks: Ranks
    work: StepWork
    memory: StepMemory
    max_grad_norm: float
    watch: Watch
    turns: list[Turn] = field(init=False)
    mine_T: torch.Tensor = field(init=False)
    """Tokens that this rank computes."""

    def __post_init__(self) -> None:
        """Takes this rank's share."""
        self.turns = turns(self.work.parts, self.ranks)
        self.mine_T = torch.zeros_like(self.work.real_T)
        for turn in self.turns:
            if turn.counts:
                self.mine_T[turn.part.tokens_P] = True

    def take(self) -> None:
        """Takes them all.

        Raises:
            NonFiniteStep: loss or gradient is not finite. Stopped: someone asked for it.
        """
        if self.work.algorithm.needs_scores_first:
            self._score_first()
        before = self._snapshot() if self.work.num_updates > 1 else None
        try:
            for update in range(self.work.num_updates):
                self._update(update)
        except (NonFiniteStep, Stopped):
            if before is not None:
                self._restore(before)
            raise
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self._join()

    def measure(self) -> float:
        """Returns the loss; nothing is learned.

        Raises:
            Stopped: someone asked for it.
        """
        loss, done = 0.0, 0
        sums = _Sums()
        with torch.no_grad():
            for turn in self._rounds():
                if self.work.algorithm.needs_reference:
                    self._ask_reference(turn)
                found = self._loss(turn, sums, first=True)
                loss += self.ranks.sum(float(found))
                done += turn.round_rows
                self.watch.tell(done, len(self.work.batch.tokens.rows))
        self._join()
        return loss

    def _rounds(self) -> Iterator[Turn]:
        for turn in self.turns:
            if self.ranks.any(self.watch.stopped):
                raise Stopped
            yield turn

    def _score_first(self) -> None:
        """Goes over the batch without gradients, for advantages that need log-probabilities."""
        work, memory = self.work, self.memory
        total = len(work.batch.tokens.rows) * work.num_updates
        for turn in self._rounds():
            tokens = turn.part.tokens_P
            with torch.no_grad():
                scored = self._scores(turn.part)
            if turn.counts:
                memory.old_logprobs_T[tokens] = scored.logprobs_P
                if scored.values_P is not None:
                    memory.values_T[tokens] = scored.values_P
            if work.algorithm.needs_reference:
                self._ask_reference(turn)
            # No row is learned from yet, but this rank is alive.
            self.watch.tell(0, total)
        self._join()
        targets = work.algorithm.targets(
            work.batch,
            FirstPass(
                old_logprobs_T=memory.old_logprobs_T.double().cpu().numpy(),
                reference_logprobs_T=memory.reference_logprobs_T.double().cpu().numpy(),
                values_T=memory.values_T.double().cpu().numpy(),
            ),
        )
        memory.advantages_T = on_device(targets.advantages_T, self.policy.device)
        if targets.returns_T is not None:
            memory.returns_T = on_device(targets.returns_T, self.policy.device)
        memory.figures |= targets.figures
        # No engine sampled the tokens that hold the value of a cut-off; there is nothing to correct.
        memory.engine_logprobs_T = torch.where(
            work.real_T, memory.engine_logprobs_T, memory.old_logprobs_T
        )

    def _scores(self, part: Microbatch) -> TokenScores:
        """Scores a micro-batch by the policy; not for a backward pass, which needs the loss inside."""
        model, head = self.policy.model, self._value_head(self.work.algorithm)
        return self.policy.run(model, lambda: part.score(model, self.work.temperature, head))

    def _value_head(self, algorithm: Algorithm) -> torch.nn.Linear | None:
        if not algorithm.needs_values:
            return None
        assert self.policy.value_head is not None, "the policy was loaded without a value head"
        return self.policy.value_head

    def _update(self, update: int) -> None:
        """Takes one optimiser update over the whole batch."""
        work, memory = self.work, self.memory
        self.optimizer.zero_grad(set_to_none=True)
        num_rows = len(work.batch.tokens.rows)
        total, done = num_rows * work.num_updates, num_rows * update
        loss, sums = 0.0, _Sums()
        asked = work.algorithm.needs_scores_first and work.algorithm.needs_reference
        for turn in self._rounds():
            refers = not memory.referred.isdisjoint(turn.round_places)
            if update == 0 and refers and not asked:
                self._ask_reference(turn)
            loss += self._backward(turn, sums, first=update == 0)
            done += turn.round_rows
            self.watch.tell(done, total)
        norm = self._clip()
        if not _is_finite(norm):
            raise NonFiniteStep(f"the gradient's norm is {norm}", work.rollout_ids)
        self.optimizer.step()
        memory.losses.append(loss)
        memory.grad_norms.append(norm)
        memory.clipped.append(self.ranks.sum(sums.clipped) / work.batch.tokens.num_tokens)
        if work.algorithm.needs_values:
            memory.value_losses.append(self.ranks.sum(sums.value_loss))

    def _clip(self) -> float:
        """Scales the gradient down to the largest norm; returns what it was."""
        norm: Any = torch.nn.utils.clip_grad_norm_(
            list(self.policy.parameters.values()), self.max_grad_norm
        )
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def _ask_reference(self, turn: Turn) -> None:
        with self.policy.reference() as reference:
            scored = self.policy.run(
                reference, lambda: turn.part.score(reference, self.work.temperature)
            )
        if turn.counts and turn.place in self.memory.referred:
            self.memory.reference_logprobs_T[turn.part.tokens_P] = scored.logprobs_P

    def _backward(self, turn: Turn, sums: _Sums, *, first: bool) -> float:
        """Adds one round to the gradient; returns its share of the loss."""
        loss = self._loss(turn, sums, first=first)
        value = self.ranks.sum(float(loss.detach()))
        if not _is_finite(value):
            raise NonFiniteStep(f"the loss is {value}", self.work.rollout_ids)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        return value

    def _loss(self, turn: Turn, sums: _Sums, *, first: bool) -> torch.Tensor:
        """Returns a micro-batch's share of the loss.

        Selection of tokens, output layer and loss run where the weights are whole.
        """
        model = self.policy.model
        return self.policy.run(model, lambda: self._loss_inside(model, turn, sums, first=first))

    def _loss_inside(self, model: Any, turn: Turn, sums: _Sums, *, first: bool) -> torch.Tensor:
        work, memory, tokens = self.work, self.memory, turn.part.tokens_P
        scores = turn.part.score(model, work.temperature, self._value_head(work.algorithm))
        if not turn.counts:
            # The others wait for this rank's part of the weights, forward and backward.
            idle = scores.logprobs_P.sum()
            return 0.0 * (idle if scores.values_P is None else idle + scores.values_P.sum())
        old_P = scores.logprobs_P.detach() if first else memory.old_logprobs_T[tokens]
        found = work.algorithm.token_loss(
            ScoredTokens(
                logprobs_P=scores.logprobs_P,
                old_logprobs_P=old_P,
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
        weights_P = work.weights_T[tokens]
        loss = (weights_P * found.loss_P).sum()
        if first:
            memory.old_logprobs_T[tokens] = old_P
            memory.entropy_T[tokens] = scores.entropy_P
        if first and found.importance_P is not None:
            memory.importance_T[tokens] = found.importance_P.detach()
        if first and found.rewards_P is not None:
            memory.rewards_T[tokens] = found.rewards_P
        if found.value_loss_P is not None:
            sums.value_loss += float((weights_P * found.value_loss_P).sum())
        if found.clipped_P is not None:
            sums.clipped += float(found.clipped_P.sum())
        return loss

    def _join(self) -> None:
        """Learns what the other ranks found about their tokens."""
        memory = self.memory
        for name in JOINED:
            setattr(memory, name, self.ranks.join(getattr(memory, name), self.mine_T))

    def _snapshot(self) -> "_Snapshot":
        state = self.optimizer.state_dict()
        return _Snapshot(
            weights=[parameter.detach().clone() for parameter in self.policy.parameters.values()],
            optimizer={
                "state": {
                    key: {name: value.clone() for name, value in entry.items()}
                    for key, entry in state["state"].items()
                },
                "param_groups": state["param_groups"],
            },
        )

    def _restore(self, before: "_Snapshot") -> None:
        with torch.no_grad():
            for parameter, saved in zip(
                self.policy.parameters.values(), before.weights, strict=True
            ):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(before.optimizer)


JOINED = (
    "old_logprobs_T",
    "entropy_T",
    "reference_logprobs_T",
    "importance_T",
    "rewards_T",
    "values_T",
)
"""What each rank finds about its own tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Snapshot:
    weights: Sequence[torch.Tensor]
    optimizer: dict[str, Any]


def new_memory(work: StepWork, device: torch.device, referred: frozenset[int]) -> StepMemory:
    """Returns the memory of a step before its first update."""

    def full(value: float) -> torch.Tensor:
        return torch.full((work.batch.tokens.num_tokens,), value, device=device)

    engine_T = work.batch.engine_logprobs_T
    return StepMemory(
        old_logprobs_T=full(0.0),
        entropy_T=full(0.0),
        reference_logprobs_T=full(math.nan),
        referred=referred,
        advantages_T=on_device(work.batch.advantages_T, device),
        engine_logprobs_T=full(math.nan) if engine_T is None else on_device(engine_T, device),
        importance_T=full(1.0),
        rewards_T=full(0.0),
        values_T=full(0.0),
        returns_T=full(0.0),
    )


def on_device(values: Any, device: torch.device) -> torch.Tensor:
    """Returns an array as a float32 tensor."""
    return torch.from_numpy(values).to(device, torch.float32)


def _is_finite(value: float) -> bool:
    return value - value == 0.0
