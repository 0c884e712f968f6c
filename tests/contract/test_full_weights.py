"""Full weights on their way: from the learner's policy through the object store into the engine that samples."""

import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from eventbus.memory_bus import MemoryBus
from learner.rollouts.facts import Policy as Published
from learner.rollouts.runlog import BusRunLog
from learner.training.model import PolicySettings, load_policy
from rollout.adapters import AdapterFolders
from rollout.consumer import BusBlobFetcher
from rollout.convert import adapter_from_proto
from rollout.engines.base import GenerationRequest, ModelKey, PolicyKey
from rollout.engines.transformers import TransformersEngine
from rollout.policies import Policies
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec
from servicekit.errors import DataLoss
from trajectory.types import SamplingParams

pytestmark = pytest.mark.slow

PROMPT = (5, 6, 7)


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    made = MemoryBus()
    yield made
    await made.close()


async def test_each_version_samples_as_the_learner_has_it_and_the_oldest_makes_room(
    bus: MemoryBus, tiny_model: Path, tmp_path: Path
) -> None:
    spec = RunSpec.model_validate(
        {
            "algorithm": "grpo",
            "model": {"path": "tiny"},
            "data": {"train": "tasks-x"},
            "train": {"weights": "full"},
            "grader": {"type": "answer", "reference": "{{item.answer}}"},
        }
    )
    blobs = await bus.blobs()
    run_log = BusRunLog(
        run_id="run",
        spec=run_spec_to_proto(spec),
        bus=bus,
        blobs=blobs,
        clock=time.time,
        rng=random.Random(3),
        temperature=1.0,
        eval_temperature=1.0,
    )
    folders = AdapterFolders(tmp_path / "weights", BusBlobFetcher(blobs))
    policies = Policies(
        make_engine=lambda: TransformersEngine(
            threads=1, max_rows=2, cache_bytes=0, rng=random.Random(0)
        ),
        resolve=lambda path: tiny_model,
        adapters=folders,
    )
    trained = load_policy(PolicySettings(folder=tiny_model, full=True, refers=False))
    generator = torch.Generator().manual_seed(4)
    references = []
    for version in (1, 2, 3):
        with torch.no_grad():
            for parameter in trained.parameters.values():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        trained.export(tmp_path / f"v{version}")
        stored = await run_log.store_adapter(version, tmp_path / f"v{version}")
        await run_log.publish_policy(Published(version=version, adapter=stored))
        references.append(adapter_from_proto(stored))  # type: ignore[arg-type]
        key = PolicyKey("run", version)
        async with policies.use(ModelKey(path="tiny"), key, references[-1]) as engine:
            said = await engine.generate(
                GenerationRequest(
                    policy=key,
                    prompt_ids=PROMPT,
                    sampling=SamplingParams(temperature=1.0, max_new_tokens=6, seed=1),
                    stop_ids=(),
                )
            )
        assert said.policy_version == version
        ids = torch.tensor([[*PROMPT, *said.token_ids]])
        with torch.no_grad():
            logprobs = trained.model(ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
        wanted = logprobs.gather(-1, ids[0, len(PROMPT) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(said.logprobs), wanted, rtol=0, atol=1e-4)
    await policies.close()
    fresh = AdapterFolders(tmp_path / "another-replica", BusBlobFetcher(blobs))
    assert (await fresh.get(references[1])).is_dir()
    with pytest.raises(DataLoss, match="weights/run/1"):
        await fresh.get(references[0])
