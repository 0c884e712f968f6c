"""Opens policies: a base model with an adapter to train, or a model of which every weight is trained."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers.pytorch_utils import Conv1D

from learner.training.adapter_files import add_reference, block_layers, open_adapter
from learner.training.attention import TREE_ATTENTION, register_tree_attention
from learner.training.checkpointing import checkpoint_activations
from learner.training.full import FullPolicy, check_trainable, weights_hash
from learner.training.lora import POLICY, LoraPolicy
from learner.training.lora_linear import use_lora_linear
from learner.training.policy import Policy
from modelstore.resolve import ModelUnusableError
from runspec.problems import nearest

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""By the name that `model.dtype` gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Which weights to start from and what to train."""

    folder: Path
    """Of the base model, as `modelstore.resolve` gives it."""
    adapter: Path | None = None
    """Adapter to start from; its own rank, scale and layers then hold. Full weights start with it merged."""
    reference: str = "start"
    """start (the policy as it starts), base, or the folder of an adapter; with full weights also of a model."""
    full: bool = False
    """Train every weight, and no adapter."""
    refers: bool = True
    """Whether something will ask for the reference; where not, full weights hold no copy for it."""
    dtype: str = "float32"
    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ()
    """Empty means all linear layers of the blocks."""
    seed: int = 0
    """Of the new adapter's first half; the second starts at zero."""
    checkpointing: bool = False
    """Compute the activations within each layer again for the backward pass, and keep none."""
    value_head: bool = False
    """Whether the policy says what to expect of a state."""
    score_head: bool = False
    """Whether it gives conversations a score: a head without a bias, as sequence classifiers have it."""


def load_tokenizer(folder: Path) -> transformers.PreTrainedTokenizerBase:
    """Opens the tokenizer of a model folder."""
    tokenizer: transformers.PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True
    )
    return tokenizer


def load_policy(settings: PolicySettings, device: torch.device | None = None) -> Policy:
    """Opens the base model and attaches what is trained.

    Raises:
        ModelUnusableError: a part cannot be opened, or does not fit the rest.
    """
    return attach(_load_base(settings, device or default_device()), settings)


def attach(base: Any, settings: PolicySettings) -> Policy:
    """Makes a policy of an open base model whose weights are frozen."""
    head = None
    if settings.value_head or settings.score_head:
        head = _new_head(base, bias=settings.value_head)
    # No dropout: rollouts were sampled without, and KL at step 0 is exactly 0.
    base.eval()
    policy = _full(base, settings, head) if settings.full else _lora(base, settings, head)
    if settings.checkpointing:
        checkpoint_activations(policy.model)
    return policy


def _lora(base: Any, settings: PolicySettings, head: torch.nn.Linear | None) -> LoraPolicy:
    base_hash = weights_hash(base)
    folder = _reference_folder(settings)
    if settings.adapter is None:
        model: Any = _new_adapter(base, settings)
    else:
        model = open_adapter(base, settings.adapter, "model.adapter")
    if folder is not None:
        add_reference(model, folder, _reference_field(settings))
    model.eval()
    return LoraPolicy(model, has_reference=folder is not None, base_hash=base_hash, value_head=head)


def _full(base: Any, settings: PolicySettings, head: torch.nn.Linear | None) -> FullPolicy:
    check_trainable(base)
    reference = None
    if settings.refers and settings.reference == "base":
        reference = copy.deepcopy(base)
    model = base
    if settings.adapter is not None:
        model = open_adapter(base, settings.adapter, "model.adapter").merge_and_unload()
    if settings.refers and settings.reference == "start":
        reference = copy.deepcopy(model)
    elif settings.refers and settings.reference != "base":
        reference = _reference_model(settings, base.device)
    return FullPolicy(model, reference=reference, value_head=head)


def _reference_model(settings: PolicySettings, device: torch.device) -> Any:
    """Opens the model in a folder, or the base model with the adapter in it."""
    folder = Path(settings.reference)
    if (folder / "config.json").is_file():
        return _load_base(replace(settings, folder=folder), device, "model.reference").eval()
    base = _load_base(settings, device)
    return open_adapter(base, folder, "model.reference").merge_and_unload().eval()


def _new_head(base: Any, *, bias: bool) -> torch.nn.Linear:
    """Makes a head that at first says 0 of every state."""
    size = base.get_output_embeddings().weight.shape[1]
    head = torch.nn.Linear(size, 1, bias=bias, device=base.device, dtype=torch.float32)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    return head


def _load_base(settings: PolicySettings, device: torch.device, field: str = "model.path") -> Any:
    if settings.dtype not in DTYPES:
        raise ModelUnusableError(
            f"model.dtype: found {settings.dtype!r}; {' or '.join(DTYPES)} is right"
        )
    register_tree_attention()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"dtype": DTYPES[settings.dtype], "local_files_only": True}
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(settings.folder), local_files_only=True
        )
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(settings.folder), attn_implementation=attention_of(config), **options
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusableError(
            f"{field}: {str(settings.folder)!r} cannot be opened as a causal language model: "
            f"{error}"
        ) from error
    model.requires_grad_(False)
    return model.to(device)


def attention_of(config: Any) -> str:
    """Returns the attention of a model as it is trained: over trees, where its kind takes one from outside."""
    kind = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    takes = bool(getattr(kind, "_supports_attention_backend", False))
    return TREE_ATTENTION if takes else "sdpa"


def _new_adapter(base: Any, settings: PolicySettings) -> Any:
    alpha = settings.alpha
    _check_targets(base, settings.target_modules)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        # A whole number stays one in the file: vLLM declares it so.
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=list(settings.target_modules) or _linear_layers(base),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        try:
            return peft.get_peft_model(base, use_lora_linear(config), adapter_name=POLICY)
        except ValueError as error:
            raise ModelUnusableError(f"lora.target_modules: {error}") from error


def _check_targets(base: Any, wanted: Sequence[str]) -> None:
    """Refuses names of no linear layer of the blocks.

    peft leaves out a name of no layer in silence where another name has one. Log-probabilities are computed from the
    output layer's own weight (`head`), so that an adapter of it would have no effect, and where the embeddings share
    that weight a merged export of either would be another model.
    """
    layers = [f".{name}" for name in block_layers(base, torch.nn.Linear, Conv1D)]
    for target in wanted:
        if not any(name.endswith(f".{target}") for name in layers):
            known = sorted({name.rpartition(".")[2] for name in layers})
            meant = nearest(target, known)
            hint = f"; did you mean {meant}?" if meant else "."
            raise ModelUnusableError(
                f"lora.target_modules: the model's blocks have no linear layer {target!r}{hint} "
                f"They have {', '.join(known)}; without the field all of them get an adapter"
            )


def _linear_layers(base: Any) -> list[str]:
    """Returns the names of the linear layers of the blocks."""
    return sorted({name.rpartition(".")[2] for name in block_layers(base, torch.nn.Linear)})


def _reference_folder(settings: PolicySettings) -> Path | None:
    if settings.reference == "base":
        return None
    return settings.adapter if settings.reference == "start" else Path(settings.reference)


def _reference_field(settings: PolicySettings) -> str:
    return "model.adapter" if settings.reference == "start" else "model.reference"


def default_device() -> torch.device:
    """Returns where a run with one process trains: the GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
