"""What gVisor is told of a sandbox: its root, its mounts, its first process, as an OCI bundle.

The root is read-only: either the synthetic tree over the host's /usr, built once per manager, or an imported tree. What
can be written to is in memory of the sandbox's own and sized. The agent is the first process, as root with the three
capabilities that running commands as somebody else takes; the commands have none.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandbox.pod_agent import bundle as agent_bundle
from sandbox.rootfs import HOST_NAME, WORKING_DIR, RootPlan
from sandbox.types import Limits
from servicekit.errors import FailedPrecondition

LAYOUT_VERSION = 1
"""Part of the digest; goes up whenever what a sandbox is made of changes."""

WRITABLE = (WORKING_DIR, "/tmp", "/root")

COMMAND_GROUPS = (30_000, 60_000)
"""A group for each command, from, and up to without."""

_SHARES = {WORKING_DIR: 1, "/tmp": 4, "/root": 4}
"""Of the disk's size."""
_MODES = {WORKING_DIR: "0755", "/tmp": "01777", "/root": "0700"}
_AGENT_FOLDER = "/.hone"
_AGENT_FILE = "agent.pyz"
_CAPABILITIES = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
_OPEN_FILES = 1024
_OOM_SCORE = 900
"""Where the machine runs out of memory, sandboxes go first."""
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRoot:
    """A root file system as gVisor takes it."""

    digest: str
    tree: Path
    binds: tuple[tuple[str, str], ...] = ()
    """Source on the host, place in the sandbox."""


def with_user(plan: RootPlan, user: int, group: int) -> RootPlan:
    """Give the synthetic root a name for whom commands run as."""
    names = {
        "etc/passwd": f"sandbox:x:{user}:{group}:sandbox:/root:/bin/sh\n",
        "etc/group": f"sandbox:x:{group}:\n",
    }
    files = [(path, mode, text + names.get(path, "")) for path, mode, text in plan.files]
    return replace(plan, files=files)


def build_root(plan: RootPlan, folder: Path) -> GuestRoot:
    """Build the tree of a planned root in a folder, or take the imported one that it names. Blocks.

    Raises:
        FailedPrecondition: the agent cannot run in it.
    """
    text = f"runsc {LAYOUT_VERSION}\n{plan.digest}\n{plan.files}"
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    if plan.base:
        _need_python(Path(plan.base))
        return GuestRoot(digest=digest, tree=Path(plan.base))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    for path, mode in plan.directories:
        (folder / path).mkdir()
        (folder / path).chmod(mode)
    for path, mode, content in plan.files:
        (folder / path).write_text(content, encoding="utf-8")
        (folder / path).chmod(mode)
    for path, target in plan.symlinks:
        os.symlink(target, folder / path)
    for _, path, is_folder in plan.binds:
        if is_folder:
            (folder / path).mkdir()
        else:
            (folder / path).touch()
    binds = tuple((source, f"/{path}") for source, path, _ in plan.binds)
    return GuestRoot(digest=digest, tree=folder, binds=binds)


def _need_python(tree: Path) -> None:
    places = [f"{folder}/python3" for folder in _PATH.split(":")]
    if not any(os.path.lexists(tree / place.lstrip("/")) for place in places):
        raise FailedPrecondition(
            f"rootfs: has none of {', '.join(places)}; the agent in every sandbox of runsc needs Python 3.10 or newer",
            reason="ROOT_UNUSABLE",
            attributable="client",
        )


def write_agent(folder: Path) -> None:
    """Write the agent to where every sandbox sees it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / _AGENT_FILE).write_bytes(agent_bundle.build())
    (folder / _AGENT_FILE).chmod(0o644)


def config(
    root: GuestRoot,
    limits: Limits,
    *,
    agent: Path,
    user: int,
    group: int,
    token_sha256: str,
) -> dict[str, Any]:
    """Return the content of config.json."""
    numbers: Mapping[str, int] = {"RLIMIT_NOFILE": _OPEN_FILES, "RLIMIT_CORE": 0}
    kinds = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.2",
        "hostname": HOST_NAME,
        "root": {"path": str(root.tree), "readonly": True},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "env": [f"PATH={_PATH}"],
            "args": _agent_arguments(user, group, token_sha256),
            "noNewPrivileges": True,
            "oomScoreAdj": _OOM_SCORE,
            "capabilities": {**dict.fromkeys(kinds, _CAPABILITIES), "inheritable": []},
            "rlimits": [
                {"type": name, "soft": number, "hard": number} for name, number in numbers.items()
            ],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *(_bind(source, place) for source, place in root.binds),
            _bind(str(agent), _AGENT_FOLDER),
            _memory("/dev/shm", limits.shm_bytes, "01777", user, group),
            *(
                _memory(place, limits.disk_bytes // _SHARES[place], _MODES[place], user, group)
                for place in WRITABLE
            ),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
        },
    }


def _agent_arguments(user: int, group: int, token_sha256: str) -> list[str]:
    first, end = COMMAND_GROUPS
    words = ["python3", "-I", "-S", f"{_AGENT_FOLDER}/{_AGENT_FILE}", "--stdio"]
    words += ["--token-sha256", token_sha256, "--uid", str(user), "--gid", str(group)]
    words += ["--groups", str(first), str(end)]
    for folder in WRITABLE:
        words += ["--folder", folder]
    return words


def _bind(source: str, place: str) -> dict[str, Any]:
    return {
        "destination": place,
        "type": "bind",
        "source": source,
        "options": ["rbind", "ro", "nosuid", "nodev"],
    }


def _memory(place: str, size: int, mode: str, user: int, group: int) -> dict[str, Any]:
    options = [f"size={size}", f"mode={mode}", f"uid={user}", f"gid={group}", "nosuid", "nodev"]
    return {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": options}
