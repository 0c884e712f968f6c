"""Every algorithm that learns from rewards does so: a tiny model, a tool toy, three seeds.

The toy: ask the tool, then say what it answered.

    prompt   [START, ITEM_i, ASK]          i of 4 items
    turn 0   one token: a call of the tool is worth 0.2, anything else ends in an error token
    tool     [RESULT, VALUE_i] or [RESULT, ERROR]
    turn 1   one token: VALUE_i is worth 0.8, but only after a call

No service is involved: rollouts are sampled from the policy that is trained, and scored by the rule above.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import transformers

from learner.ports import ScoredRollout
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.algorithms.ppo import PpoSettings
from learner.training.algorithms.table import KINDS
from learner.training.model import Policy, PolicySettings, load_policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.tiny import make_tiny_tokenizer
from trajectory.types import TokenRow, TokenSpan

NUM_ITEMS = 4
START, ASK, RESULT, ERROR = 1, 2, 3, 4
ITEMS = range(5, 9)
VALUES = range(9, 13)
CALLS = range(13, 16)
VOCABULARY = 24


def make_toy_model(folder: Path, seed: int) -> Path:
    """Writes a model with random weights and a vocabulary of 24."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    transformers.LlamaForCausalLM(config).save_pretrained(str(folder))
    make_tiny_tokenizer().save_pretrained(str(folder))
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """How rollouts are sampled."""

    num_groups: int = 8
    group_size: int = 8
    by_turn: bool = False
    """Tell the trainer what each turn was worth."""

    def groups(self, policy: Policy, generator: torch.Generator) -> list[list[ScoredRollout]]:
        """Samples a step's rollouts from the policy."""
        size = self.num_groups * self.group_size
        items = torch.randint(NUM_ITEMS, (self.num_groups,), generator=generator)
        item_B = items.repeat_interleave(self.group_size)
        prompt = torch.stack(
            (torch.full((size,), START), item_B + ITEMS.start, torch.full((size,), ASK)), 1
        )
        call_B, call_logprob_B = _sample(policy, prompt, generator)
        called_B = (call_B >= CALLS.start) & (call_B < CALLS.stop)
        told_B = torch.where(called_B, item_B + VALUES.start, torch.full((size,), ERROR))
        history = torch.cat(
            (prompt, call_B[:, None], torch.full((size, 1), RESULT), told_B[:, None]), 1
        )
        answer_B, answer_logprob_B = _sample(policy, history, generator)
        right_B = called_B & (answer_B == item_B + VALUES.start)
        whole = torch.cat((history, answer_B[:, None]), 1)
        members = [
            self._rollout(
                f"r{index}",
                whole[index].tolist(),
                (float(call_logprob_B[index]), float(answer_logprob_B[index])),
                (0.2 * float(called_B[index]), 0.8 * float(right_B[index])),
            )
            for index in range(size)
        ]
        return [
            members[start : start + self.group_size] for start in range(0, size, self.group_size)
        ]

    def _rollout(
        self, name: str, ids: list[int], logprobs: tuple[float, float], earned: tuple[float, float]
    ) -> ScoredRollout:
        row = TokenRow(
            token_ids=tuple(ids),
            loss_mask=(False, False, False, True, False, False, True),
            logprobs=(0.0, 0.0, 0.0, logprobs[0], 0.0, 0.0, logprobs[1]),
            spans=(
                TokenSpan(start=3, end=4, turn=0, policy_version=0),
                TokenSpan(start=6, end=7, turn=1, policy_version=0),
            ),
        )
        return ScoredRollout(
            rollout_id=name,
            rows=(row,),
            score=sum(earned),
            turn_rewards=earned if self.by_turn else (),
        )


def mean_score(groups: list[list[ScoredRollout]]) -> float:
    """Returns the mean score of all members."""
    scores = [rollout.score for group in groups for rollout in group]
    return sum(scores) / len(scores)


def _sample(
    policy: Policy, history: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        logits = policy.model(history, attention_mask=torch.ones_like(history)).logits[:, -1]
    logprobs = logits.log_softmax(-1)
    chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
    return chosen[:, 0], logprobs.gather(-1, chosen)[:, 0]


NUM_STEPS = 60
ROLLOUTS: dict[str, PolicyGradientSettings | PpoSettings] = {
    **{name: replace(kind, max_tokens=2) for name, kind in KINDS.items()},
    "ppo": PpoSettings(policy=PolicyGradientSettings(max_tokens=2)),
}
"""As `run.yaml` has them by default, but for the clip range of gspo: here two updates must get somewhere."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROLLOUTS)
def test_the_reward_rises(tmp_path: Path, name: str, seed: int) -> None:
    policy = load_policy(
        PolicySettings(
            folder=make_toy_model(tmp_path / "toy", seed),
            reference="base",
            seed=seed,
            value_head=name == "ppo",
        )
    )
    trainer = Trainer(
        policy,
        TrainerSettings(
            schedule=ScheduleSettings(learning_rate=5e-3, max_steps=NUM_STEPS),
            rollouts=ROLLOUTS[name],
            value_learning_rate=5e-3,
            updates_per_step=2,
        ),
    )
    generator = torch.Generator().manual_seed(seed)
    toy = Toy(by_turn=name == "ppo")
    scores = []
    for _ in range(NUM_STEPS):
        groups = toy.groups(policy, generator)
        scores.append(mean_score(groups))
        trainer.rollout_step(groups)
    before, after = sum(scores[:3]) / 3, sum(scores[-3:]) / 3
    print(f"{name} seed {seed}: {before:.3f} -> {after:.3f}")
    assert after >= before + 0.2, (before, after)
