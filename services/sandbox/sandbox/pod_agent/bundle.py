"""Packs the agent into one file that runs in any image with python3: a zip archive with a `__main__`."""

import io
import zipfile
from pathlib import Path

import sandbox
import servicekit

_SANDBOX_FILES = (
    "output.py",
    "spawner/syscalls.py",
    "pod_agent/protocol.py",
    "pod_agent/mux.py",
    "pod_agent/processes.py",
    "pod_agent/counters.py",
    "pod_agent/supervise.py",
    "pod_agent/reaper.py",
    "pod_agent/exec.py",
    "pod_agent/execs.py",
    "pod_agent/files.py",
    "pod_agent/archives.py",
    "pod_agent/workers.py",
    "pod_agent/server.py",
    "pod_agent/main.py",
)
_PACKAGES = ("sandbox", "sandbox/spawner", "sandbox/pod_agent", "servicekit")
_MAIN = "from sandbox.pod_agent.main import main\n\nmain()\n"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def build() -> bytes:
    """Return the archive; the same sources give the same bytes."""
    contents = {f"{package}/__init__.py": "" for package in _PACKAGES}
    here = Path(sandbox.__file__).parent
    contents |= {f"sandbox/{name}": (here / name).read_text("utf-8") for name in _SANDBOX_FILES}
    errors = Path(servicekit.__file__).parent / "errors.py"
    contents["servicekit/errors.py"] = errors.read_text("utf-8")
    contents["__main__.py"] = _MAIN
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in sorted(contents.items()):
            info = zipfile.ZipInfo(name, _LONG_AGO)
            archive.writestr(info, text, zipfile.ZIP_DEFLATED)
    return target.getvalue()
