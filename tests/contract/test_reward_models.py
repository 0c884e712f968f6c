"""A reward model that the learner leaves is scored by the rollout service as the learner scored it."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from learner.training.algorithms.pairs import Pair
from learner.training.algorithms.reward_model import RewardModel, RewardModelSettings
from learner.training.logprobs import TreeScorer
from learner.training.model import Policy, PolicySettings, load_policy, load_tokenizer
from learner.training.reward_export import export_reward_model
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.tiny import make_tiny_model
from rollout.engines.reward_head import RewardHead
from trajectory.rendering import ChatRenderer, RenderedRow
from trajectory.types import ChatMessage, Role

WORDS = ["answer", "is", "apples", "12", "boxes", "the", "left", "48", "+", "7", "many"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _conversations(count: int) -> list[tuple[ChatMessage, ...]]:
    rng = random.Random(3)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))

    return [
        (
            ChatMessage(role=Role.USER, content=(text(),)),
            ChatMessage(role=Role.ASSISTANT, content=(text(),)),
        )
        for _ in range(count)
    ]


def _learner_scores(policy: Policy, pairs: list[Pair]) -> list[float]:
    batch = RewardModel().batch(pairs)
    scores = torch.zeros(batch.tokens.num_tokens)
    for part in TreeScorer(policy.device).split(batch.tokens):
        with torch.no_grad():
            values_P = part.score(policy.model, 1.0, policy.value_head).values_P
        assert values_P is not None
        scores[part.tokens_P] = values_P
    found: list[float] = scores.tolist()
    return found


def test_rollout_service_scores_as_the_learner_did(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_tiny_model(base)
    tokenizer = load_tokenizer(base)
    renderer = ChatRenderer(tokenizer)
    conversations = _conversations(12)
    rows = []
    for conversation in conversations:
        ids = renderer.conversation(conversation).token_ids
        rows.append(RenderedRow(token_ids=ids, loss_mask=(False,) * len(ids)))
    pairs = [
        Pair(chosen=(chosen,), rejected=(rejected,))
        for chosen, rejected in zip(rows[::2], rows[1::2], strict=True)
    ]
    policy = load_policy(PolicySettings(folder=base, rank=4, score_head=True))
    trainer = Trainer(
        policy,
        TrainerSettings(
            schedule=ScheduleSettings(learning_rate=1e-2, max_steps=4),
            value_learning_rate=1e-1,
            preferences=RewardModelSettings(),
        ),
    )
    for _ in range(4):
        trainer.preference_step(pairs)
    export_reward_model(policy, base, tokenizer, tmp_path / "reward_model")

    head = RewardHead(tmp_path / "reward_model", "float32")
    found = head.score([head.encode(conversation) for conversation in conversations])
    wanted = _learner_scores(policy, pairs)
    assert [score.score for score in found] == pytest.approx(wanted, abs=1e-4)
    assert max(wanted) - min(wanted) > 0.1
