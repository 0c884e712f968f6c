"""Gradients are the same however a batch is laid out and whoever computes it.

One GRPO step with KL over groups with forks, repeats and tool results, in float32 with a tied embedding, of an adapter
and of full weights. What each row by itself gives is the measure; beside it stand, as ||g - g'|| / ||g|| per parameter:

    packed         all rows side by side in one pass, padded
    shared         all rows in one tree, what they begin with computed once
    micro-batches  trees of at most 64 tokens
    two ranks      the same trees over two processes (FSDP2 over gloo)
    idle rank      one tree over two processes, of which one has nothing to compute

It ends with 1 where one is above 1e-5.
"""

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import distributed

from learner.ports import ScoredRollout
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.logprobs import PlainScorer, Scorer, TreeScorer
from learner.training.model import PolicySettings, load_policy
from learner.training.policy import whole
from learner.training.ranks import Ranks
from learner.training.schedule import ScheduleSettings
from learner.training.sharded import Sharded
from learner.training.trainer import Trainer, TrainerSettings
from trajectory.types import TokenRow, TokenSpan

LIMIT = 1e-5
CPU = torch.device("cpu")
ALL = 1 << 20
"""Tokens of a micro-batch that holds everything."""
SMALL = 64
VOCABULARY = 512

Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step's gradient, and how many micro-batches it was made of."""

    gradients: Gradients
    parts: int


def make_model(folder: Path) -> None:
    """Writes a small model whose output layer is its embedding."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(str(folder))


def make_groups(seed: int, num_groups: int = 3, size: int = 4) -> list[list[ScoredRollout]]:
    """Makes rollouts of two turns with a tool's result between them; a third of them forks, some repeat others."""
    rng = random.Random(seed)
    system = _ids(rng, 6)
    groups = []
    for group in range(num_groups):
        prompt = system + _ids(rng, rng.randint(1, 6))
        members = [_rollout(rng, prompt, f"{group}-{member}") for member in range(size)]
        members.append(
            ScoredRollout(rollout_id=f"{group}-again", rows=members[0].rows, score=rng.random())
        )
        groups.append(members)
    return groups


def _rollout(rng: random.Random, prompt: list[int], name: str) -> ScoredRollout:
    said, told, more = _ids(rng, rng.randint(1, 7)), _ids(rng, 4), _ids(rng, rng.randint(1, 7))
    rows = [_row(rng, [(prompt, False), (said, True), (told, False), (more, True)])]
    if rng.random() < 0.34:
        rewritten = prompt + said[:1] + _ids(rng, 2)
        rows.append(_row(rng, [(rewritten, False), (_ids(rng, rng.randint(1, 5)), True)]))
    return ScoredRollout(rollout_id=name, rows=tuple(rows), score=rng.random())


def _row(rng: random.Random, parts: list[tuple[list[int], bool]]) -> TokenRow:
    ids = [token for part, _ in parts for token in part]
    mask = [policy for part, policy in parts for _ in part]
    return TokenRow(
        token_ids=tuple(ids),
        loss_mask=tuple(mask),
        logprobs=tuple(-rng.random() * 8 if policy else 0.0 for policy in mask),
        spans=tuple(
            TokenSpan(start=at, end=at + 1, turn=0, policy_version=0)
            for at, policy in enumerate(mask)
            if policy
        ),
    )


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]


def take_step(
    model: Path,
    weights: str,
    groups: list[list[ScoredRollout]],
    scorer: Scorer,
    ranks: Ranks | None = None,
) -> Step:
    """Takes one step from the same start and returns its gradient."""
    full = weights == "full"
    policy = load_policy(PolicySettings(folder=model, full=full, rank=4), CPU)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            if full or "lora_B" in name:
                # Away from the start, where half of an adapter has no gradient and the KL has none.
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    settings = TrainerSettings(
        schedule=ScheduleSettings(learning_rate=1e-3, max_steps=1),
        max_grad_norm=1e9,
        rollouts=PolicyGradientSettings(kl_coef=0.1),
    )
    trainer = Trainer(policy, settings, ranks)
    trainer._scorer = scorer
    seen: Gradients = {}
    parts: list[int] = []

    def keep(*_: Any) -> None:
        seen.update({n: whole(p.grad) for n, p in policy.parameters.items() if p.grad is not None})

    def counted(tokens: Any) -> Any:
        found = scorer.split(tokens)
        parts.append(len(found))
        return found

    trainer._scorer = _Counting(counted)
    trainer.optimizer.register_step_pre_hook(keep)
    trainer.rollout_step(groups)
    return Step(gradients=seen, parts=parts[0])


@dataclass(frozen=True, slots=True)
class _Counting:
    split: Callable[[Any], Any]


def _rank(rank: int, meet: str, model: Path, cases: list[tuple[str, int]], out: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    ranks = Sharded(CPU)
    groups = make_groups(1)
    steps = [take_step(model, w, groups, TreeScorer(CPU, size), ranks) for w, size in cases]
    if rank == 0:
        torch.save([(step.gradients, step.parts) for step in steps], out)
    distributed.destroy_process_group()


def two_ranks(model: Path, cases: list[tuple[str, int]]) -> list[Step]:
    """Takes the steps of the cases by two processes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "steps"
        ranks = [
            context.Process(target=_rank, args=(rank, f"{home}/meet", model, cases, out))
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit(f"the ranks ended with {[process.exitcode for process in ranks]}")
        return [Step(gradients=g, parts=n) for g, n in torch.load(out, weights_only=True)]


def differences(found: Gradients, wanted: Gradients) -> dict[str, float]:
    """Returns ||g - g'|| / ||g|| of each parameter."""
    assert found.keys() == wanted.keys()
    return {
        name: float((found[name] - gradient).norm() / gradient.norm())
        for name, gradient in wanted.items()
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    kinds = ("lora", "full")
    told: dict[str, Any] = {"limit": LIMIT}
    with tempfile.TemporaryDirectory() as home:
        model = Path(home)
        make_model(model)
        groups = make_groups(1)
        cases = [(weights, size) for weights in kinds for size in (SMALL, ALL)]
        ranked = dict(zip(cases, two_ranks(model, cases), strict=True))
        for weights in kinds:
            measure = take_step(model, weights, groups, PlainScorer(CPU, 1))
            steps = {
                "packed": take_step(model, weights, groups, PlainScorer(CPU, ALL)),
                "shared": take_step(model, weights, groups, TreeScorer(CPU, ALL)),
                "micro-batches": take_step(model, weights, groups, TreeScorer(CPU, SMALL)),
                "two ranks": ranked[weights, SMALL],
                "idle rank": ranked[weights, ALL],
            }
            told[weights] = _table(weights, measure, steps)
    worst = max(told[weights]["worst"] for weights in kinds)
    print(f"\nlargest: {worst:.1e}, at most {LIMIT:g} is right")
    if arguments.json:
        arguments.json.write_text(json.dumps(told | {"worst": worst}, indent=1), encoding="utf-8")
    sys.exit(int(worst > LIMIT))


def _table(weights: str, measure: Step, steps: dict[str, Step]) -> dict[str, Any]:
    found = {kind: differences(step.gradients, measure.gradients) for kind, step in steps.items()}
    print(f"\n{weights}: ||g - g'|| / ||g|| against {measure.parts} rows by themselves, float32")
    print(f"{'':58}" + "".join(f"{kind:>15}" for kind in steps))
    print(f"{'micro-batches':58}" + "".join(f"{step.parts:15}" for step in steps.values()))
    for name in measure.gradients:
        shown = name.removeprefix("base_model.model.").replace(".default", "")
        print(f"{shown:58}" + "".join(f"{found[kind][name]:15.1e}" for kind in steps))
    return {
        "rows": measure.parts,
        "micro_batches": {kind: step.parts for kind, step in steps.items()},
        "differences": found,
        "worst": max(max(of.values()) for of in found.values()),
    }


if __name__ == "__main__":
    main()
