"""Opens adapters that peft wrote, here or elsewhere, and refuses those that would act and learn as two policies.

peft itself leaves out weights that an adapter's configuration has no place for, starts anew those that its file lacks,
and for some ways of starting an adapter changes the base below it, all of that with a warning at most. The engines that
act read the file, so the learner would train another policy.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors import SafetensorError, safe_open
from transformers.pytorch_utils import Conv1D

from learner.training.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, POLICY, REFERENCE
from learner.training.lora_linear import use_lora_linear
from modelstore.resolve import ModelUnusableError

PEFT_PREFIX = "base_model.model."
"""Before the name of each layer in an adapter's weights."""

STARTS_OVER_THE_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base as it is; pissa, olora, corda and loftq take a part of it away."""

FURTHER_PARTS = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
)
"""Settings of peft that change more than the linear layers of the blocks, or when the adapter acts."""

PEFT_ERRORS = (
    AttributeError,
    KeyError,
    NotImplementedError,
    OSError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
    re.error,
)
"""What peft and torch raise of an adapter that does not fit."""


def open_adapter(base: Any, folder: Path, field: str) -> Any:
    """Attaches the adapter in a folder to an open base model, to be trained.

    Raises:
        ModelUnusableError: it is none, or what it holds does not fit the base or its own configuration.
    """
    _check_files(base, folder, field)
    with _named(folder, field):
        model: Any = peft.PeftModel.from_pretrained(
            base,
            str(folder),
            adapter_name=POLICY,
            is_trainable=True,
            config=use_lora_linear(peft.LoraConfig.from_pretrained(str(folder))),
        )
    _check_names(model, POLICY, folder, field)
    return model


def add_reference(model: Any, folder: Path, field: str) -> None:
    """Adds the adapter in a folder as the frozen reference.

    Raises:
        ModelUnusableError: as `open_adapter`.
    """
    _check_files(model.get_base_model(), folder, field)
    with _named(folder, field):
        model.load_adapter(str(folder), adapter_name=REFERENCE, is_trainable=False)
    model.base_model.set_adapter(POLICY)
    _check_names(model, REFERENCE, folder, field)


def block_layers(base: Any, *kinds: type[torch.nn.Module]) -> list[str]:
    """Returns where the layers of some kinds are, which is all but the output layer."""
    head = base.get_output_embeddings()
    return [
        name.replace(".base_layer", "")
        for name, module in base.named_modules()
        if isinstance(module, kinds) and module is not head and ".lora_" not in name
    ]


@contextmanager
def _named(folder: Path, field: str) -> Iterator[None]:
    """Says of what peft or torch found where it lies."""
    try:
        yield
    except PEFT_ERRORS as error:
        said = " ".join(str(error).split())[:300]
        raise ModelUnusableError(
            f"{field}: {str(folder)!r} does not fit the model or its own configuration: "
            f"{type(error).__name__}: {said}"
        ) from error


def _check_files(base: Any, folder: Path, field: str) -> None:
    missing = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ModelUnusableError(
            f"{field}: {str(folder)!r} is not an adapter as peft writes it: "
            f"{', '.join(missing)} missing"
        )
    _check_config(folder, field)
    # Others are refused for the reason that `model._check_targets` gives.
    adapted = {
        name.removeprefix(PEFT_PREFIX).partition(".lora_")[0] for name in _names(folder, field)
    }
    if others := sorted(adapted - set(block_layers(base, torch.nn.Linear, Conv1D))):
        raise ModelUnusableError(
            f"{field}: {str(folder)!r} adapts {', '.join(others[:3])}; only an adapter of linear layers of the model's "
            "blocks is right"
        )


def _check_config(folder: Path, field: str) -> None:
    file = folder / ADAPTER_CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        task, kind = config.get("task_type"), config.get("peft_type")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ModelUnusableError(f"{field}: {file}: {error}") from error
    if task not in (None, "CAUSAL_LM"):
        raise ModelUnusableError(
            f"{field}: {str(folder)!r} is an adapter for {task}, a policy needs one for CAUSAL_LM"
        )
    if kind != "LORA":
        raise ModelUnusableError(f"{field}: {file}: peft_type: found {kind!r}; LORA is right")
    start = config.get("init_lora_weights", True)
    if start not in STARTS_OVER_THE_BASE:
        raise ModelUnusableError(
            f"{field}: {file}: init_lora_weights: found {start!r}, which takes a part of the base away; save the "
            "adapter with path_initial_model_for_weight_conversion, as peft says of it"
        )
    further = [name for name in FURTHER_PARTS if config.get(name)]
    if config.get("bias", "none") != "none":
        further.append("bias")
    if further:
        raise ModelUnusableError(
            f"{field}: {file}: {', '.join(further)}: only an adapter without is right"
        )


def _check_names(model: Any, name: str, folder: Path, field: str) -> None:
    """Refuses an adapter of which peft has left weights out or started some anew."""
    held = set(
        peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    )
    told = set(_names(folder, field))
    if odd := sorted(held ^ told):
        raise ModelUnusableError(
            f"{field}: {str(folder)!r}: {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} are of different layers: "
            f"{len(held - told)} weights missing, {len(told - held)} without a place, first {odd[0]}"
        )


def _names(folder: Path, field: str) -> list[str]:
    try:
        with safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as weights:
            return list(weights.keys())
    except (SafetensorError, OSError) as error:
        raise ModelUnusableError(f"{field}: {folder / ADAPTER_WEIGHTS}: {error}") from error
