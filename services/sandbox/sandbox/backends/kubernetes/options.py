"""Options of the Kubernetes backend; nested in the service's settings as `kubernetes`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class KubernetesOptions(BaseModel):
    """Of the backend kubernetes: a pod per sandbox."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = "hone-sandboxes"
    """Holds the sandboxes and nothing else; see deploy/kubernetes/sandbox."""
    kubeconfig: Path | None = None
    """How to reach the cluster; by default the service account of the pod that the service runs in."""
    context: str = ""
    """Of the kubeconfig; by default its current one."""
    image: str = "python:3.12-slim"
    """Of templates that name none; any image with python3 3.10 or newer."""
    image_pull_secret: str = ""
    """Name of a Secret in the namespace."""
    runtime_class: str = ""
    """For example gvisor or kata; empty is the node's default, which shares the node's kernel."""
    host_users: bool | None = None
    """False gives each pod a user namespace of its own; unset leaves the field out."""
    separate_uid: bool = False
    """Run the agent as the pod's root with the rights to change user and kill, commands as `uid`."""
    uid: int = Field(default=1000, ge=1)
    """User and group of the commands."""
    disk: Literal["memory", "node"] = "memory"
    """Where the writable folders lie: in memory a full disk is an error to the command, on the node an eviction."""
    cpu_request: float = Field(default=0.1, gt=0)
    """Cores that the scheduler sets aside, at most the limit."""
    memory_request_share: float = Field(default=0.5, gt=0, le=1)
    """Part of the memory limit that the scheduler sets aside."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    agent_port: int = Field(default=8730, ge=1, le=65535)
    check_network: bool = True
    """Whether `start` makes a sandbox that tries to reach the API server, which NetworkPolicy must prevent."""
    pool: Literal["auto", "pods", "claims"] = "auto"
    """Who keeps sandboxes ready: this service (pods), or the agent-sandbox controller (claims); auto looks for it."""
    creates_per_second: float = Field(default=20.0, gt=0)
    request_seconds: float = Field(default=10.0, gt=0)
    """Deadline of one request to the API server."""
    create_seconds: float = Field(default=60.0, gt=0)
    """Longest wait for a pod; the service's own provision_seconds may end it earlier."""
    unschedulable_seconds: float = Field(default=5.0, ge=0)
    """How long a pod may find no node before it is given up."""
    lease_seconds: float = Field(default=60.0, ge=3)
    """A manager whose lease is older than this is dead."""
