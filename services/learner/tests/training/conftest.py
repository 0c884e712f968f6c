"""A model smaller than the tiny one, for speed, and rows with forks, for tests of the training core."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from learner.ports import ScoredRollout
from learner.training.model import Policy, PolicySettings, load_policy
from modelstore.tiny import make_tiny_tokenizer
from trajectory.types import TokenRow, TokenSpan


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-model")
    config = transformers.LlamaConfig(
        vocab_size=512,
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
    make_tiny_tokenizer().save_pretrained(str(folder))
    return folder


@pytest.fixture
def make_policy(tiny_folder: Path) -> Callable[..., Policy]:
    """Makes policies whose adapter is not zero unless `fresh` says so."""

    def make(*, fresh: bool = False, **settings: object) -> Policy:
        policy = load_policy(PolicySettings(folder=tiny_folder, **settings))  # type: ignore[arg-type]
        if not fresh:
            generator = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for name, parameter in policy.parameters.items():
                    if "lora_B" in name:
                        parameter.normal_(0.0, 0.05, generator=generator)
        return policy

    return make


def _row(ids: list[int], mask: list[bool], rng: random.Random) -> TokenRow:
    spans = tuple(
        TokenSpan(start=i, end=i + 1, turn=0, policy_version=0) for i, m in enumerate(mask) if m
    )
    logprobs = tuple(-rng.random() * 8 if m else 0.0 for m in mask)
    return TokenRow(token_ids=tuple(ids), loss_mask=tuple(mask), logprobs=logprobs, spans=spans)


@pytest.fixture
def make_groups() -> Callable[..., list[list[ScoredRollout]]]:
    """Makes groups with a shared system prompt, tool results inside, repeats, and forked rollouts."""

    def make(
        seed: int, *, num_groups: int = 2, group_size: int = 3, length: int = 6
    ) -> list[list[ScoredRollout]]:
        rng = random.Random(seed)

        def text(count: int) -> list[int]:
            return [rng.randrange(3, 512) for _ in range(count)]

        def rollout(prompt: list[int], name: str) -> ScoredRollout:
            said, told, more = text(rng.randint(1, length)), text(3), text(rng.randint(1, length))
            ids = prompt + said + told + more + text(2)
            mask = [False] * len(prompt) + [True] * len(said) + [False] * 3
            mask += [True] * len(more) + [False] * 2
            rows = [_row(ids, mask, rng)]
            if rng.random() < 0.4:
                # A fork: the history is rewritten after the prompt and one more turn is sampled.
                last = text(rng.randint(1, length))
                other = prompt + said[:1] + text(2)
                rows.append(_row(other + last, [False] * len(other) + [True] * len(last), rng))
            return ScoredRollout(rollout_id=name, rows=tuple(rows), score=float(rng.randint(0, 2)))

        system = text(5)
        groups = []
        for group in range(num_groups):
            prompt = system + text(rng.randint(1, 5))
            members = [rollout(prompt, f"r{group}-{index}") for index in range(group_size)]
            if rng.random() < 0.3:
                members[-1] = ScoredRollout(
                    rollout_id="twin", rows=members[0].rows, score=float(rng.randint(0, 2))
                )
            groups.append(members)
        return groups

    return make
