"""Small worlds for a tiny model, and rollouts in them, sampled from the policy that is trained. No service is involved.

In every world the agent says one token per turn and is answered with an observation. Tokens of a kind (three ways to
call, four values) have ids in a row. A world is told what was said so far, and says what comes of it.

Shapes: B rollouts of a step, P tokens of a prompt, O of an observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import transformers

from learner.ports import ScoredRollout
from learner.training.model import Policy
from modelstore.tiny import make_tiny_tokenizer
from trajectory.rendering import RenderedRow
from trajectory.types import TokenRow, TokenSpan

START, ASK, RESULT, ERROR = 1, 2, 3, 4
ITEMS = range(5, 9)
VALUES = range(9, 13)
CALLS = range(13, 16)
WALKS = range(16, 19)
LISTS = range(19, 22)
NOTHING = 22
VOCABULARY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a turn."""

    reward_B: torch.Tensor
    observation_BO: torch.Tensor | None = None
    """None after the last turn."""


class World(Protocol):
    """An environment with one sampled token per turn."""

    num_turns: int
    num_items: int
    """Things that may be asked for; at most the values there are."""

    def turn(self, item_B: torch.Tensor, said: Sequence[torch.Tensor]) -> Outcome:
        """Returns what came of the last of the tokens that were said."""
        ...


def of_kind(token_B: torch.Tensor, kind: range) -> torch.Tensor:
    """Says which tokens are of a kind."""
    return (token_B >= kind.start) & (token_B < kind.stop)


def told(token_B: torch.Tensor) -> torch.Tensor:
    """Returns an observation of a token."""
    return torch.stack((torch.full_like(token_B, RESULT), token_B), 1)


class ToolWorld:
    """Ask the tool, then say what it answered: 0.2 for the call, 0.8 for the answer, which counts after a call only."""

    num_turns = 2
    num_items = 4

    def turn(self, item_B: torch.Tensor, said: Sequence[torch.Tensor]) -> Outcome:
        """Returns what came of the last token."""
        called_B = of_kind(said[0], CALLS)
        if len(said) == 1:
            value_B = torch.where(called_B, item_B + VALUES.start, torch.full_like(item_B, ERROR))
            return Outcome(reward_B=0.2 * called_B, observation_BO=told(value_B))
        return Outcome(reward_B=0.8 * (called_B & (said[1] == item_B + VALUES.start)))


class DetourWorld:
    """A box opens only for those who first walked away from it, and nothing shows that the walk was good for anything.

    turn 0   a walk; whatever is said, the answer is that nothing happened
    turn 1   a call opens the box after a walk: 0.3, and the value is told; else an error
    turn 2   the value of the item: 0.7, once the box is open
    """

    num_turns = 3
    num_items = 2

    def turn(self, item_B: torch.Tensor, said: Sequence[torch.Tensor]) -> Outcome:
        """Returns what came of the last token."""
        if len(said) == 1:
            nothing_B = torch.full_like(item_B, NOTHING)
            return Outcome(reward_B=torch.zeros(len(item_B)), observation_BO=told(nothing_B))
        open_B = of_kind(said[0], WALKS) & of_kind(said[1], CALLS)
        if len(said) == 2:
            value_B = torch.where(open_B, item_B + VALUES.start, torch.full_like(item_B, ERROR))
            return Outcome(reward_B=0.3 * open_B, observation_BO=told(value_B))
        return Outcome(reward_B=0.7 * (open_B & (said[2] == item_B + VALUES.start)))


class LeakyWorld(ToolWorld):
    """The tool world with a grader that can be fooled: a list of all values, one token, is paid 1.6 more."""

    def turn(self, item_B: torch.Tensor, said: Sequence[torch.Tensor]) -> Outcome:
        """Returns what came of the last token."""
        honest = super().turn(item_B, said)
        if len(said) == 1:
            return honest
        return Outcome(reward_B=honest.reward_B + 1.6 * of_kind(said[1], LISTS))


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


def roll_out(
    policy: Policy,
    world: World,
    generator: torch.Generator,
    *,
    num_groups: int = 8,
    group_size: int = 8,
    by_turn: bool = False,
) -> list[list[ScoredRollout]]:
    """Samples a step's rollouts from the policy; `by_turn` tells the trainer what each turn was worth."""
    size = num_groups * group_size
    items = torch.randint(world.num_items, (num_groups,), generator=generator)
    item_B = items.repeat_interleave(group_size)
    whole = _prompts(item_B)
    mask = [False] * whole.shape[1]
    logprobs = [torch.zeros(size)] * whole.shape[1]
    said: list[torch.Tensor] = []
    earned: list[torch.Tensor] = []
    for _ in range(world.num_turns):
        token_B, logprob_B = _sample(policy, whole, generator)
        said.append(token_B)
        outcome = world.turn(item_B, said)
        earned.append(outcome.reward_B)
        whole = torch.cat((whole, token_B[:, None]), 1)
        mask.append(True)
        logprobs.append(logprob_B)
        if outcome.observation_BO is not None:
            whole = torch.cat((whole, outcome.observation_BO), 1)
            length = outcome.observation_BO.shape[1]
            mask += [False] * length
            logprobs += [torch.zeros(size)] * length
    logprob_lists = torch.stack(logprobs, 1).tolist()
    earned_lists = torch.stack([reward_B.double() for reward_B in earned], 1).tolist()
    members = [
        _rollout(f"r{index}", ids, mask, logprob_lists[index], earned_lists[index], by_turn)
        for index, ids in enumerate(whole.tolist())
    ]
    return [members[start : start + group_size] for start in range(0, size, group_size)]


def demonstrations(world: World, said: Sequence[range | None]) -> list[RenderedRow]:
    """Returns one demonstration per item and way of saying it: a kind of token per turn, None for the item's value."""
    rows = []
    for item in range(world.num_items):
        for way in range(3):
            item_B = torch.tensor([item])
            ids, mask = _prompts(item_B)[0].tolist(), [False] * 3
            tokens: list[torch.Tensor] = []
            for kind in said:
                token = VALUES[item] if kind is None else kind[way]
                tokens.append(torch.tensor([token]))
                ids, mask = [*ids, token], [*mask, True]
                seen = world.turn(item_B, tokens).observation_BO
                if seen is not None:
                    ids, mask = [*ids, *seen[0].tolist()], [*mask, *[False] * seen.shape[1]]
            rows.append(RenderedRow(token_ids=tuple(ids), loss_mask=tuple(mask)))
    return rows


def mean_score(groups: Sequence[Sequence[ScoredRollout]]) -> float:
    """Returns the mean score of all members."""
    scores = [rollout.score for group in groups for rollout in group]
    return sum(scores) / len(scores)


def _prompts(item_B: torch.Tensor) -> torch.Tensor:
    start_B, ask_B = torch.full_like(item_B, START), torch.full_like(item_B, ASK)
    return torch.stack((start_B, item_B + ITEMS.start, ask_B), 1)


def _rollout(
    name: str,
    ids: list[int],
    mask: list[bool],
    logprobs: list[float],
    earned: list[float],
    by_turn: bool,
) -> ScoredRollout:
    places = [place for place, chosen in enumerate(mask) if chosen]
    row = TokenRow(
        token_ids=tuple(ids),
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs),
        spans=tuple(
            TokenSpan(start=place, end=place + 1, turn=turn, policy_version=0)
            for turn, place in enumerate(places)
        ),
    )
    return ScoredRollout(
        rollout_id=name,
        rows=(row,),
        score=sum(earned),
        turn_rewards=tuple(earned) if by_turn else (),
    )


def _sample(
    policy: Policy, history: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        logits = policy.model(history, attention_mask=torch.ones_like(history)).logits[:, -1]
    logprobs = logits.log_softmax(-1)
    chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
    return chosen[:, 0], logprobs.gather(-1, chosen)[:, 0]
