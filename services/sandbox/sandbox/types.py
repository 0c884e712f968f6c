"""The words of the sandbox service as frozen dataclasses; plain Python, no grpc, no protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

MIB = 1024 * 1024


class Purpose(StrEnum):
    """What a sandbox is for."""

    AGENT = "agent"
    GRADE = "grade"


class Role(StrEnum):
    """Who calls, as the rollout token says."""

    AGENT = "agent"
    GRADER = "grader"
    OPERATOR = "operator"


class Cause(StrEnum):
    """Why a sandbox was destroyed."""

    OUTCOME = "outcome"
    CANCELLED = "cancelled"
    IDLE = "idle"
    LIFETIME = "lifetime"
    MANAGER_LOST = "manager_lost"
    REQUESTED = "requested"


class Termination(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    OOM_KILLED = "oom_killed"
    TIMED_OUT = "timed_out"
    OUTPUT_LIMIT = "output_limit"
    PIDS_LIMIT = "pids_limit"
    SANDBOX_BROKEN_BY_WORKLOAD = "sandbox_broken_by_workload"
    KILLED = "killed"


class Stream(StrEnum):
    """Which stream output came from."""

    STDOUT = "stdout"
    STDERR = "stderr"


class FileKind(StrEnum):
    """What is at a path."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


class Feature(StrEnum):
    """What a backend offers beyond the least: creating, running and destroying."""

    FILES = "files"
    ARCHIVES = "archives"
    SNAPSHOTS = "snapshots"
    WARM_POOL = "warm_pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What the rollout token of a call says."""

    rollout_id: str
    """Empty for an operator."""
    epoch: int
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox may use."""

    memory_bytes: int = 512 * MIB
    """Files on the sandbox's disk and in its shared memory count."""
    max_processes: int = 256
    cpus: float = 1.0
    disk_bytes: int = 256 * MIB
    max_inodes: int = 100_000
    shm_bytes: int = 64 * MIB
    """Size of /dev/shm; not the caller's to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a sandbox starts from, by name; see `templates.py` for the file that defines them."""

    name: str = "host"
    rootfs: str = "host"
    """Of the backend local: `host` (the host's /usr under a synthetic root), a folder, or a tar archive."""
    image: str = ""
    """Of backends that run containers: an image, best by digest; of a remote service: its template's name."""
    limits: Limits = field(default_factory=Limits)
    """Where the creator says nothing; sandboxes of the warm pool have exactly these."""
    env: Mapping[str, str] = field(default_factory=dict)
    network_profile: str = "none"
    warm: int = 0
    """Sandboxes kept ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whom a sandbox belongs to, for backends that label what they make."""

    rollout_id: str
    run_id: str
    purpose: Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """A sandbox that a backend is to make."""

    sandbox_id: str
    template: Template = field(default_factory=Template)
    limits: Limits = field(default_factory=Limits)
    lifetime_seconds: float = 3600.0
    """From now; a backend whose sandboxes outlive this process sets it as their own end."""
    network_profile: str = "none"
    owner: Owner | None = None
    """None for one that is made ahead, for the warm pool; `Box.claim` says it later."""
    snapshot: Path | None = None
    """A file that `Box.snapshot` of the same backend and template wrote: start from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """What is at a path; a link is not followed."""

    name: str
    kind: FileKind
    size_bytes: int
    mode: int
    """Permission bits."""
    modify_time: float
    """Seconds since the epoch."""
    link_target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFile:
    """A file by content."""

    path: str
    """Absolute, inside the sandbox."""
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxKey:
    """What makes a sandbox the same one: a repeated create with this key returns the first."""

    rollout_id: str
    purpose: Purpose
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSpec:
    """A sandbox that a caller asks for, checked."""

    key: BoxKey
    run_id: str
    limits: Limits
    lifetime_seconds: float
    idle_seconds: float
    template: Template = field(default_factory=Template)
    network_profile: str = "none"
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[BoxFile, ...] = ()
    wait_seconds: float | None = None
    """How long the caller waits for the answer; None means without end."""
    trace_parent: str = ""
    """W3C trace context of the create call; the destroyed event continues it."""
    snapshot_id: str = ""
    """Start from this snapshot of the same rollout; empty means the template as it is."""
    snapshot: Path | None = None
    """Where that snapshot lies; the manager fills it in."""
    rootfs_digest: str = ""
    """What that snapshot was taken over; a sandbox that starts from anything else is not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """What is known of a sandbox. Times are seconds since the epoch."""

    sandbox_id: str
    key: BoxKey
    run_id: str
    epoch: int
    backend: str
    isolation: str
    rootfs_digest: str
    create_time: float
    deadline_time: float
    idle_deadline_time: float
    provision_seconds: float
    template: str = ""
    warm: bool = False
    """Whether it came from the warm pool."""
    polluted: bool = False
    """Others may have changed what its rollout saw; only where an environment is shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to run in a sandbox, checked."""

    exec_id: str
    argv: tuple[str, ...]
    working_dir: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout_seconds: float = 60.0
    max_output_bytes: int = MIB
    """Of stdout and of stderr each."""
    kill_survivors: bool = False
    """Whether what it started and left behind dies with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Output as it came."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOutcome:
    """How a command ended."""

    termination: Termination
    exit_code: int = 0
    signal: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    output_incomplete: bool = False
    """A process that outlived the command still held the pipes."""
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """What was read of a file."""

    content: bytes
    size_bytes: int
    """Of the whole file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEnd:
    """The whole archive has been sent."""

    size_bytes: int
    sha256: str
    """Hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts since the service started."""

    live_count: int
    expected_count: int
    created_count: int
    destroyed_count: int
    orphans_reaped_count: int
    backend: str
    isolation: str
    create_p50_seconds: float
    create_p95_seconds: float
    warm_count: int = 0
    queued_count: int = 0
    warm_hit_count: int = 0
    infra_error_rate: float = 0.0
    rollout_timeout_rate: float = 0.0
    leaked_count: int = 0
    polluted_count: int = 0
