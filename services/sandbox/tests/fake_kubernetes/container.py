"""Runs a pod's container as processes of this machine: its own process, mount, IPC and UTS namespaces over a throw-away
layer of the host's root file system, its volumes, its user, its command. Not its own network: pods have addresses of
127.0.0.0/8. What a container runtime adds (seccomp, control groups, network) is not here.
"""

import asyncio
import base64
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil

from fake_kubernetes.rules import quantity

Object = dict[str, Any]

_PATH = "/usr/local/bin:/usr/bin:/bin"
_TOOLS = ("unshare", "mount", "chroot", "setpriv")


def why_not() -> str:
    """Return why no container can be run on this machine, empty if one can."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces and overlay mounts"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs the programs {', '.join(missing)}"
    if not os.path.exists("/usr/bin/python3"):
        return "needs /usr/bin/python3, which the container's user can run"
    with tempfile.TemporaryDirectory() as folder:
        script = f"{_layer(folder)}\nexec chroot {folder}/root true"
        done = subprocess.run([*_unshare(), "sh", "-c", script], capture_output=True, check=False)
    return f"no namespaces: {done.stderr.decode().strip()}" if done.returncode else ""


class Container:
    """The one container of a pod."""

    def __init__(self, pod: Object, config_maps: dict[str, Object], pod_ip: str) -> None:
        self._pod = pod
        self._folder = tempfile.mkdtemp(prefix="hone-pod-")
        self._config_maps = config_maps
        self._pod_ip = pod_ip
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with open(f"{self._folder}.log", "wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *_unshare(),
                "sh",
                "-c",
                self._script(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Return the exit code, 128 and more for a signal."""
        assert self._process is not None
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    def pids(self) -> list[int]:
        """Return every process of the container, the first one first."""
        assert self._process is not None
        try:
            parent = psutil.Process(self._process.pid)
            return [child.pid for child in parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: int) -> None:
        """Signal every process of the container."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self) -> None:
        """End it and remove what it wrote. Idempotent."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        Path(f"{self._folder}.log").unlink(missing_ok=True)

    def log(self) -> str:
        """Return what it said."""
        path = Path(f"{self._folder}.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def _script(self) -> str:
        spec = self._pod["spec"]
        container = spec["containers"][0]
        lines = [_layer(self._folder)]
        for volume in spec.get("volumes") or ():
            lines += self._volume(volume)
        for mount in container.get("volumeMounts") or ():
            lines += self._mount(mount)
        name = shlex.quote(spec.get("hostname", "pod"))
        lines.append(f"hostname {name}; echo {name} > {self._folder}/root/etc/hostname")
        return "\n".join([*lines, f"exec {shlex.join(self._command(spec, container))}"])

    def _volume(self, volume: Object) -> list[str]:
        place = f"{self._folder}/volumes/{volume['name']}"
        if "configMap" in volume:
            config = self._config_maps[volume["configMap"]["name"]]
            source = Path(self._folder, "sources", volume["name"])
            source.mkdir(parents=True)
            for name, text in (config.get("binaryData") or {}).items():
                (source / name).write_bytes(base64.b64decode(text))
            for name, text in (config.get("data") or {}).items():
                (source / name).write_text(text)
            # The layer's tmpfs hides the folder; so it is bound before, see `_layer`.
            return [f"mkdir -p {place}", f"mount --bind /proc/self/fd/9/{volume['name']} {place}"]
        empty = volume["emptyDir"]
        size = int(quantity(empty.get("sizeLimit", "64Mi")))
        kind = f"mount -t tmpfs -o size={size},mode=1777 tmpfs {place}"
        return [f"mkdir -p {place}", kind]

    def _mount(self, mount: Object) -> list[str]:
        source = f"{self._folder}/volumes/{mount['name']}"
        lines = []
        if "subPath" in mount:
            source = f"{source}/{mount['subPath']}"
            lines.append(f"mkdir -p {source} && chmod 1777 {source}")
        target = f"{self._folder}/root{mount['mountPath']}"
        lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
        if mount.get("readOnly"):
            lines.append(f"mount -o remount,bind,ro {target}")
        return lines

    def _command(self, spec: Object, container: Object) -> list[str]:
        context = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        user, group = context.get("runAsUser", 0), context.get("runAsGroup", 0)
        added = (context.get("capabilities") or {}).get("add") or ()
        bounding = ",".join(["-all", *(f"+{name.lower()}" for name in added)])
        env = {"PATH": _PATH, "HOSTNAME": spec.get("hostname", "pod")}
        for variable in container.get("env") or ():
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            env[variable["name"]] = (
                self._pod_ip if source == "status.podIP" else variable.get("value", "")
            )
        words = [_expand(word, env) for word in (*container["command"], *container["args"])]
        return [
            "chroot",
            f"{self._folder}/root",
            "/usr/bin/setpriv",
            f"--reuid={user}",
            f"--regid={group}",
            "--clear-groups",
            f"--bounding-set={bounding}",
            f"--inh-caps={bounding}",
            "--no-new-privs",
            "--pdeathsig=KILL",
            "/usr/bin/env",
            "-i",
            f"--chdir={container.get('workingDir', '/')}",
            *(f"{name}={value}" for name, value in env.items()),
            *words,
        ]


def _unshare() -> list[str]:
    return ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=SIGKILL"]


def _layer(folder: str) -> str:
    """Return shell commands that put a writable layer over the host's root, with /proc and /dev of its own."""
    root = f"{folder}/root"
    return f"""set -e
mount --make-rprivate /
mkdir -p {folder}/sources
exec 9< {folder}/sources
mount -t tmpfs -o size=64m,mode=755 tmpfs {folder}
mkdir {folder}/upper {folder}/work {root} {folder}/volumes
mount -t overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work overlay {root}
mount -t proc proc {root}/proc
mount -t tmpfs -o size=64m,mode=755 tmpfs {root}/dev
mkdir -m 1777 {root}/dev/shm
touch {root}/dev/null {root}/dev/zero {root}/dev/full {root}/dev/random {root}/dev/urandom
for one in null zero full random urandom; do mount --bind /dev/$one {root}/dev/$one; done
ln -s /proc/self/fd {root}/dev/fd
ln -s /proc/self/fd/0 {root}/dev/stdin
ln -s /proc/self/fd/1 {root}/dev/stdout
ln -s /proc/self/fd/2 {root}/dev/stderr"""


def _expand(word: str, env: dict[str, str]) -> str:
    for name, value in env.items():
        word = word.replace(f"$({name})", value)
    return word
