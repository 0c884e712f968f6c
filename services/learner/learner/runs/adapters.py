"""Adapters of complete runs: where they lie, and what `model.adapter` names."""

import shutil
from pathlib import Path

from learner.runs.store import RunStore
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
