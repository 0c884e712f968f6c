"""How long float32 and bfloat16 take to train a model on this device: `python -m learner.training.dtype_speed`.

Timed is what an update is made of: a micro-batch, forward and back, through the code that the run itself goes through.
The layers of a model are alike, so one layer of its own sizes with an adapter stands for all of them, and the output
layer is timed by itself:

    seconds = layers of the model x seconds of a layer + seconds of the output layer

What weights say does not change how long they take; they are random. Both types take turns, and the median of the
rounds counts, after one round that warms up. On a CPU the seconds are of this process on all its threads, so that a
busy neighbour does not decide: beside other work the ratio of the two stayed within 0.63 and 0.68 over repetitions, by
the clock within 0.55 and 0.80. On a GPU they are by the clock. Left out are loading, the optimiser, which sees the
adapter alone, what a run does without gradients, and on a CPU how well each type spreads over many cores.

Shapes: M hidden states that predict, V vocabulary, X hidden size.
"""

import copy
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from learner.runs.dtype_choice import DtypeSeconds
from learner.training.attention import register_tree_attention
from learner.training.head import pair_logprobs
from learner.training.logprobs import Microbatch, choose_scorer
from learner.training.model import DTYPES, PolicySettings, attach, attention_of, default_device
from learner.training.rows import policy_tokens
from learner.workers.dtype_probe import ProbeSettings
from modelstore.compute import tune_compute
from modelstore.resolve import ModelUnusableError, resolve_model
from trajectory.rendering import RenderedRow

MIN_ROUNDS, MAX_ROUNDS = 3, 7

BUDGET_SECONDS = 4.0
"""After which no round begins, once there are enough."""

MIN_SAMPLE_SECONDS = 0.02
"""What takes less is repeated, so that one hitch does not count for much."""

PROMPT_TOKENS, NUM_ANSWERS, ANSWER_TOKENS = 128, 6, 65
"""A group of rollouts: its tree has 512 nodes, a whole micro-batch."""

PROBE_VOCABULARY = 256
"""Of the layer's model; the output layer has a matrix of its own."""

MAX_OUTPUT_ROWS = 16_384
"""Of the output layer that are held; its time grows with their number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateParts:
    """Work that makes up a micro-batch in one number type, and how often the whole model does each."""

    parts: tuple[tuple[Callable[[], None], float], ...]
    device: torch.device

    def seconds(self) -> float:
        """Returns what a micro-batch of the whole model takes."""
        return sum(times * _seconds(work, self.device) for work, times in self.parts)


def measure(settings: PolicySettings, device: torch.device) -> DtypeSeconds:
    """Times the model of a folder in both number types; `settings.dtype` is not read.

    Raises:
        ModelUnusableError: the model cannot be opened, or not with these settings.
    """
    both = {name: update_parts(replace(settings, dtype=name), device) for name in DTYPES}
    rounds: dict[str, list[float]] = {name: [] for name in both}
    for parts in both.values():
        parts.seconds()
    began = time.perf_counter()
    while len(rounds["float32"]) < MAX_ROUNDS:
        for name, parts in both.items():
            rounds[name].append(parts.seconds())
        enough = len(rounds["float32"]) >= MIN_ROUNDS
        if enough and time.perf_counter() - began > BUDGET_SECONDS:
            break
    medians = {name: statistics.median(found) for name, found in rounds.items()}
    return DtypeSeconds(**medians, of_cpu=device.type == "cpu")


def update_parts(settings: PolicySettings, device: torch.device) -> UpdateParts:
    """Makes one layer and an output layer of the model's sizes, and the micro-batch that goes through them.

    Raises:
        ModelUnusableError: the model cannot be opened, or not with these settings.
    """
    register_tree_attention()
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(settings.folder), local_files_only=True
        )
        whole = config.get_text_config()
        num_layers, vocabulary = whole.num_hidden_layers, whole.vocab_size
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(0)
            # transformers has no types for it
            model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                _of_one_layer(config),
                dtype=DTYPES[settings.dtype],
                attn_implementation=attention_of(config),
            )
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusableError(
            f"model.path: {str(settings.folder)!r} cannot be opened as a causal language model: "
            f"{error}"
        ) from error
    model.requires_grad_(False)
    model = attach(model, settings).model
    # Inner layers hand a gradient on to the layer below, which the first one alone does not.
    model.enable_input_require_grads()
    part = _microbatch(model, device)
    held = min(vocabulary, MAX_OUTPUT_ROWS)
    output = _output_layer(model, held, len(part.tokens_P), device)
    layer = _layer(model, part)
    return UpdateParts(parts=((layer, num_layers), (output, vocabulary / held)), device=device)


def _of_one_layer(config: Any) -> Any:
    """Returns the configuration of the same model with one layer and few words."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    text.num_hidden_layers = 1
    text.vocab_size = PROBE_VOCABULARY
    text.pad_token_id = None
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    return small


def _microbatch(model: Any, device: torch.device) -> Microbatch:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, PROBE_VOCABULARY, size=PROMPT_TOKENS).tolist()
    mask = (*[False] * PROMPT_TOKENS, *[True] * ANSWER_TOKENS)
    rows = [
        RenderedRow(
            token_ids=(*prompt, *rng.integers(0, PROBE_VOCABULARY, size=ANSWER_TOKENS).tolist()),
            loss_mask=mask,
        )
        for _ in range(NUM_ANSWERS)
    ]
    return choose_scorer(model, device).split(policy_tokens(rows))[0]


def _layer(model: Any, part: Microbatch) -> Callable[[], None]:
    """Returns what runs a micro-batch through the layer, forward and back."""
    slope = torch.ones_like(part.states(model))

    def work() -> None:
        part.states(model).backward(slope)  # type: ignore[no-untyped-call]  # torch has no types for it

    return work


def _output_layer(
    model: Any, num_words: int, num_states: int, device: torch.device
) -> Callable[[], None]:
    """Returns what runs the hidden states of a micro-batch through an output layer, forward and back."""
    like = model.get_output_embeddings().weight
    generator = torch.Generator(device).manual_seed(0)

    def random(rows: int) -> torch.Tensor:
        made = torch.randn(rows, like.shape[1], generator=generator, device=device)
        return made.to(like.dtype)

    weight_VX, hidden_MX = random(num_words).mul_(like.shape[1] ** -0.5), random(num_states)
    hidden_MX.requires_grad_()
    state_P = torch.arange(num_states, device=device)
    target_P = state_P % num_words

    def work() -> None:
        hidden_MX.grad = None
        logprobs_P, _ = pair_logprobs(hidden_MX, weight_VX, state_P, target_P, 1.0)
        logprobs_P.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types for it

    return work


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Returns what work takes, by one run of it, or by the mean of as many as make a sample long enough."""
    once = _clocked(work, 1, device)
    repeats = math.ceil(MIN_SAMPLE_SECONDS / max(once, 1e-6))
    return once if repeats <= 1 else _clocked(work, min(repeats, 100), device)


def _clocked(work: Callable[[], None], repeats: int, device: torch.device) -> float:
    began = now(device)
    for _ in range(repeats):
        work()
    return (now(device) - began) / repeats


def now(device: torch.device) -> float:
    """Returns the processor time of this process; on a GPU the time when it has done what it was given."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Reads `ProbeSettings` as JSON, and answers `DtypeSeconds` as the last line."""
    asked = ProbeSettings(**json.loads(sys.argv[1]))
    tune_compute(asked.threads)
    settings = PolicySettings(
        folder=resolve_model(asked.path, Path(asked.cache)),
        rank=asked.rank,
        alpha=asked.alpha,
        target_modules=tuple(asked.target_modules),
        checkpointing=asked.gradient_checkpointing,
    )
    print(json.dumps(asdict(measure(settings, default_device()))), flush=True)


if __name__ == "__main__":
    try:
        main()
    except ModelUnusableError as error:
        raise SystemExit(str(error)) from None
