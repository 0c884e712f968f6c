"""Writes a reward model as others open it.

    folder/            a whole sequence classifier with one output, adapter merged, and its tokenizer: for transformers
                       and for the rollout service's ScoreRewards
    folder/adapter/    the adapter and the score head as peft opens them over the base model (task type SEQ_CLS), where
                       an adapter was trained

The policy is a causal language model with a head of its own; a classifier of the same family has the same body under
the same names and its head as `score`, so that weights only move.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from learner.training.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LoraPolicy
from learner.training.policy import Policy, whole
from modelstore.resolve import ModelUnusableError

ADAPTER = "adapter"
HEAD = "score"
"""Where a classifier of transformers has its head."""


def check_classifier(folder: Path) -> None:
    """Refuses a base model that cannot become a reward model, before anything is trained.

    Raises:
        ModelUnusableError: transformers has no sequence classifier with a `score` head for it.
    """
    try:
        config = _config(folder)
        with torch.device("meta"):
            model: Any = transformers.AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusableError(
            f"model.path: {str(folder)!r} has no sequence classifier in transformers, which a "
            f"reward model is: {error}"
        ) from error
    if not isinstance(getattr(model, HEAD, None), torch.nn.Linear):
        raise ModelUnusableError(
            f"model.path: {type(model).__name__} has no head named {HEAD}, which a reward model needs"
        )


def export_reward_model(policy: Policy, base: Path, tokenizer: Any, folder: Path) -> None:
    """Writes the policy's weights and head into `folder`: an adapter alone and merged, full weights as they are.

    Args:
        policy: one with a score head.
        base: folder of the base model.
        tokenizer: the base model's.
        folder: made if it is not there.
    """
    head = _head_weight(policy)
    if isinstance(policy, LoraPolicy):
        adapter = folder / ADAPTER
        policy.export_adapter(adapter)
        if not policy.writes:
            return
        _add_head(head, adapter)
        model = _classifier(base, policy, tokenizer)
        model = peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    else:
        with tempfile.TemporaryDirectory() as scratch:
            policy.export(Path(scratch))
            if not policy.writes:
                return
            model = _classifier(Path(scratch), policy, tokenizer)
        model.get_submodule(HEAD).weight.data.copy_(head)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def _classifier(base: Path, policy: Policy, tokenizer: Any) -> Any:
    """Opens a model folder as a sequence classifier whose head is still to be filled."""
    config = _config(base)
    if config.pad_token_id is None:
        # Classifiers of transformers find a text's end by this token.
        config.pad_token_id = tokenizer.eos_token_id
    with _without_warnings():
        # It warns of a head that the base model lacks; the policy brings it.
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            str(base), config=config, dtype=policy.model.dtype, local_files_only=True
        )


def _head_weight(policy: Policy) -> torch.Tensor:
    assert policy.value_head is not None, "the policy was loaded without a score head"
    return whole(policy.value_head.weight).to(policy.model.dtype)


@contextmanager
def _without_warnings() -> Iterator[None]:
    logger = transformers.utils.logging
    before = logger.get_verbosity()
    logger.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logger.set_verbosity(before)


def _config(base: Path) -> Any:
    config = transformers.AutoConfig.from_pretrained(str(base), local_files_only=True)
    config.num_labels = 1
    return config


def _add_head(head: torch.Tensor, adapter: Path) -> None:
    """Turns an exported adapter of a language model into one of a classifier."""
    weights = load_file(adapter / ADAPTER_WEIGHTS)
    weights[f"base_model.model.{HEAD}.weight"] = head
    save_file(weights, adapter / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    # safetensors writes for its own user alone.
    (adapter / ADAPTER_WEIGHTS).chmod(0o644)
    config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config |= {"task_type": "SEQ_CLS", "modules_to_save": [HEAD]}
    (adapter / ADAPTER_CONFIG).write_text(
        json.dumps(config, indent=2, sort_keys=True), encoding="utf-8"
    )
