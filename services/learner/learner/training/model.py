"""The policy: a frozen base model, the adapter that is trained, and the reference for KL.

The reference shares the base model's weights: it is the base alone, or a second, frozen adapter. So KL
at step 0 is exactly 0, and no second model is held.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from learner.training.attention import TREE_ATTENTION, register_tree_attention
from modelstore.resolve import ModelUnusableError

POLICY = "default"
"""peft saves the adapter of this name without a folder of its own."""

REFERENCE = "reference"

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""By the name that `model.dtype` gives."""

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Which weights to start from and what to train."""

    folder: Path
    """Of the base model, as `modelstore.resolve` gives it."""
    adapter: Path | None = None
    """Adapter to start from; its own rank, scale and layers then hold."""
    reference: str = "start"
    """start (the policy as it starts), base, or the folder of an adapter."""
    dtype: str = "float32"
    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ()
    """Empty means all linear layers of the blocks."""
    seed: int = 0
    """Of the new adapter's first half; the second starts at zero."""
    value_head: bool = False
    """Whether the policy says what to expect of a state."""
    score_head: bool = False
    """Whether it gives conversations a score: a head without a bias, as sequence classifiers have it."""


class Policy:
    """A causal language model with an adapter; see the module."""

    def __init__(
        self, model: Any, *, has_reference: bool, value_head: torch.nn.Linear | None = None
    ) -> None:
        """Takes the model; use `load_policy`."""
        self._peft = model
        self._has_reference = has_reference
        self.value_head = value_head
        """From hidden states to values or scores, in float32; switching the adapter off leaves it as it is."""
        self._names = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        if value_head is not None:
            self._names |= {f"value_head.{k}": v for k, v in value_head.named_parameters()}

    @property
    def model(self) -> Any:
        """The language model, adapter applied."""
        return self._peft.get_base_model()

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """What is trained, by name."""
        return self._names

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        found: torch.device = next(iter(self._names.values())).device
        return found

    @property
    def has_reference_adapter(self) -> bool:
        """Whether the reference is an adapter of its own; else it is the base."""
        return self._has_reference

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """Gives the language model as the reference policy has it, without gradients."""
        with torch.no_grad():
            if not self._has_reference:
                with self._peft.disable_adapter():
                    yield self.model
                return
            self._peft.base_model.set_adapter(REFERENCE, inference_mode=True)
            try:
                yield self.model
            finally:
                self._peft.base_model.set_adapter(POLICY)

    def export_adapter(self, folder: Path) -> None:
        """Writes the adapter as peft and vLLM open it."""
        self._export(POLICY, folder)

    def export_reference(self, folder: Path) -> None:
        """Writes the reference adapter; there must be one."""
        assert self._has_reference
        self._export(REFERENCE, folder)

    def load_adapter(self, folder: Path) -> None:
        """Replaces the adapter's weights by those of an exported one of the same shape."""
        _load_weights(self._peft, POLICY, folder)

    def load_reference(self, folder: Path) -> None:
        """Replaces the weights of the reference adapter; there must be one."""
        assert self._has_reference
        _load_weights(self._peft, REFERENCE, folder)

    def _export(self, name: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        weights = peft.get_peft_model_state_dict(
            self._peft, adapter_name=name, save_embedding_layers=False
        )
        save_file(
            {key: tensor.detach().cpu().contiguous() for key, tensor in weights.items()},
            folder / ADAPTER_WEIGHTS,
            metadata={"format": "pt"},
        )
        # safetensors writes for its own user alone.
        (folder / ADAPTER_WEIGHTS).chmod(0o644)
        config = self._peft.peft_config[name]
        was = config.inference_mode
        config.inference_mode = True
        try:
            config.save_pretrained(str(folder))
        finally:
            config.inference_mode = was
        # peft keeps the layers' names in a set: sorted, equal adapters are equal files.
        file = folder / ADAPTER_CONFIG
        written = json.loads(file.read_text(encoding="utf-8"))
        written["target_modules"] = sorted(written["target_modules"])
        file.write_text(json.dumps(written, indent=2, sort_keys=True), encoding="utf-8")


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
    base = _load_base(settings, device or _default_device())
    if settings.adapter is None:
        model: Any = _new_adapter(base, settings)
    else:
        _check_adapter(settings.adapter, "model.adapter")
        model = peft.PeftModel.from_pretrained(
            base, str(settings.adapter), adapter_name=POLICY, is_trainable=True
        )
    folder = _reference_folder(settings)
    if folder is not None:
        model.load_adapter(str(folder), adapter_name=REFERENCE, is_trainable=False)
        model.base_model.set_adapter(POLICY)
    # No dropout: rollouts were sampled without, and KL at step 0 is exactly 0.
    model.eval()
    head = None
    if settings.value_head or settings.score_head:
        head = _new_head(base, bias=settings.value_head)
    return Policy(model, has_reference=folder is not None, value_head=head)


def _new_head(base: Any, *, bias: bool) -> torch.nn.Linear:
    """Makes a head that at first says 0 of every state."""
    size = base.get_output_embeddings().weight.shape[1]
    head = torch.nn.Linear(size, 1, bias=bias, device=base.device, dtype=torch.float32)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    return head


def _load_base(settings: PolicySettings, device: torch.device) -> Any:
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
        kind = transformers.AutoModelForCausalLM._model_mapping[type(config)]
        takes = bool(getattr(kind, "_supports_attention_backend", False))
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(settings.folder),
            attn_implementation=TREE_ATTENTION if takes else "sdpa",
            **options,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusableError(
            f"model.path: {str(settings.folder)!r} cannot be opened as a causal language model: "
            f"{error}"
        ) from error
    model.requires_grad_(False)
    return model.to(device)


def _new_adapter(base: Any, settings: PolicySettings) -> Any:
    alpha = settings.alpha
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
            return peft.get_peft_model(base, config, adapter_name=POLICY)
        except ValueError as error:
            raise ModelUnusableError(f"lora.target_modules: {error}") from error


def _linear_layers(base: Any) -> list[str]:
    """Returns the names of the linear layers of the blocks, which is all but the output layer."""
    head = base.get_output_embeddings()
    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in base.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        }
    )


def _reference_folder(settings: PolicySettings) -> Path | None:
    if settings.reference == "base":
        return None
    if settings.reference == "start":
        return settings.adapter
    folder = Path(settings.reference)
    _check_adapter(folder, "model.reference")
    return folder


def _check_adapter(folder: Path, field: str) -> None:
    missing = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ModelUnusableError(
            f"{field}: {str(folder)!r} is not an adapter as peft writes it: "
            f"{', '.join(missing)} missing"
        )
    try:
        task = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("task_type")
    except (ValueError, AttributeError) as error:
        raise ModelUnusableError(f"{field}: {folder / ADAPTER_CONFIG}: {error}") from error
    if task not in (None, "CAUSAL_LM"):
        raise ModelUnusableError(
            f"{field}: {str(folder)!r} is an adapter for {task}, a policy needs one for CAUSAL_LM"
        )


def _load_weights(model: Any, name: str, folder: Path) -> None:
    weights = load_file(folder / ADAPTER_WEIGHTS)
    outcome: Any = peft.set_peft_model_state_dict(model, weights, adapter_name=name)
    missing = [key for key in outcome.missing_keys if f".{name}." in key]
    if missing or outcome.unexpected_keys:
        raise ModelUnusableError(
            f"{str(folder)!r} does not fit the run's adapter: {len(missing)} weights missing, "
            f"{len(outcome.unexpected_keys)} unknown"
        )


def _default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
