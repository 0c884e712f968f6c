"""What a run will take: rollouts, tokens, time, memory and money, each with what was assumed.

Pure: `sizing` finds the lengths, the model's size and the speeds of earlier runs. Counts of rollouts and updates are
exact, but for retries. Tokens lie within their bounds; each token of a rollout or row is counted once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from modelstore.shape import ModelShape
from runspec.schema import RunSpec

ASSUMED_TRAIN_FLOPS = 100e9
"""Per core and second, where no run was measured; a server's core with AVX-512 has reached 150e9."""
ASSUMED_SAMPLE_FLOPS = 50e9
ASSUMED_SHARE_OF_TURN = 0.5
"""Of max_new_tokens, where no run was measured."""
MICROBATCH_TOKENS = 1024
"""That go through the learner's model at once."""
_BYTES = {"float32": 4, "bfloat16": 2}
_TRAINED_BYTES = 16
"""Per trained parameter: itself, its gradient and two moments, in float32."""
_BASE_BYTES = 0.6e9
"""Of a process that has torch loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the rows of one data set."""

    tokens: Sequence[int]
    """Of each row that was looked at: prompts of tasks, whole rows or pairs of all others."""
    num_rows: int
    """In all; a sample was looked at where there are more than lengths."""

    def visited(self, visits: int) -> tuple[int, float, int]:
        """Tokens of this many visits that walk through all rows again and again: least, expected, most."""
        mean = sum(self.tokens) / len(self.tokens)
        if len(self.tokens) < self.num_rows:
            # Rows that nobody looked at may be shorter or longer, so these are no bounds in the strict sense.
            return round(visits * min(self.tokens)), visits * mean, round(visits * max(self.tokens))
        epochs, rest = divmod(visits, self.num_rows)
        ordered = sorted(self.tokens)
        whole = epochs * sum(ordered)
        least, most = sum(ordered[:rest]), sum(ordered[len(ordered) - rest :])
        return whole + least, visits * mean, whole + most


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What an earlier run of the same model on the same learner took."""

    run_id: str
    tokens_per_rollout: float = 0.0
    """Sampled, in the mean; 0 where the run had no rollouts."""
    rollout_seconds_per_token: float = 0.0
    """Per sampled token."""
    train_seconds_per_token: float = 0.0
    """Per sampled token, with checkpoint and publication."""
    train_seconds_per_row: float = 0.0
    """Of a run over rows or pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the machine or the tokens cost, in any currency; None means not asked."""

    per_hour: float | None = None
    per_million_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From least to most, and what is expected."""

    least: float
    expected: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What is known before the run."""

    spec: RunSpec
    train: Lengths | None
    """None where no tokenizer was at hand, or nothing is trained."""
    eval: Lengths | None
    num_eval_tasks: int = 0
    shape: ModelShape | None = None
    speed: Speed | None = None
    prices: Prices = Prices()
    num_cores: int = 1
    tools_counted: bool = True
    """Whether lengths hold the descriptions of the run's tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the run will take; None where nothing is known to estimate it from."""

    updates: int
    rollouts: int
    """Of training and evaluation, without retries."""
    evaluations: int
    tokens: Range | None
    sampled_tokens: Range | None
    """A part of tokens; None for a run without rollouts."""
    seconds: float | None
    memory_bytes: float | None
    """Of the learner at its highest."""
    cost: float | None
    assumptions: tuple[str, ...]


def estimate(found: Inputs) -> Estimate:
    """Estimates a run."""
    said: list[str] = []
    spec = found.spec
    evaluations = num_evaluations(spec)
    visits = spec.train.batch_size * spec.train.max_steps
    trained = visits * spec.train.group_size if spec.reinforces else 0
    measured = evaluations * found.num_eval_tasks * spec.eval.samples if spec.rolls_out else 0
    tokens, sampled = _tokens(found, visits, measured, said)
    seconds = _seconds(found, visits, trained, measured, tokens, sampled, said)
    memory = _memory(found, said)
    if spec.rolls_out:
        said.append("retries are not counted")
    if spec.train.max_resampled_groups and spec.reinforces:
        said.append("groups that replace silent ones are not counted (train.max_resampled_groups)")
    return Estimate(
        updates=0 if spec.algorithm == "evaluate" else spec.train.max_steps,
        rollouts=trained + measured,
        evaluations=evaluations,
        tokens=tokens,
        sampled_tokens=sampled,
        seconds=seconds,
        memory_bytes=memory,
        cost=_cost(found.prices, seconds, tokens, said),
        assumptions=tuple(said),
    )


def num_evaluations(spec: RunSpec) -> int:
    """How often the held-out set is measured."""
    if spec.algorithm == "evaluate":
        return 1
    if not spec.data.eval:
        return 0
    every = spec.eval.every_steps
    if spec.compares:
        # Before the first step, every so many, and after the last.
        return (math.ceil(spec.train.max_steps / every) if every else 1) + 1
    return math.ceil(spec.train.max_steps / every) + 1 if every and spec.reinforces else 0


def _tokens(
    found: Inputs, visits: int, measured: int, said: list[str]
) -> tuple[Range | None, Range | None]:
    spec = found.spec
    parts: list[tuple[Lengths | None, int, int]] = []
    if spec.algorithm != "evaluate":
        parts.append((found.train, visits, spec.train.group_size if spec.reinforces else 1))
    evaluations = num_evaluations(spec)
    if evaluations:
        copies = spec.eval.samples if spec.rolls_out else 1
        parts.append((found.eval, evaluations * found.num_eval_tasks, copies))
    if any(lengths is None for lengths, _, _ in parts):
        said.append("tokens are not estimated, as the model's tokenizer is not on this machine")
        return None, None
    lengths = [part for part, _, _ in parts if part is not None]
    if any(len(one.tokens) < one.num_rows for one in lengths):
        looked = ", ".join(f"{len(one.tokens)} of {one.num_rows}" for one in lengths)
        said.append(f"lengths are of a sample of the rows ({looked})")
    ranges = [
        tuple(value * copies for value in one.visited(count))
        for one, count, copies in parts
        if one is not None
    ]
    least, expected, most = (sum(column) for column in zip(*ranges, strict=True))
    if not found.tools_counted:
        said.append(
            "descriptions of tools are counted in the most alone: no tool gateway is running"
        )
    if not spec.rolls_out:
        sides = 2 if spec.compares else 1
        room = spec.rollout.max_total_tokens * sides * sum(count for _, count, _ in parts)
        return Range(
            least=least, expected=expected, most=most if found.tools_counted else room
        ), None
    rollouts = sum(count * copies for _, count, copies in parts)
    sampled = _sampled(found, rollouts, said)
    rollout = spec.rollout
    room = rollout.max_total_tokens * rollouts
    several = rollout.max_turns > 1 and bool(rollout.tools)
    if several:
        said.append("tool results are counted in the most, not in what is expected")
    return (
        Range(
            least=least + sampled.least,
            expected=min(room, expected + sampled.expected),
            most=room if several or not found.tools_counted else min(room, most + sampled.most),
        ),
        sampled,
    )


def _sampled(found: Inputs, rollouts: int, said: list[str]) -> Range:
    rollout, speed = found.spec.rollout, found.speed
    turns = rollout.max_turns if rollout.tools else 1
    longest = min(rollout.max_new_tokens * turns, rollout.max_total_tokens)
    if speed is not None and speed.tokens_per_rollout:
        each = min(longest, speed.tokens_per_rollout)
        said.append(f"a rollout samples {each:.4g} tokens, as in run {speed.run_id}")
    else:
        each = ASSUMED_SHARE_OF_TURN * rollout.max_new_tokens * min(turns, 2)
        taken = "half of rollout.max_new_tokens" + (" in each of two turns" if turns > 1 else "")
        said.append(f"a rollout samples {each:.4g} tokens ({taken}; no run was measured)")
    return Range(least=rollouts, expected=rollouts * each, most=rollouts * longest)


def _seconds(
    found: Inputs,
    visits: int,
    trained: int,
    measured: int,
    tokens: Range | None,
    sampled: Range | None,
    said: list[str],
) -> float | None:
    spec, speed = found.spec, found.speed
    if speed is not None and spec.rolls_out and speed.rollout_seconds_per_token and sampled:
        share = trained / max(1, trained + measured)
        said.append(f"speeds are those of run {speed.run_id} on this learner")
        if spec.train.max_staleness:
            said.append("rollouts beside training are not taken off the time")
        return sampled.expected * (
            speed.rollout_seconds_per_token + share * speed.train_seconds_per_token
        )
    if speed is not None and not spec.rolls_out and speed.train_seconds_per_row:
        said.append(
            f"a row takes as long as in run {speed.run_id} on this learner; evaluation is left out"
        )
        return visits * speed.train_seconds_per_row
    if tokens is None or found.shape is None:
        said.append("time is not estimated, as the model is not on this machine")
        return None
    said.append(
        f"no run of this model was measured here: {ASSUMED_TRAIN_FLOPS / 1e9:.0f} GFLOP/s for training "
        f"and {ASSUMED_SAMPLE_FLOPS / 1e9:.0f} for sampling on each of {found.num_cores} cores; a GPU "
        "is far faster"
    )
    size, cores = found.shape.num_parameters, found.num_cores
    work, share = tokens.expected, 1.0
    if sampled is not None:
        # The rollouts of a group share their prompt, in sampling and in training.
        group = spec.train.group_size if spec.reinforces else spec.eval.samples
        work = sampled.expected + (tokens.expected - sampled.expected) / group
        share = trained / max(1, trained + measured)
    # Forward and back; the weights' own gradients with full weights alone; rollouts are scored once before.
    passes = (6 if spec.train.weights == "full" else 4) + (2 if spec.reinforces else 0)
    train = 0 if spec.algorithm == "evaluate" else passes * size * work * share
    sample = 2 * size * work if sampled is not None else 0
    return train / (ASSUMED_TRAIN_FLOPS * cores) + sample / (ASSUMED_SAMPLE_FLOPS * cores)


def _is_called(weight: str, part: str) -> bool:
    """Says whether a matrix is that of a layer, or of layers, of such a name: the last parts of its place."""
    return f".{weight.removesuffix('.weight')}".endswith(f".{part}")


def _memory(found: Inputs, said: list[str]) -> float | None:
    spec, shape = found.spec, found.shape
    if spec.algorithm == "evaluate":
        if spec.model.dtype == "auto":
            said.append("model.dtype: auto is float32 in an evaluation, which trains nothing")
        return None
    dtype = _dtype(spec, said)
    if shape is None:
        said.append("memory is not estimated, as the model is not on this machine")
        return None
    each = _BYTES[dtype]
    copies = 1
    if spec.train.weights == "full":
        trained = shape.num_parameters
        # The reference is a frozen copy, where something asks for it.
        copies += spec.algorithm == "dpo" or (spec.reinforces and spec.train.kl_coef > 0)
    else:
        wanted = spec.lora.target_modules
        trained = sum(
            spec.lora.new_rank * (rows + columns)
            for name, (rows, columns) in shape.linear_shapes.items()
            if not wanted or any(_is_called(name, part) for part in wanted)
        )
        said += [
            f"lora.target_modules: no linear layer of the model's blocks is called {part!r}"
            for part in wanted
            if not any(_is_called(name, part) for name in shape.linear_shapes)
        ]
    longest = max(found.train.tokens) if found.train is not None else 0
    if spec.rolls_out:
        longest = min(spec.rollout.max_total_tokens, longest + spec.rollout.max_new_tokens)
    width = max(MICROBATCH_TOKENS, longest)
    activations = width * (
        shape.num_layers * shape.hidden_size * 16 * 4 + shape.vocabulary_size * 4 * 3
    )
    said.append(
        f"memory is the learner's: {shape.num_parameters / 1e6:.4g} million parameters, "
        f"{trained / 1e6:.4g} million trained, {width} tokens at once; within a factor of 2. The rollout "
        "service holds the weights once more"
    )
    return (
        _BASE_BYTES + copies * shape.num_parameters * each + trained * _TRAINED_BYTES + activations
    )


def _dtype(spec: RunSpec, said: list[str]) -> str:
    """Number type that is counted with."""
    if spec.model.dtype != "auto":
        return spec.model.dtype or "float32"
    if spec.train.weights == "full":
        said.append("model.dtype: auto is float32 with train.weights full")
    else:
        said.append(
            "model.dtype: auto is measured when the run starts; what is said here is for float32"
        )
    return "float32"


def _cost(
    prices: Prices, seconds: float | None, tokens: Range | None, said: list[str]
) -> float | None:
    parts = []
    if prices.per_hour is not None and seconds is not None:
        parts.append(prices.per_hour * seconds / 3600)
    if prices.per_million_tokens is not None and tokens is not None:
        parts.append(prices.per_million_tokens * tokens.expected / 1e6)
    if parts:
        said.append("money is what is expected, without start, idle time and storage")
    return sum(parts) if parts else None
