"""Adapters: where those of complete runs lie, what `model.adapter` names, and the shape that a run trains."""

import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from learner.runs.store import RunStore
from runspec.schema import MAX_RANK, LoraSpec
from servicekit.errors import InvalidArgument, NotFound

CONFIG = "adapter_config.json"

REWARD_MODEL = "reward_model"
"""Folder of a run's reward model: a whole model, with its adapter beside."""


class AdapterStore:
    """Finds adapters by run or by folder."""

    def __init__(self, runs: RunStore) -> None:
        """Looks below the folders of runs."""
        self._runs = runs

    def folder(self, run_id: str) -> Path:
        """Returns where the adapter of a run lies once the run is complete."""
        return self._runs.folder(run_id) / "adapter"

    def reward_model(self, run_id: str) -> Path:
        """Returns where the reward model of a run lies once the run is complete."""
        return self._runs.folder(run_id) / REWARD_MODEL

    def model(self, run_id: str) -> Path:
        """Returns where the model of a run that trained full weights lies once the run is complete."""
        return self._runs.folder(run_id) / "model"

    def discard(self, run_id: str) -> None:
        """Removes what a run made, if it has made anything."""
        for folder in (self.folder(run_id), self.model(run_id), self.reward_model(run_id)):
            if folder.exists():
                # Hidden first: a result is there as a whole or not at all.
                gone = folder.with_name(f".discarded-{folder.name}")
                shutil.rmtree(gone, ignore_errors=True)
                folder.rename(gone)
                shutil.rmtree(gone)

    def resolve(self, name: str) -> Path | None:
        """Returns the folder that `model.adapter` names; None for the empty name.

        Raises:
            NotFound: there is no adapter there. InvalidArgument: it is no run's id, and no folder as one is named.
        """
        if not name:
            return None
        is_path = "/" in name or name.startswith(".")
        try:
            folder = Path(name) if is_path else self.folder(name)
        except InvalidArgument:
            said = f"found {name[:60]!r}; the run_id of a run that is complete, or a folder (./name), is right"
            raise InvalidArgument(
                f"model.adapter: {said}", violations={"model.adapter": said}
            ) from None
        if not _is_file(folder / CONFIG):
            if not is_path and _is_file(self.reward_model(name) / "config.json"):
                said = f"run {name} made a reward model, which is no policy; name another run"
                raise NotFound(f"model.adapter: {said}", violations={"model.adapter": said})
            if not is_path and _is_file(self.model(name) / "config.json"):
                said = f"run {name} trained full weights; start from them by model.path: {self.model(name)}"
                raise NotFound(f"model.adapter: {said}", violations={"model.adapter": said})
            what = f"folder {str(folder)[:200]}" if is_path else f"run {name}"
            said = f"{what} holds no {CONFIG}; name a run that is complete, or a folder as peft writes it"
            raise NotFound(f"model.adapter: {said}", violations={"model.adapter": said})
        return folder


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file system takes
        return False


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
    if not isinstance(value, set):
        text = str(value)
        return text if len(text) <= 200 else f"{text[:200]}..."
    names = [name[:60] for name in sorted(value)]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
