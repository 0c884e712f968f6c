"""Policies: adapters that continue, references, and exports that peft opens."""

import json
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from learner.training.model import Policy, PolicySettings, load_policy, load_tokenizer
from modelstore.resolve import ModelUnusableError

MakePolicy = Callable[..., Policy]
IDS = torch.tensor([[7, 8, 9, 10, 11, 12]])


def _logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = policy.model(IDS).logits
    return found


def test_a_fresh_policy_is_the_base_model(make_policy: MakePolicy, tiny_folder: Path) -> None:
    policy = make_policy(fresh=True)
    base = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folder))
    with torch.no_grad():
        assert torch.equal(_logits(policy), base(IDS).logits)
    assert not policy.has_reference_adapter


def test_only_the_adapter_is_trained(make_policy: MakePolicy) -> None:
    policy = make_policy(fresh=True)
    assert all("lora_" in name for name in policy.parameters)
    layers = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in policy.parameters}
    assert layers == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip


def test_the_same_seed_makes_the_same_adapter(make_policy: MakePolicy) -> None:
    one, same, other = (make_policy(fresh=True, seed=seed) for seed in (1, 1, 2))
    name = next(name for name in one.parameters if "lora_A" in name)
    assert torch.equal(one.parameters[name], same.parameters[name])
    assert not torch.equal(one.parameters[name], other.parameters[name])


def test_an_export_opens_in_peft_and_continues_here(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path
) -> None:
    policy = make_policy()
    policy.export_adapter(tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    base = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folder))
    opened = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    with torch.no_grad():
        assert torch.allclose(opened(IDS).logits, _logits(policy), atol=1e-6)
    again = make_policy(fresh=True, adapter=tmp_path / "adapter")
    assert torch.equal(_logits(again), _logits(policy))
    assert again.parameters.keys() == policy.parameters.keys()
    assert all(parameter.requires_grad for parameter in again.parameters.values())


def test_an_export_names_weights_and_layers_as_vllm_reads_them(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    make_policy().export_adapter(tmp_path)
    names = load_file(tmp_path / "adapter_model.safetensors")
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    assert len(names) == 2 * 7 * 2
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip
    assert config["peft_type"] == "LORA"
    assert config["inference_mode"] is True


def test_layers_that_a_pattern_names_are_exported_as_that_pattern(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    pattern, config = r".*\.(q|v)_proj", tmp_path / "adapter_config.json"
    make_policy(target_modules=("q_proj", "v_proj")).export_adapter(tmp_path)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"target_modules": pattern}))
    policy = make_policy(fresh=True, adapter=tmp_path)
    policy.export_adapter(tmp_path / "next")
    written = json.loads((tmp_path / "next" / "adapter_config.json").read_text())
    assert written["target_modules"] == pattern
    again = make_policy(fresh=True, adapter=tmp_path / "next")
    assert torch.equal(_logits(again), _logits(policy))


def test_the_reference_at_the_start_of_a_run_is_the_policy(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    make_policy().export_adapter(tmp_path)
    policy = make_policy(fresh=True, adapter=tmp_path, reference="start")
    start = _logits(policy)
    with policy.reference() as reference, torch.no_grad():
        assert torch.equal(reference(IDS).logits, start)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.add_(0.01)
    assert not torch.equal(_logits(policy), start)
    with policy.reference() as reference:
        assert torch.equal(reference(IDS).logits, start)


def test_asking_the_reference_leaves_the_policy_trainable(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    make_policy().export_adapter(tmp_path)
    policy = make_policy(fresh=True, adapter=tmp_path)
    with policy.reference():
        pass
    trainable = {n for n, p in policy.model.named_parameters() if p.requires_grad}
    assert len(trainable) == len(policy.parameters)
    assert not any("reference" in name for name in trainable)


def test_the_reference_base_is_the_model_alone(make_policy: MakePolicy, tmp_path: Path) -> None:
    make_policy().export_adapter(tmp_path)
    policy = make_policy(fresh=True, adapter=tmp_path, reference="base")
    with policy.reference() as reference:
        assert torch.equal(reference(IDS).logits, _logits(make_policy(fresh=True)))
    assert not policy.has_reference_adapter


def test_a_reference_folder_is_that_adapter(make_policy: MakePolicy, tmp_path: Path) -> None:
    other = make_policy()
    other.export_adapter(tmp_path)
    policy = make_policy(fresh=True, reference=str(tmp_path))
    with policy.reference() as reference:
        assert torch.equal(reference(IDS).logits, _logits(other))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapter": Path("nowhere")}, r"model\.adapter: 'nowhere'.*adapter_config\.json"),
        ({"reference": "nowhere"}, r"model\.reference: 'nowhere'.*adapter_config\.json"),
        ({"dtype": "float8"}, r"model\.dtype: found 'float8'; float32 or bfloat16 is right"),
        ({"target_modules": ("q_prog",)}, r"lora\.target_modules: .*q_prog.* mean q_proj\?"),
        ({"target_modules": ("v_proj", "q_prog")}, r"lora\.target_modules: .*q_prog"),
        ({"target_modules": ("zzz",)}, r"the model's blocks have no linear layer 'zzz'\. They "),
        ({"target_modules": ("q_proj", "")}, r"no linear layer ''"),
        ({"target_modules": ("mlp",)}, r"no linear layer 'mlp'"),
        ({"target_modules": ("q_proj", "lm_head")}, r"no linear layer 'lm_head'"),
        ({"target_modules": ("embed_tokens",)}, r"no linear layer 'embed_tokens'"),
    ],
)
def test_what_cannot_be_opened_is_named(
    tiny_folder: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelUnusableError, match=message):
        load_policy(PolicySettings(folder=tiny_folder, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["adapter", "reference"])
def test_an_adapter_of_the_output_layer_is_refused(
    tiny_folder: Path, tmp_path: Path, field: str
) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folder))
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "lm_head"])
    peft.get_peft_model(base, config).save_pretrained(str(tmp_path))
    settings = {field: tmp_path if field == "adapter" else str(tmp_path)}
    for full in (False, True):
        with pytest.raises(
            ModelUnusableError, match=rf"model\.{field}: .* adapts lm_head.*only an"
        ):
            # settings has one field or the other, of the right type each.
            load_policy(PolicySettings(folder=tiny_folder, full=full, **settings))  # type: ignore[arg-type]


def test_a_folder_that_is_no_language_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelUnusableError, match=r"model\.path: .* cannot be opened"):
        load_policy(PolicySettings(folder=tmp_path))


def test_an_adapter_of_another_shape_does_not_load(make_policy: MakePolicy, tmp_path: Path) -> None:
    make_policy(target_modules=("q_proj",)).export_adapter(tmp_path)
    with pytest.raises(ModelUnusableError, match="does not fit the run's adapter"):
        make_policy().load_adapter(tmp_path)


def test_the_tokenizer_opens(tiny_folder: Path) -> None:
    assert load_tokenizer(tiny_folder).decode([1]) == "<|im_start|>"
