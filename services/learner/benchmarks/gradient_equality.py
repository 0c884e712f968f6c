"""Gradients are the same however a batch is laid out and whoever computes it.

One GRPO step with KL over groups with forks, repeats and tool results, in float32 with a tied embedding, of an adapter
and of full weights. What each row by itself gives is the measure; beside it stand, as ||g - g'|| / ||g|| per parameter:

    packed         all rows side by side in one pass, padded
    shared         all rows in one tree, what they begin with computed once
    micro-batches  trees of at most 64 tokens
    two ranks      the same trees over two processes (FSDP2 over gloo)
    recomputed     the same, with activations computed again for the backward pass
    idle rank      one tree over two processes, of which one has nothing to compute

A last table has two ranks against one process for each algorithm, the largest over all parameters. It ends with 1
where one is above 1e-5.
"""

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import distributed

from learner.ports import ScoredRollout
from learner.training.algorithms.dpo import DpoSettings
from learner.training.algorithms.pairs import Pair
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.algorithms.ppo import PpoSettings
from learner.training.algorithms.reward_model import RewardModelSettings
from learner.training.logprobs import PlainScorer, TreeScorer
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How a step is taken."""

    weights: str
    algorithm: str = "grpo"
    size: int = SMALL
    """Tokens of a micro-batch."""
    plain: bool = False
    """Rows side by side rather than in trees."""
    checkpointing: bool = False
    """Compute activations again for the backward pass."""


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


ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"rollouts": PolicyGradientSettings(kl_coef=0.1)},
    "ppo": {"rollouts": PpoSettings()},
    "sft": {},
    "dpo": {"preferences": DpoSettings()},
    "reward_model": {"preferences": RewardModelSettings()},
}
"""What tells their trainers apart."""


def _learn(trainer: Trainer, algorithm: str, groups: list[list[ScoredRollout]]) -> None:
    if algorithm in ("grpo", "ppo"):
        trainer.rollout_step(groups)
        return
    members = [member for group in groups for member in group]
    if algorithm == "sft":
        trainer.sft_step([row for member in members for row in member.rows])
        return
    sides = zip(members[::2], members[1::2], strict=False)
    pairs = [
        Pair(chosen=one.rows[:1], rejected=other.rows[:1], soft_label=(1.0, 0.8, 0.3)[index % 3])
        for index, (one, other) in enumerate(sides)
    ]
    trainer.preference_step(pairs)


def take_step(
    case: Case, model: Path, groups: list[list[ScoredRollout]], ranks: Ranks | None = None
) -> Step:
    """Takes one step from the same start and returns its gradient."""
    full = case.weights == "full"
    settings = PolicySettings(
        folder=model,
        full=full,
        rank=4,
        value_head=case.algorithm == "ppo",
        score_head=case.algorithm == "reward_model",
        checkpointing=case.checkpointing,
    )
    policy = load_policy(settings, CPU)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            if full or "lora_B" in name or "value_head" in name:
                # Away from the start, where much has no gradient and the KL has none.
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    schedule = ScheduleSettings(learning_rate=1e-3, max_steps=1)
    kind = ALGORITHMS[case.algorithm]
    trainer = Trainer(policy, TrainerSettings(schedule=schedule, max_grad_norm=1e9, **kind), ranks)
    scorer = PlainScorer(CPU, case.size) if case.plain else TreeScorer(CPU, case.size)
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
    _learn(trainer, case.algorithm, groups)
    return Step(gradients=seen, parts=parts[0])


@dataclass(frozen=True, slots=True)
class _Counting:
    split: Callable[[Any], Any]


def _rank(rank: int, meet: str, model: Path, cases: list[Case], out: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    ranks = Sharded(CPU)
    groups = make_groups(1)
    steps = [take_step(case, model, groups, ranks) for case in cases]
    if rank == 0:
        torch.save([(step.gradients, step.parts) for step in steps], out)
    distributed.destroy_process_group()


def two_ranks(model: Path, cases: list[Case]) -> list[Step]:
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
        cases = [Case(weights=weights, size=size) for weights in kinds for size in (SMALL, ALL)]
        cases += [Case(weights=weights, checkpointing=True) for weights in kinds]
        cases += [Case(weights=w, algorithm=a) for w in kinds for a in ALGORITHMS if a != "grpo"]
        ranked = dict(zip(cases, two_ranks(model, cases), strict=True))
        for weights in kinds:
            measure = take_step(Case(weights=weights, size=1, plain=True), model, groups)
            steps = {
                "packed": take_step(Case(weights=weights, size=ALL, plain=True), model, groups),
                "shared": take_step(Case(weights=weights, size=ALL), model, groups),
                "micro-batches": take_step(Case(weights=weights), model, groups),
                "two ranks": ranked[Case(weights=weights)],
                "recomputed": ranked[Case(weights=weights, checkpointing=True)],
                "idle rank": ranked[Case(weights=weights, size=ALL)],
            }
            told[weights] = _table(weights, measure, steps)
        told["algorithms"] = _by_algorithm(model, groups, kinds, ranked)
    worst = max([told[weights]["worst"] for weights in kinds] + list(told["algorithms"].values()))
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


def _by_algorithm(
    model: Path,
    groups: list[list[ScoredRollout]],
    kinds: Sequence[str],
    ranked: Mapping[Case, Step],
) -> dict[str, float]:
    print(f"\ntwo ranks against one process{'':29}" + "".join(f"{kind:>15}" for kind in kinds))
    found = {}
    for algorithm in ALGORITHMS:
        for weights in kinds:
            case = Case(weights=weights, algorithm=algorithm)
            alone = take_step(case, model, groups)
            of = differences(ranked[case].gradients, alone.gradients)
            found[f"{algorithm}/{weights}"] = max(of.values())
        figures = (found[f"{algorithm}/{weights}"] for weights in kinds)
        print(f"{algorithm:58}" + "".join(f"{figure:15.1e}" for figure in figures))
    return found


if __name__ == "__main__":
    main()
