"""What a run file may say of the adapter that the run trains, and what the run keeps of it.

A run that goes on with an adapter has that adapter's shape: what the file says of another would do nothing.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from learner.runs.adapters import CONFIG
from runspec.schema import MAX_RANK, LoraSpec
from servicekit.errors import InvalidArgument


class _PeftConfig(BaseModel):
    """What peft writes of the shape of a LoRA adapter; single layers may differ from it by a pattern."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    peft_type: Literal["LORA"]
    r: int = Field(ge=1, le=MAX_RANK)
    lora_alpha: float = Field(gt=0)
    target_modules: list[str] | str | None = None


def shape_of(lora: LoraSpec, adapter: Path | None) -> LoraSpec:
    """Returns rank and scale of what a run trains: a new adapter, or the one it goes on with.

    Raises:
        InvalidArgument: `lora` says another shape than the adapter has, or that cannot be read.
    """
    if adapter is None:
        return lora.filled()
    has = _read(adapter / CONFIG)
    layers = has.target_modules
    own = {
        "rank": has.r,
        "alpha": has.lora_alpha,
        "target_modules": set(layers) if isinstance(layers, list) else layers,
    }
    said = {
        "rank": lora.rank,
        "alpha": lora.alpha,
        "target_modules": set(lora.target_modules) or None,
    }
    wrong = {
        f"lora.{key}": f"is {_shown(value)}, but the adapter that model.adapter names has {_shown(own[key])}, which "
        f"a run from it keeps; say that, or leave it out (on the command line: lora.{key}=null)"
        for key, value in said.items()
        if value not in (None, own[key])
    }
    if wrong:
        text = "; ".join(f"{field}: {what}" for field, what in wrong.items())
        raise InvalidArgument(text, violations=wrong)
    return lora.model_copy(update={"rank": has.r, "alpha": has.lora_alpha})


def _read(config: Path) -> _PeftConfig:
    try:
        return _PeftConfig.model_validate_json(config.read_bytes())
    except ValidationError as error:
        why = "; ".join(
            ": ".join((*map(str, problem["loc"]), problem["msg"])) for problem in error.errors()
        )
    except OSError as error:
        why = error.strerror or str(error)
    said = f"{config} is no configuration of a LoRA adapter that a run can go on with: {why}"
    raise InvalidArgument(f"model.adapter: {said}", violations={"model.adapter": said})


def _shown(value: object) -> str:
    """A value in few words: an adapter may name each of hundreds of layers."""
    text = ", ".join(sorted(value)) if isinstance(value, set) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
