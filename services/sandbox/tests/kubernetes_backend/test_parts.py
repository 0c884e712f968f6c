"""The backend's parts alone: verdicts, errors, pace."""

import asyncio
import random

import pytest

from sandbox.backends.kubernetes.api import ApiStatus, ApiUnreachable
from sandbox.backends.kubernetes.errors import typed
from sandbox.backends.kubernetes.pace import Pace
from sandbox.backends.kubernetes.status import judge
from sandbox.backends.verdict import State
from servicekit.errors import FailedPrecondition, ResourceExhausted, Unavailable


def container(state):
    return {"containerStatuses": [{"name": "x", "image": "x", "imageID": "", "state": state}]}


def ended(**terminated):
    return container({"terminated": terminated})


def waiting(reason):
    return container({"waiting": {"reason": reason}})


OVER_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
LOW_NODE = "The node was low on resource: memory."
READY = {"type": "Ready", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}


@pytest.mark.parametrize(
    ("phase", "more", "state"),
    [
        ("Pending", {}, State.STARTING),
        ("Running", {"podIP": "10.0.0.1"}, State.STARTING),
        ("Running", {"podIP": "10.0.0.1", "conditions": [READY]}, State.READY),
        ("Running", {"podIP": "10.0.0.1", "conditions": [NOT_READY]}, State.STARTING),
        ("Running", ended(reason="OOMKilled", exitCode=137), State.OOM_KILLED),
        ("Failed", ended(reason="OOMKilled", exitCode=137), State.OOM_KILLED),
        ("Failed", ended(reason="Error", exitCode=137), State.LOST),
        ("Failed", {"reason": "Evicted", "message": LOW_NODE}, State.LOST),
        ("Failed", {"reason": "Evicted", "message": OVER_DISK}, State.OVER_DISK),
        ("Failed", {"reason": "DeadlineExceeded"}, State.LOST),
        ("Running", {"reason": "NodeLost"}, State.LOST),
        ("Succeeded", {}, State.LOST),
        ("Pending", waiting("ContainerCreating"), State.STARTING),
        ("Pending", waiting("ErrImagePull"), State.NO_IMAGE),
        ("Pending", waiting("CreateContainerConfigError"), State.LOST),
    ],
)
def test_what_a_status_means(phase, more, state):
    pod = {"metadata": {"name": "x"}, "status": {"phase": phase, **more}}
    assert judge(pod).state is state


@pytest.mark.parametrize(
    ("error", "kind", "reason", "retryable"),
    [
        (ApiUnreachable("reset"), Unavailable, "CLUSTER_UNREACHABLE", True),
        (ApiStatus(503, "", "", None), Unavailable, "CLUSTER_UNREACHABLE", True),
        (ApiStatus(429, "", "", 7.0), ResourceExhausted, "CLUSTER_BUSY", True),
        (
            ApiStatus(403, "Forbidden", "exceeded quota: x", None),
            ResourceExhausted,
            "QUOTA_EXCEEDED",
            True,
        ),
        (
            ApiStatus(403, "Forbidden", "no right", None),
            FailedPrecondition,
            "CLUSTER_REFUSES",
            False,
        ),
        (
            ApiStatus(409, "Conflict", "cannot be fulfilled on resourcequotas", None),
            ResourceExhausted,
            "CLUSTER_BUSY",
            True,
        ),
        (
            ApiStatus(403, "Forbidden", "status unknown for quota: x, resources: pods", None),
            ResourceExhausted,
            "CLUSTER_BUSY",
            True,
        ),
        (ApiStatus(401, "Unauthorized", "", None), FailedPrecondition, "CLUSTER_REFUSES", False),
        (ApiStatus(422, "Invalid", "", None), FailedPrecondition, "CLUSTER_REFUSES", False),
    ],
)
def test_what_an_api_error_means(error, kind, reason, retryable):
    found = typed(error, "pod x")
    assert (type(found), found.reason, found.retryable) == (kind, reason, retryable)
    assert found.attributable == "infra"


async def test_creations_are_paced_after_the_first_burst():
    now = 100.0
    pace = Pace(50.0, random.Random(1), lambda: now)
    async with asyncio.timeout(10):
        await asyncio.gather(*(pace.wait() for _ in range(50)))  # although time stands still
        late = asyncio.ensure_future(pace.wait())
        done, _ = await asyncio.wait([late], timeout=0.1)
        assert not done
        now += 1.0
        await late


async def test_a_server_that_asks_for_quiet_is_left_alone_by_all():
    loop = asyncio.get_running_loop()
    pace = Pace(1000.0, random.Random(1), loop.time)
    begun = loop.time()
    pace.hush(0.2)
    await asyncio.gather(*(pace.wait() for _ in range(5)))
    assert loop.time() - begun >= 0.2


def test_backoff_grows_spreads_and_ends():
    pace = Pace(1.0, random.Random(1), lambda: 0.0)
    seconds = [pace.backoff_seconds(attempt) for attempt in range(12)]
    assert seconds[0] < seconds[3] < seconds[5] <= 6.25
    assert max(seconds) <= 6.25
    assert len(set(seconds[6:])) == 6
