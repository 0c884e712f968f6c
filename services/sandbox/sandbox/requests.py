"""Checks what callers ask for and fills in defaults. One error names every field that is wrong."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.storage.files import check_path, shown
from sandbox.types import MIB, BoxFile, Command, CreateSpec, Limits, Template
from servicekit.errors import InvalidArgument

MAX_FILE_BYTES = 3 * MIB
MAX_OUTPUT_BYTES = 3 * MIB
MAX_STDIN_BYTES = 3 * MIB
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""The kernel's limit for one argument or environment entry."""
MAX_ARGUMENTS_BYTES = MIB
_EXEC_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the service allows."""

    templates: Mapping[str, Template] = field(default_factory=lambda: {"host": Template()})
    default_template: str = "host"
    network_profiles: tuple[str, ...] = ("none",)
    default_lifetime_seconds: float = 3600.0
    max_lifetime_seconds: float = 86_400.0
    default_idle_seconds: float = 60.0
    default_exec_seconds: float = 60.0
    max_memory_bytes: int = 8 * 1024 * MIB
    max_processes: int = 4096
    max_cpus: float = 64.0
    max_disk_bytes: int = 4 * 1024 * MIB
    max_inodes: int = 1_000_000

    def template(self, name: str) -> Template | None:
        """Return a template by name, the default one for none; None where there is no such."""
        return self.templates.get(name or self.default_template)


def fill_limits(
    *,
    memory_bytes: int,
    max_processes: int,
    cpus: float,
    disk_bytes: int,
    max_inodes: int,
    base: Limits | None = None,
) -> Limits:
    """Return limits with those of `base` for each 0; with less memory, the disk that lives in it shrinks too."""
    base = base or Limits()
    memory = memory_bytes or base.memory_bytes
    disk, shm = base.disk_bytes, base.shm_bytes
    if memory < base.memory_bytes:
        disk, shm = min(disk, memory // 2), min(shm, memory // 8)
    return Limits(
        memory_bytes=memory,
        max_processes=max_processes or base.max_processes,
        cpus=cpus or base.cpus,
        disk_bytes=disk_bytes or disk,
        max_inodes=max_inodes or base.max_inodes,
        shm_bytes=shm,
    )


def check_create(spec: CreateSpec, template: str, policy: Policy) -> None:
    """Check a create request.

    Raises:
        InvalidArgument: something is wrong; the violations name each field.
    """
    wrong: dict[str, str] = {}
    try:
        uuid.UUID(spec.key.rollout_id)
    except ValueError:
        wrong["rollout_id"] = f"found {spec.key.rollout_id!r}; must be a UUID"
    if not spec.run_id:
        wrong["run_id"] = "is required"
    if spec.key.sequence < 0:
        wrong["sequence"] = f"found {spec.key.sequence}; must not be negative"
    if policy.template(template) is None:
        wrong["template"] = f"found {template!r}; known are {', '.join(sorted(policy.templates))}"
    if spec.network_profile not in policy.network_profiles:
        known = ", ".join(policy.network_profiles)
        wrong["network_profile"] = f"found {spec.network_profile!r}; known are {known}"
    if not 0 < spec.lifetime_seconds <= policy.max_lifetime_seconds:
        wrong["lifetime"] = f"must be above 0 and at most {policy.max_lifetime_seconds:g} s"
    if not 0 < spec.idle_seconds <= policy.max_lifetime_seconds:
        wrong["idle_timeout"] = f"must be above 0 and at most {policy.max_lifetime_seconds:g} s"
    wrong |= wrong_limits(spec.limits, policy)
    wrong |= wrong_env(spec.env)
    for index, file in enumerate(spec.files):
        if len(file.content) > MAX_FILE_BYTES:
            wrong[f"files[{index}].content"] = f"must have at most {MAX_FILE_BYTES} bytes"
    _raise_if_wrong("sandbox", wrong)
    for index, file in enumerate(spec.files):
        check_path(file.path, f"files[{index}].path")


def check_command(command: Command, policy: Policy) -> None:
    """Check an exec request.

    Raises:
        InvalidArgument: something is wrong; the violations name each field.
    """
    wrong: dict[str, str] = {}
    if not _EXEC_ID.fullmatch(command.exec_id):
        wrong["exec.exec_id"] = "must have 1 to 128 printable ASCII characters and no space"
    if not command.argv or not command.argv[0]:
        wrong["exec.argv"] = "must name a program"
    if any("\0" in argument for argument in command.argv):
        wrong["exec.argv"] = "must not contain NUL"
    sizes = [len(argument.encode()) for argument in command.argv]
    if sizes and (max(sizes) > MAX_ARGUMENT_BYTES or sum(sizes) > MAX_ARGUMENTS_BYTES):
        wrong["exec.argv"] = (
            f"must have at most {MAX_ARGUMENT_BYTES} bytes per argument and {MAX_ARGUMENTS_BYTES} "
            "in all; write longer input to a file or to stdin"
        )
    if not command.working_dir.startswith("/") or "\0" in command.working_dir:
        wrong["exec.working_dir"] = (
            f"found {shown(command.working_dir)!r}; must be an absolute path"
        )
    if not 0 < command.timeout_seconds <= policy.max_lifetime_seconds:
        wrong["exec.timeout"] = f"must be above 0 and at most {policy.max_lifetime_seconds:g} s"
    if not 0 < command.max_output_bytes <= MAX_OUTPUT_BYTES:
        wrong["exec.max_output_bytes"] = f"must be at most {MAX_OUTPUT_BYTES} and not negative"
    if len(command.stdin) > MAX_STDIN_BYTES:
        wrong["exec.stdin"] = f"must have at most {MAX_STDIN_BYTES} bytes"
    wrong |= {f"exec.{field}": text for field, text in wrong_env(command.env).items()}
    _raise_if_wrong("command", wrong)


def check_file(file: BoxFile) -> None:
    """Check a file to write.

    Raises:
        InvalidArgument: its path cannot be one, or it is too large.
    """
    check_path(file.path, "file.path")
    if len(file.content) > MAX_FILE_BYTES:
        text = f"has {len(file.content)} bytes; at most {MAX_FILE_BYTES} fit one call"
        raise InvalidArgument(f"{shown(file.path)}: {text}", violations={"file.content": text})


def wrong_limits(limits: Limits, policy: Policy) -> dict[str, str]:
    """Return what is wrong with limits, by field."""
    wrong = {}
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("memory_bytes", limits.memory_bytes, 32 * MIB, policy.max_memory_bytes),
        ("max_processes", limits.max_processes, 1, policy.max_processes),
        ("cpus", limits.cpus, 0.01, policy.max_cpus),
        ("disk_bytes", limits.disk_bytes, MIB, policy.max_disk_bytes),
        ("max_inodes", limits.max_inodes, 1000, policy.max_inodes),
    )
    for name, value, lowest, highest in bounds:
        if not lowest <= value <= highest:
            wrong[f"limits.{name}"] = f"found {value}; must be {lowest} to {highest}"
    if limits.disk_bytes + limits.shm_bytes >= limits.memory_bytes:
        wrong.setdefault(
            "limits.disk_bytes",
            f"found {limits.disk_bytes}; with /dev/shm ({limits.shm_bytes}) it must stay below "
            f"memory_bytes ({limits.memory_bytes}), because files live in memory",
        )
    return wrong


def wrong_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with environment variables, by field."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return {"env": f"found {name!r}; names need at least one character, no = and no NUL"}
        if len(name.encode()) + len(value.encode()) + 2 > MAX_ARGUMENT_BYTES:
            return {"env": f"{name}: must have at most {MAX_ARGUMENT_BYTES} bytes"}
    return {}


def _raise_if_wrong(what: str, wrong: dict[str, str]) -> None:
    if wrong:
        text = "; ".join(f"{field}: {problem}" for field, problem in wrong.items())
        raise InvalidArgument(f"{what} refused: {text}", violations=wrong)
