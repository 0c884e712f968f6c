"""Adapters of complete runs: where they lie, and what `model.adapter` names."""

from pathlib import Path

from learner.runs import RunStore
from servicekit.errors import NotFound

CONFIG = "adapter_config.json"


class AdapterStore:
    """Finds adapters by run or by folder."""

    def __init__(self, runs: RunStore) -> None:
        """Looks below the folders of runs."""
        self._runs = runs

    def folder(self, run_id: str) -> Path:
        """Returns where the adapter of a run lies once the run is complete."""
        return self._runs.folder(run_id) / "adapter"

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
            what = f"folder {str(folder)[:200]}" if is_path else f"run {name}"
            said = f"{what} holds no {CONFIG}; name a run that is complete, or a folder as peft writes it"
            raise NotFound(f"model.adapter: {said}", violations={"model.adapter": said})
        return folder


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file system takes
        return False
