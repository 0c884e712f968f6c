"""Turns a checkpoint into a folder that transformers, peft and vLLM open.

    adapter_model.safetensors, adapter_config.json     the adapter alone; or
    model.safetensors, config.json                     a whole model: the adapter merged, or all weights trained
    tokenizer.json, chat_template.jinja, ...           the base model's tokenizer
    generation_config.json                             the base model's
    README.md, hone.json                               what it is, for people and for programs

A merged model has the number type in which the run computed, so that it says what the policy said.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch.distributed.checkpoint.state_dict_loader import load

from learner.training.checkpoint import ADAPTER, SHARDS, plain_errors
from learner.training.lora import ADAPTER_CONFIG
from learner.training.model import DTYPES, load_tokenizer

MANIFEST = "hone.json"
CARD = "README.md"
ONE_FILE = "1TB"
"""Larger than any model here: the weights are one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is exported, and what its card says of it."""

    run_id: str
    algorithm: str
    step: int
    policy_version: int
    checkpoint: Path
    """Folder of the checkpoint."""
    base: Path
    """Folder of the base model."""
    base_name: str
    """As the run file names it."""
    dtype: str
    score: float | None = None
    """Reward of this version, where it is known."""


def is_adapter(checkpoint: Path) -> bool:
    """Says whether a checkpoint holds an adapter, and not all weights."""
    return (checkpoint / ADAPTER / ADAPTER_CONFIG).is_file()


def write_export(source: Source, folder: Path, *, merged: bool) -> None:
    """Writes the files into `folder`.

    Args:
        source: what to export.
        folder: is there and empty.
        merged: put an adapter into the base model's weights. All weights are always a whole model.
    """
    whole = merged or not is_adapter(source.checkpoint)
    if whole:
        model = _whole_model(source)
        model.save_pretrained(str(folder), max_shard_size=ONE_FILE)
    else:
        _copy_adapter(source, folder)
        _generation_config(source.base).save_pretrained(str(folder))
    load_tokenizer(source.base).save_pretrained(str(folder))
    files = {path.name: file_hash(path) for path in sorted(folder.iterdir())}
    manifest = {
        "run_id": source.run_id,
        "step": source.step,
        "policy_version": source.policy_version,
        "algorithm": source.algorithm,
        "kind": "model" if whole else "adapter",
        "base_model": source.base_name,
        "base_sha256": base_hash(source.base),
        "score": source.score,
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(_card(manifest), encoding="utf-8")


def _copy_adapter(source: Source, folder: Path) -> None:
    for path in (source.checkpoint / ADAPTER).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    file = folder / ADAPTER_CONFIG
    config = json.loads(file.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = source.base_name
    file.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _whole_model(source: Source) -> Any:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        str(source.base), dtype=DTYPES[source.dtype], local_files_only=True
    )
    if is_adapter(source.checkpoint):
        adapted = peft.PeftModel.from_pretrained(model, str(source.checkpoint / ADAPTER))
        return adapted.merge_and_unload()
    wanted = {f"trained.{name}": value.detach() for name, value in model.named_parameters()}
    with torch.no_grad(), plain_errors(source.checkpoint):
        load(wanted, checkpoint_id=source.checkpoint / SHARDS, no_dist=True)
    return model


def _generation_config(base: Path) -> transformers.GenerationConfig:
    try:
        return transformers.GenerationConfig.from_pretrained(str(base), local_files_only=True)
    except OSError:
        config = transformers.AutoConfig.from_pretrained(str(base), local_files_only=True)
        return transformers.GenerationConfig.from_model_config(config)


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def base_hash(folder: Path) -> str:
    """Returns one SHA-256 for the weights of a model: of its safetensors files' names and hashes, sorted by name."""
    lines = [f"{file_hash(path)}  {path.name}\n" for path in sorted(folder.glob("*.safetensors"))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _card(manifest: Mapping[str, Any]) -> str:
    """Returns the model card, with the front matter that hubs read."""
    adapter = manifest["kind"] == "adapter"
    weights = "adapter_model.safetensors" if adapter else "model.safetensors"
    score = "" if manifest["score"] is None else f"| mean reward | {manifest['score']:.4g} |\n"
    what = "A LoRA adapter" if adapter else "A whole model"
    front = {
        "base_model": manifest["base_model"],
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["hone", manifest["algorithm"], *(["lora"] if adapter else [])],
    }
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())
    return (
        f"---\n{lines}---\n\n# {manifest['run_id']}, step {manifest['step']}\n\n"
        f"{what}, trained with Hone ({manifest['algorithm']}).\n\n"
        "| | |\n|---|---|\n"
        f"| run | `{manifest['run_id']}` |\n"
        f"| step | {manifest['step']} (policy version {manifest['policy_version']}) |\n"
        f"{score}"
        f"| base model | `{manifest['base_model']}` |\n"
        f"| base weights, SHA-256 | `{manifest['base_sha256']}` |\n"
        f"| {weights}, SHA-256 | `{manifest['files'][weights]}` |\n\n"
        f"`{MANIFEST}` has the hash of every file.\n"
    )
