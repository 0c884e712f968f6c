"""vLLM as an engine: exact ids and log-probabilities, and the LoRA of the version that was asked for.

Its model is what `hone export --merged` writes, which vLLM must open as well: starting the engine is what costs.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

pytest.importorskip("vllm")

import peft
import torch
import transformers

from learner.training.exporting import Source, write_export
from rollout.engines.base import (
    EngineError,
    Generation,
    GenerationRequest,
    ModelKey,
    PolicyKey,
    PolicyMissingError,
)
from rollout.engines.vllm import VllmEngine
from trajectory.types import SamplingParams

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

BASE, TUNED = PolicyKey("run", 0), PolicyKey("run", 1)
PROMPT = tuple(range(10, 40))


def make_adapter(model_folder: Path, folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(model_folder))
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"])
    tuned = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    tuned.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def checkpoint(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's folder, as far as an export reads it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    make_adapter(tiny_model, folder / "adapter", seed=2)
    return folder


@pytest.fixture(scope="module")
def merged_export(
    tiny_model: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("merged-export")
    source = Source(
        run_id="run",
        algorithm="grpo",
        step=1,
        policy_version=1,
        checkpoint=checkpoint,
        base=tiny_model,
        base_name=str(tiny_model),
        dtype="float32",
    )
    write_export(source, folder, merged=True)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(merged_export: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(threads=0, max_rows=32)
    await engine.start(merged_export, ModelKey(path=str(merged_export)))
    sockets = Path(os.environ["VLLM_RPC_BASE_PATH"])
    try:
        await engine.load_policy(BASE, None)
        assert list(sockets.iterdir())
        yield engine
    finally:
        await engine.close()
    assert not sockets.exists()


def plain_logprobs(
    model_folder: Path, adapter: Path | None, made: Generation, temperature: float
) -> list[float]:
    model = transformers.AutoModelForCausalLM.from_pretrained(str(model_folder))
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*PROMPT, *made.token_ids]])).logits[0]
    scores = (logits[len(PROMPT) - 1 : -1] / temperature).log_softmax(-1)
    return scores.gather(1, torch.tensor(made.token_ids).unsqueeze(1)).squeeze(1).tolist()


def ask(policy: PolicyKey, seed: int, temperature: float = 0.8) -> GenerationRequest:
    return GenerationRequest(
        policy=policy,
        prompt_ids=PROMPT,
        sampling=SamplingParams(temperature=temperature, max_new_tokens=12, seed=seed),
        stop_ids=(0,),
    )


def mean_difference(found: list[Generation], wanted: list[list[float]]) -> float:
    errors = [
        abs(a - b)
        for made, plain in zip(found, wanted, strict=True)
        for a, b in zip(made.logprobs, plain, strict=True)
    ]
    return sum(errors) / len(errors)


async def test_a_merged_export_says_in_vllm_what_transformers_and_the_policy_say(
    engine: VllmEngine, merged_export: Path, tiny_model: Path, checkpoint: Path
) -> None:
    made = [await engine.generate(ask(BASE, seed)) for seed in range(4)]
    said = {
        name: [plain_logprobs(folder, adapter, result, 0.8) for result in made]
        for name, folder, adapter in (
            ("export", merged_export, None),
            ("policy", tiny_model, checkpoint / "adapter"),
            ("model before", tiny_model, None),
        )
    }
    assert mean_difference(made, said["export"]) < 1e-3
    assert mean_difference(made, said["policy"]) < 1e-3
    assert mean_difference(made, said["model before"]) > 0.1


async def test_vllm_serves_exact_records_of_the_version_asked_for(
    engine: VllmEngine, merged_export: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(merged_export, tmp_path / "adapter", seed=1)
    await engine.load_policy(TUNED, adapter)
    asked = [ask(policy, seed) for policy in (BASE, TUNED) for seed in range(4)]
    made = await asyncio.gather(*(engine.generate(request) for request in asked))
    plain = []
    for request, result in zip(asked, made, strict=True):
        assert result.policy_version == request.policy.version
        folder = adapter if request.policy == TUNED else None
        plain.append(plain_logprobs(merged_export, folder, result, 0.8))
    assert mean_difference(made, plain) < 1e-4
    again = await engine.generate(asked[-1])
    assert again.token_ids == made[-1].token_ids
    greedy = [await engine.generate(ask(policy, 0, 0.0)) for policy in (BASE, TUNED)]
    assert greedy[0].token_ids != greedy[1].token_ids
    stop = GenerationRequest(
        policy=BASE,
        prompt_ids=PROMPT,
        sampling=SamplingParams(temperature=0, max_new_tokens=12),
        stop_ids=(greedy[0].token_ids[3],),
    )
    stopped = await engine.generate(stop)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids[-1] == greedy[0].token_ids[3]
    with pytest.raises(EngineError, match="missing"):
        await engine.load_policy(PolicyKey("run", 2), tmp_path)
    await engine.unload_policy(TUNED)
    with pytest.raises(PolicyMissingError, match="policy run v1 is not loaded"):
        await engine.generate(ask(TUNED, 0))


async def test_a_crowd_of_seeded_prompts_is_answered(engine: VllmEngine) -> None:
    # Prompts of more tokens than vLLM reads in one step: read in parts, they would kill its CPU engine.
    rng = random.Random(5)
    crowd = [
        GenerationRequest(
            policy=BASE,
            prompt_ids=tuple(rng.randrange(10, 400) for _ in range(200)),
            sampling=SamplingParams(temperature=1.0, max_new_tokens=2, seed=seed),
            stop_ids=(0,),
        )
        for seed in range(48)
    ]
    made = await asyncio.gather(*(engine.generate(request) for request in crowd))
    assert all(result.token_ids for result in made)
