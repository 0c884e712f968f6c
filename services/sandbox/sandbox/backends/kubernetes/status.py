"""What a pod's status means: is it starting, ready, dead; and if dead, whose doing it was."""

from sandbox.backends.kubernetes.api import Object
from sandbox.backends.verdict import State, Verdict

_IMAGE_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"}
)
_SPEC_REASONS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
# A node that runs short of disk evicts pods too, with "The node was low on resource"; that is nobody's proof.
_OWN_DISK_TEXTS = ("exceeds the limit", "exceeds the total limit", "exceeded its local ephemeral")


def judge(pod: Object) -> Verdict:
    """Return what a pod's status means."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if pod["metadata"].get("deletionTimestamp"):
        return _dead(status, "the pod is being deleted")
    if phase in ("Failed", "Succeeded") or status.get("reason") in ("NodeLost", "Evicted"):
        return _dead(status, f"the pod's phase is {phase}")
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return Verdict(state=State.LOST, text=_why(condition))
    for container in _containers(status):
        terminated = container.get("state", {}).get("terminated")
        if terminated:
            return _dead(status, "the pod's container has ended")
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in _IMAGE_REASONS:
            return Verdict(state=State.NO_IMAGE, text=_why(waiting))
        if waiting.get("reason") in _SPEC_REASONS:
            return Verdict(state=State.LOST, text=_why(waiting))
    return _starting_or_ready(status, phase)


def image_id(pod: Object) -> str:
    """Return the image that the pod runs, as the node resolved it; empty if it is not said."""
    for container in _containers(pod.get("status", {})):
        return str(container.get("imageID", ""))
    return ""


def _starting_or_ready(status: Object, phase: str) -> Verdict:
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    if ready.get("reason") == "NodeStatusUnknown":
        return Verdict(state=State.LOST, text=_why(ready))
    if phase == "Running" and ready.get("status") == "True" and status.get("podIP"):
        return Verdict(state=State.READY)
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Verdict(state=State.UNSCHEDULABLE, text=_why(scheduled))
    return Verdict(state=State.STARTING)


def _dead(status: Object, otherwise: str) -> Verdict:
    for container in _containers(status):
        terminated = container.get("state", {}).get("terminated") or {}
        if terminated.get("reason") == "OOMKilled":
            return Verdict(state=State.OOM_KILLED, text="the pod's memory ran out")
    text = _why(status) or otherwise
    if status.get("reason") == "Evicted" and any(part in text for part in _OWN_DISK_TEXTS):
        return Verdict(state=State.OVER_DISK, text=text)
    return Verdict(state=State.LOST, text=text)


def _containers(status: Object) -> list[Object]:
    return status.get("containerStatuses") or []


def _why(found: Object) -> str:
    parts = (str(found.get("reason") or ""), str(found.get("message") or ""))
    return ": ".join(part for part in parts if part)
