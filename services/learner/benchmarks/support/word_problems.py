"""A task of two turns for a real model: ask a calculator, then state what it said. Sampled in this process.

    prompt   the chat template over a word problem
    turn 0   `calc: 7*12`; 0.3 for a call whose expression has the problem's value
    tool     its value, or an error, as what the user says
    turn 1   `Final Answer: 84`; 0.7 more if it is right, after such a call

The warm-up is imitation of traces of which every second one adds where it should multiply, so that the form is known
and rewards have something to choose.

Log-probabilities are those of the weights that sample, so what the trainer reports as mismatch is rounding alone.

Shapes: B rollouts of a step.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from learner.ports import ScoredRollout
from learner.training.model import Policy
from trajectory.rendering import RenderedRow
from trajectory.types import TokenRow, TokenSpan

NAMES = ("Ada", "Ben", "Cleo", "Finn", "Iris", "Leo", "Maya", "Rosa")
BOXES = ("bags", "baskets", "boxes", "jars", "packs", "trays")
ITEMS = ("apples", "beads", "coins", "cups", "eggs", "keys", "pears", "stamps")
CALL = re.compile(r"calc:\s*(\d{1,4}(?:\s*[*+-]\s*\d{1,4}){0,3})\s*")
ANSWER = re.compile(r"Final Answer:\s*(-?\d{1,9})\.?\s*")
MAX_NEW_TOKENS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A text, and what leads to the number that it asks for."""

    text: str
    expression: str
    wrong: str
    """The same with a sum instead of the product."""

    @property
    def value(self) -> int:
        """The number that it asks for."""
        return value_of(self.expression)


@dataclass(slots=True, kw_only=True)
class Episode:
    """What has been said in one rollout."""

    ids: list[int]
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[TokenSpan] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)
    cut_off: bool = False

    def tell(self, ids: Sequence[int]) -> None:
        """Appends what the policy did not say."""
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def say(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Appends a turn of the policy."""
        start = len(self.ids)
        end = start + len(ids)
        self.spans.append(TokenSpan(start=start, end=end, turn=len(self.spans), policy_version=0))
        self.ids += ids
        self.mask += [True] * len(ids)
        self.logprobs += logprobs


def draw(rng: random.Random) -> Problem:
    """Returns a problem of one or two steps."""
    a, b, x = rng.randint(2, 9), rng.randint(11, 40), rng.randint(2, 9)
    name, box, item = rng.choice(NAMES), rng.choice(BOXES), rng.choice(ITEMS)
    text, rest = f"{name} has {a} {box} of {b} {item}", ""
    if rng.random() < 0.5:
        text, rest = f"{text} and loses {x}", f"-{x}"
    return Problem(text=f"{text}.", expression=f"{a}*{b}{rest}", wrong=f"{a}+{b}{rest}")


class WordProblems:
    """Rolls a policy out over word problems."""

    def __init__(self, policy: Policy, tokenizer: Any, seed: int) -> None:
        """Draws tasks and tokens from `seed`."""
        self._policy = policy
        self._tokenizer = tokenizer
        self._tasks = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def roll_out(
        self, num_groups: int, group_size: int, *, by_turn: bool = False
    ) -> list[list[ScoredRollout]]:
        """Samples a step's rollouts."""
        problems = [draw(self._tasks) for _ in range(num_groups)]
        members = [problem for problem in problems for _ in range(group_size)]
        episodes = []
        for problem in members:
            episode = Episode(ids=[])
            episode.tell(self._prompt(problem))
            episodes.append(episode)
        self._speak(episodes)
        for problem, episode in zip(members, episodes, strict=True):
            said = self._text(episode)
            call = CALL.fullmatch(said)
            value = value_of(call.group(1)) if call else None
            episode.earned.append(0.3 * (value == problem.value))
            episode.tell(self._told(value))
        self._speak(episodes)
        for problem, episode in zip(members, episodes, strict=True):
            answer = ANSWER.fullmatch(self._text(episode))
            right = answer is not None and int(answer.group(1)) == problem.value
            episode.earned.append(0.7 * (right and episode.earned[0] > 0))
        found = [
            ScoredRollout(
                rollout_id=f"r{index}",
                rows=(
                    TokenRow(
                        token_ids=tuple(episode.ids),
                        loss_mask=tuple(episode.mask),
                        logprobs=tuple(episode.logprobs),
                        spans=tuple(episode.spans),
                    ),
                ),
                score=sum(episode.earned),
                turn_rewards=tuple(episode.earned) if by_turn else (),
                truncated=episode.cut_off,
            )
            for index, episode in enumerate(episodes)
        ]
        return [found[start : start + group_size] for start in range(0, len(found), group_size)]

    def traces(self, count: int) -> list[RenderedRow]:
        """Returns rows to imitate, every second one with the wrong expression."""
        rows = []
        for index in range(count):
            problem = draw(self._tasks)
            expression = problem.wrong if index % 2 else problem.expression
            value = value_of(expression)
            episode = Episode(ids=[])
            episode.tell(self._prompt(problem))
            for said, glue in (
                (f"calc: {expression}", self._told(value)),
                (f"Final Answer: {value}", []),
            ):
                tokens = [*self._encode(said), self._end]
                episode.say(tokens, [0.0] * len(tokens))
                episode.tell(glue)
            rows.append(RenderedRow(token_ids=tuple(episode.ids), loss_mask=tuple(episode.mask)))
        return rows

    def _told(self, value: int | None) -> list[int]:
        shown = "error" if value is None else value
        return self._encode(f"\n<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n")

    def _prompt(self, problem: Problem) -> list[int]:
        return self._encode(f"<|im_start|>user\n{problem.text}<|im_end|>\n<|im_start|>assistant\n")

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _text(self, episode: Episode) -> str:
        span = episode.spans[-1]
        ids = episode.ids[span.start : span.end]
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _speak(self, episodes: Sequence[Episode]) -> None:
        """Samples one turn of every episode, all together, padded on the left."""
        longest = max(len(episode.ids) for episode in episodes)
        pads = [longest - len(episode.ids) for episode in episodes]
        ids = torch.tensor(
            [[self._end] * pad + episode.ids for pad, episode in zip(pads, episodes, strict=True)]
        )
        seen = torch.arange(longest)[None] >= torch.tensor(pads)[:, None]
        places = (seen.long().cumsum(-1) - 1).clamp_min(0)
        said: list[list[int]] = [[] for _ in episodes]
        logprobs: list[list[float]] = [[] for _ in episodes]
        going = torch.ones(len(episodes), dtype=torch.bool)
        cache = None
        for _ in range(MAX_NEW_TOKENS):
            with torch.no_grad():
                out = self._policy.model(
                    input_ids=ids,
                    attention_mask=seen.long(),
                    position_ids=places,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
            cache = out.past_key_values
            found = out.logits[:, -1].float().log_softmax(-1)
            token_B = torch.multinomial(found.exp(), 1, generator=self._generator)
            chosen_B = found.gather(-1, token_B)
            for index in torch.nonzero(going)[:, 0].tolist():
                said[index].append(int(token_B[index]))
                logprobs[index].append(float(chosen_B[index]))
            going &= token_B[:, 0] != self._end
            if not going.any():
                break
            ids = token_B
            seen = torch.cat((seen, torch.ones(len(episodes), 1, dtype=torch.bool)), 1)
            places = places[:, -1:] + 1
        for episode, tokens, values, cut in zip(
            episodes, said, logprobs, going.tolist(), strict=True
        ):
            episode.say(tokens, values)
            episode.cut_off = cut


def value_of(expression: str) -> int:
    """Returns the value of products, sums and differences of whole numbers."""
    total = 0
    for sign, product in re.findall(r"([+-]?)([^+-]+)", expression.replace(" ", "")):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total
