"""What the Docker daemon is told of a container: isolation, limits, labels."""

import math
from collections.abc import Mapping
from typing import Any

from sandbox.rootfs import HOST_NAME, WORKING_DIR
from sandbox.settings import DockerOptions
from sandbox.types import BoxSpec, Limits
from servicekit.errors import FailedPrecondition

MANAGER_LABEL = "hone.sandbox.manager"
ID_LABEL = "hone.sandbox.id"
DEADLINE_LABEL = "hone.sandbox.deadline"
"""Seconds since the epoch."""

WRITABLE = (WORKING_DIR, "/tmp", "/root")
"""Folders that are file systems of their own."""

_SHARES = {WORKING_DIR: 1, "/tmp": 4, "/root": 4}
"""Which part of the disk's size each may fill: the whole, a quarter."""

_MODES = {WORKING_DIR: "0755", "/tmp": "1777", "/root": "0700"}

KEEPER_USER = 64_001
"""Whom the process that keeps the container alive runs as: nobody that a command could signal."""

_KEEPER = ("/bin/sh", "-c", "while :; do kill -STOP $$; done")
"""A shell that stops itself needs no program, no memory to speak of and no CPU."""

_KEEPER_PROCESSES = 2
"""The engine's init and the keeper."""

_OPEN_FILES = 1024
_OOM_SCORE = 500
"""If the whole machine runs out of memory sandboxes go first."""


class ContainerSpecs:
    """Arguments of the SDK's calls that make containers."""

    def __init__(
        self, options: DockerOptions, sdk: Any, manager: str, info: dict[str, Any]
    ) -> None:
        """`info` is what the daemon says of itself."""
        self._options = options
        self._sdk = sdk
        self._manager = manager
        self._info = info
        self._security = ["no-new-privileges:true"]
        if options.seccomp_profile is not None:
            profile = options.seccomp_profile.read_text(encoding="utf-8")
            self._security.append(f"seccomp={profile}")
        self.runtime: str = options.runtime or info.get("DefaultRuntime", "runc")

    def isolation(self) -> str:
        """Name the level: the runtime, and what of the daemon makes it stronger or weaker."""
        said = " ".join(self._info.get("SecurityOptions") or [])
        parts = ["docker", self.runtime]
        parts += [word for word in ("userns", "rootless") if f"name={word}" in said]
        parts += ["noseccomp"] if "name=seccomp" not in said else []
        return "-".join(parts)

    def missing_limits(self) -> list[str]:
        """Return what this daemon cannot limit."""
        wanted = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "CPU"}
        return [words for key, words in wanted.items() if not self._info.get(key, True)]

    def helper_options(self) -> dict[str, Any]:
        """Return what every helper container of this manager is made with."""
        return {"user": self._options.user, "labels": {MANAGER_LABEL: self._manager}}

    def arguments(self, spec: BoxSpec, image_id: str, now: float) -> dict[str, Any]:
        """Return the arguments that make a sandbox's container."""
        labels = {
            MANAGER_LABEL: self._manager,
            ID_LABEL: spec.sandbox_id,
            DEADLINE_LABEL: str(math.ceil(now + spec.lifetime_seconds)),
        }
        if spec.owner is not None:
            labels |= {
                "hone.rollout.id": spec.owner.rollout_id,
                "hone.run.id": spec.owner.run_id,
                "hone.sandbox.purpose": str(spec.owner.purpose),
            }
        return {
            "image": image_id,
            "command": list(_KEEPER),
            "entrypoint": [],
            "name": container_name(spec.sandbox_id),
            "hostname": HOST_NAME,
            "user": f"{KEEPER_USER}:{KEEPER_USER}",
            "working_dir": "/",
            "labels": labels,
            "host_config": self._host_config(spec),
        }

    def _host_config(self, spec: BoxSpec) -> Any:
        limits, options = spec.limits, self._options
        cpus = min(limits.cpus, float(self._info.get("NCPU") or limits.cpus))
        if spec.network_profile != "none" and spec.network_profile not in options.networks:
            raise FailedPrecondition(
                f"network profile {spec.network_profile!r}: names no network of the backend docker; set "
                "HONE_SANDBOX_DOCKER__NETWORKS"
            )
        storage = {"size": str(limits.disk_bytes)} if options.writable_root else None
        return self._sdk.create_host_config(
            runtime=options.runtime or None,
            network_mode=options.networks.get(spec.network_profile, "none"),
            ipc_mode="private",
            init=True,
            restart_policy={"Name": "no"},
            cap_drop=["ALL"],
            security_opt=self._security,
            read_only=not options.writable_root,
            storage_opt=storage,
            mounts=[self._mount(folder, limits) for folder in WRITABLE],
            shm_size=limits.shm_bytes,
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,
            pids_limit=limits.max_processes + _KEEPER_PROCESSES + options.runtime_processes,
            nano_cpus=int(cpus * 1e9),
            oom_score_adj=_OOM_SCORE,
            ulimits=[
                {"Name": "nofile", "Soft": _OPEN_FILES, "Hard": _OPEN_FILES},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            log_config={"Type": "none"},
        )

    def _mount(self, folder: str, limits: Limits) -> dict[str, Any]:
        """Describe an unnamed volume in memory: it is removed with its container."""
        user, group = self._options.user_and_group()
        options = (
            f"size={limits.disk_bytes // _SHARES[folder]},nr_inodes={limits.max_inodes},mode={_MODES[folder]},"
            f"uid={user},gid={group},nosuid,nodev"
        )
        return {
            "Type": "volume",
            "Target": folder,
            "VolumeOptions": {
                "NoCopy": True,
                "Labels": {MANAGER_LABEL: self._manager},
                "DriverConfig": {
                    "Name": "local",
                    "Options": {"type": "tmpfs", "device": "tmpfs", "o": options},
                },
            },
        }


def container_name(sandbox_id: str) -> str:
    """Name the container of a sandbox."""
    return f"hone-{sandbox_id}"


def name_of(listed: Mapping[str, Any]) -> str:
    """Return the name of a container in a list; its id where it has none any more, half removed."""
    names: list[str] = listed.get("Names") or [listed["Id"]]
    return names[0].lstrip("/")
