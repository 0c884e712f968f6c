"""The root file system `host` of the embedded backend: the host's /usr, read-only, under a synthetic root.

Nothing is downloaded and nothing of the host's /etc is shown. What a sandbox starts from is the same for all of a
template: it is described by a plan (sent to the spawner with each create) and named by a digest (stamped on each
rollout). Other roots are imported, see `sandbox.backends.local.roots`.
"""

import hashlib
import json
import os
import platform
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

LAYOUT_VERSION = 1
"""Part of the digest; goes up whenever the plan below changes."""

HOST_ROOT = "host"
"""As templates call it."""

WORKING_DIR = "/work"
"""Where commands start."""

HOST_NAME = "sandbox"
SHELL = "/bin/sh"

DEFAULT_ENV = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LOGNAME": "root",
    "PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin",
    "SHELL": SHELL,
    "TERM": "dumb",
    "USER": "root",
}
"""What every command sees unless the caller says otherwise."""

_DIRECTORIES = (
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("work", 0o755),
)
_FILES = (
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    ),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/hosts", f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n"),
    ("etc/hostname", f"{HOST_NAME}\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("etc/resolv.conf", ""),
    ("etc/profile", "export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin\n"),
)
_SYMLINKS = (("etc/mtab", "../proc/self/mounts"), ("var/run", "../run"))
_ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PACKAGE_DATABASES = ("var/lib/dpkg/status", "lib/apk/db/installed", "var/lib/rpm/rpmdb.sqlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlan:
    """What the spawner builds for each sandbox, and its name."""

    digest: str
    health_paths: tuple[str, ...]
    """What must be there in a sandbox for programs to run: the shell and the loader's folders."""
    base: str = ""
    """Folder of an imported root; the sandbox's root is an overlay of it, and nothing else is built."""
    directories: list[tuple[str, int]] = field(default_factory=list)
    files: list[tuple[str, int, str]] = field(default_factory=list)
    symlinks: list[tuple[str, str]] = field(default_factory=list)
    binds: list[tuple[str, str, bool]] = field(default_factory=list)
    """Source on the host, place in the sandbox, whether it is a folder."""

    def as_spec(self) -> dict[str, Any]:
        """Return the plan as the spawner's message holds it."""
        return {
            "base": self.base,
            "directories": self.directories,
            "files": self.files,
            "symlinks": self.symlinks,
            "binds": self.binds,
        }


def plan_host_root(state_dir: Path, host: Path = Path("/")) -> RootPlan:
    """Plan a root over the host's /usr; keeps what must be bound (not copied each time) in `state_dir`.

    Raises:
        FileNotFoundError: the host lacks /usr or a shell in it.
    """
    if not (host / "usr/bin/sh").exists() and not (host / "bin/sh").exists():
        raise FileNotFoundError(f"{host}usr/bin/sh: the root file system `host` needs a shell")
    symlinks = list(_SYMLINKS)
    binds = [(str(host / "usr"), "usr", True)]
    for name in _ROOT_NAMES:
        path = host / name
        if path.is_symlink():
            symlinks.append((name, os.readlink(path)))
        elif path.is_dir():
            binds.append((str(path), name, True))
    etc = state_dir / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    if (host / "etc/ld.so.cache").exists():
        shutil.copyfile(host / "etc/ld.so.cache", etc / "ld.so.cache")
        binds.append((str(etc / "ld.so.cache"), "etc/ld.so.cache", False))
    alternatives = _copy_alternatives(host / "etc/alternatives", etc / "alternatives")
    if alternatives:
        binds.append((str(etc / "alternatives"), "etc/alternatives", True))
    names = [name for name, _ in symlinks] + [name for _, name, _ in binds]
    plan = RootPlan(
        digest="",
        health_paths=(SHELL, *(f"/{name}" for name in sorted(names) if "/" not in name)),
        directories=list(_DIRECTORIES),
        files=[(path, 0o644, text) for path, text in _FILES],
        symlinks=symlinks,
        binds=binds,
    )
    return replace(plan, digest=_digest(host, plan, alternatives))


def _copy_alternatives(source: Path, target: Path) -> dict[str, str]:
    """Copy the links into /usr that Debian keeps in /etc/alternatives; return them."""
    if target.exists():
        shutil.rmtree(target)
    if not source.is_dir():
        return {}
    links = {
        entry.name: os.readlink(entry.path) for entry in os.scandir(source) if entry.is_symlink()
    }
    kept = {name: link for name, link in sorted(links.items()) if link.startswith("/usr/")}
    target.mkdir()
    for name, link in kept.items():
        os.symlink(link, target / name)
    return kept


def _digest(host: Path, plan: RootPlan, alternatives: dict[str, str]) -> str:
    """Hash what decides the content of the root, without reading all of /usr.

    That is: the plan, the package database (names and versions of all that is installed), and names, sizes and times
    of what was put into /usr/local beside it.
    """
    manifest = {
        "layout": LAYOUT_VERSION,
        "machine": platform.machine(),
        "files": plan.files,
        "directories": plan.directories,
        "symlinks": plan.symlinks,
        "bound": [place for _, place, _ in plan.binds],
        "alternatives": alternatives,
        "packages": {
            name: _hash_file(host / name) for name in _PACKAGE_DATABASES if (host / name).exists()
        },
        "os_release": _hash_file(host / "etc/os-release"),
        "python": _hash_file(host / "usr/bin/python3"),
        "local": _list_local(host / "usr/local"),
    }
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def _list_local(folder: Path) -> list[tuple[str, int, int]]:
    """List the first two levels of /usr/local."""
    entries = []
    for parent in (folder, *sorted(path for path in folder.glob("*") if path.is_dir())):
        with os.scandir(parent) as found:
            for entry in found:
                status = entry.stat(follow_symlinks=False)
                name = os.path.relpath(entry.path, folder)
                entries.append((name, status.st_size, int(status.st_mtime)))
    return sorted(entries)
