"""Hone's side: updates, or supervised steps, with the learner's own trainer. Run with .venv's Python; see work.py."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from work import LEARNING_RATE, Meter, Orders, peak_bytes, rollouts

from learner.ports import ScoredRollout
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.model import PolicySettings, load_policy, load_tokenizer
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.compute import tune_compute
from trajectory.rendering import ChatRenderer, RenderedRow
from trajectory.types import ChatMessage, Role, TokenRow, TokenSpan


def groups(prompt_tokens: int, completion_tokens: int, step: int) -> list[list[ScoredRollout]]:
    """Returns the rollouts as the learner receives them."""
    work = rollouts(prompt_tokens, completion_tokens, step)

    def scored(prompt: list[int], completion: list[int], reward: float, name: str) -> ScoredRollout:
        first, length = len(prompt), len(completion)
        row = TokenRow(
            token_ids=(*prompt, *completion),
            loss_mask=(*[False] * first, *[True] * length),
            logprobs=(*[0.0] * first, *[-10.0] * length),
            spans=(TokenSpan(start=first, end=first + length, turn=0, policy_version=0),),
        )
        return ScoredRollout(rollout_id=name, rows=(row,), score=reward)

    return [
        [
            scored(prompt, completion, reward, f"{group}-{member}")
            for member, (completion, reward) in enumerate(zip(completions, rewards, strict=True))
        ]
        for group, (prompt, completions, rewards) in enumerate(
            zip(work.prompts, work.completions, work.rewards, strict=True)
        )
    ]


def keep_first_gradient(trainer: Trainer, file: Path) -> None:
    """Writes the gradient that the optimiser gets in the first step."""

    def write(optimizer: torch.optim.Optimizer, *_: object) -> None:
        handle.remove()
        found = {name: value.grad for name, value in trainer.policy.parameters.items()}
        save_file({name: grad for name, grad in found.items() if grad is not None}, file)

    handle = trainer.optimizer.register_step_pre_hook(write)


def main() -> None:
    """Take steps as they are ordered."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--threads", type=int, required=True)
    options.add_argument("--adapter", type=Path, help="where the fresh adapter goes")
    options.add_argument("--checkpointing", action="store_true")
    options.add_argument("--full", action="store_true", help="train every weight, no adapter")
    options.add_argument("--prompt-tokens", type=int, default=0)
    options.add_argument("--completion-tokens", type=int, default=0)
    options.add_argument("--sft", type=Path, help="rows to imitate, in place of rollouts")
    options.add_argument("--batch", type=int, default=16, help="rows of a supervised step")
    options.add_argument("--gradient", type=Path, help="where the first step's gradient goes")
    given = options.parse_args()
    orders = Orders()
    plan = tune_compute(given.threads)
    policy = load_policy(
        PolicySettings(
            folder=given.model,
            full=given.full,
            refers=False,
            checkpointing=given.checkpointing,
        )
    )
    if given.adapter:
        policy.export(given.adapter)
    trainer = Trainer(
        policy,
        TrainerSettings(
            schedule=ScheduleSettings(learning_rate=LEARNING_RATE, max_steps=1000),
            rollouts=PolicyGradientSettings(max_tokens=max(1, given.completion_tokens)),
        ),
    )
    if given.gradient:
        keep_first_gradient(trainer, given.gradient)
    take = _supervised(trainer, given) if given.sft else _updates(trainer, given)
    orders.tell(ready=True, backend=plan.float32_backend, peak_loaded=peak_bytes())
    for number in orders:
        orders.tell(**take(number), peak=peak_bytes())


def _updates(trainer: Trainer, given: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    def take(number: int) -> dict[str, float]:
        batch = groups(given.prompt_tokens, given.completion_tokens, number)
        meter = Meter()
        figures = trainer.rollout_step(batch)
        return meter.read() | {"loss": figures["loss"], "grad_norm": figures["grad_norm"]}

    return take


def _supervised(trainer: Trainer, given: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    renderer = ChatRenderer(load_tokenizer(given.model))
    rows = [_row(renderer, json.loads(line)["messages"]) for line in given.sft.open()]

    def take(number: int) -> dict[str, float]:
        chosen = rows[number * given.batch : (number + 1) * given.batch]
        meter = Meter()
        figures = trainer.sft_step(chosen)
        return meter.read() | {
            "tokens": float(sum(len(row.token_ids) for row in chosen)),
            "loss": figures["loss"],
            "grad_norm": figures["grad_norm"],
        }

    return take


def _row(renderer: ChatRenderer, said: list[dict[str, str]]) -> RenderedRow:
    """Lays a conversation out; what the assistant says last is learned."""
    messages = [ChatMessage(role=Role(m["role"]), content=(m["content"],)) for m in said]
    first = len(renderer.initial(messages[:-1], ()).token_ids)
    ids = renderer.conversation(messages).token_ids
    mask = (*[False] * first, *[True] * (len(ids) - first))
    return RenderedRow(token_ids=ids, loss_mask=mask)


if __name__ == "__main__":
    main()
