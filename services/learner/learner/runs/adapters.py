"""Adapters of complete runs: where they lie, and what `model.adapter` names."""

import json
import shutil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from learner.runs.store import RunStore
from runspec.schema import LoraSpec
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
            NotFound: there is no adapter there.
        """
        if not name:
            return None
        is_path = "/" in name or name.startswith(".")
        folder = Path(name) if is_path else self.folder(name)
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


def shape_of(lora: LoraSpec, adapter: Path | None) -> LoraSpec:
    """Returns rank, scale and layers of what a run trains: a new adapter, or the one it goes on with.

    Raises:
        InvalidArgument: `lora` says another shape than the adapter has, or that cannot be read.
    """
    if adapter is None:
        return lora.model_copy(update={"rank": lora.new_rank, "alpha": lora.new_alpha})
    has = _read_shape(adapter / CONFIG)
    said = lora.model_dump(exclude_none=True, exclude_defaults=True)
    wrong = {
        f"lora.{key}": f"is {_told(value)}, but the adapter that model.adapter names has {_told(has[key])}, and the "
        f"run goes on with that; leave it out (on the command line: lora.{key}=null)"
        for key, value in said.items()
        if key in has and _told(has[key]) != _told(value)
    }
    if wrong:
        text = "; ".join(f"{field}: {what}" for field, what in wrong.items())
        raise InvalidArgument(text, violations=wrong)
    layers = has.pop("target_modules", None)
    if isinstance(layers, list):
        # peft also takes a pattern, which a list of names cannot say.
        has["target_modules"] = tuple(sorted(layers))
    try:
        return LoraSpec.model_validate(lora.model_dump() | has)
    except ValidationError as error:
        raise _unreadable(adapter / CONFIG, error) from error


def _read_shape(config: Path) -> dict[str, Any]:
    try:
        read = json.loads(config.read_text(encoding="utf-8"))
        fields = {"rank": "r", "alpha": "lora_alpha", "target_modules": "target_modules"}
        return {key: read[name] for key, name in fields.items() if read.get(name) is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise _unreadable(config, error) from error


def _told(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(sorted(map(str, value)))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _unreadable(config: Path, error: Exception) -> InvalidArgument:
    said = f"{config} is no configuration of a LoRA adapter as peft writes it: {error}"
    return InvalidArgument(f"model.adapter: {said}", violations={"model.adapter": said})
