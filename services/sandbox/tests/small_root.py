"""Small root file systems, made of the programs of this machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

_NOT_NEEDED = ("test", "dist-packages", "site-packages", "idlelib", "tkinter", "ensurepip")


def add_program(name: str, folder: Path) -> None:
    """Copy a program with its libraries; skip the test where the machine lacks it."""
    place = shutil.which(name, path="/usr/bin:/bin")
    if place is None:
        pytest.skip(f"the host has no {name} to make a root from")
    program = Path(place)
    for source in (program.resolve(), *_libraries(program)):
        _copy(source, folder)
    for path in (f"bin/{program.name}", f"usr/bin/{program.name}"):
        link = folder / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(program.resolve())


def add_python(folder: Path) -> None:
    """Copy the machine's own Python with its standard library."""
    add_program("python3", folder)
    script = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    said = subprocess.run(
        ["/usr/bin/python3", "-c", script], capture_output=True, text=True, check=True
    ).stdout
    library = Path(said.strip())
    shutil.copytree(
        library,
        folder / library.relative_to("/"),
        symlinks=True,
        ignore=shutil.ignore_patterns(*_NOT_NEEDED, "__pycache__", "config-*"),
        dirs_exist_ok=True,
    )
    for module in library.glob("lib-dynload/_ctypes.*.so"):
        for source in _libraries(module):
            _copy(source, folder)


def _libraries(program: Path) -> list[Path]:
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(word) for word in linked.split() if word.startswith("/")]


def _copy(source: Path, folder: Path) -> None:
    target = folder / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
