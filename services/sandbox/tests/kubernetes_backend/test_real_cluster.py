"""What only a real cluster can show; runs where HONE_TEST_KUBECONFIG names a kubeconfig.

HONE_TEST_NAMESPACE, HONE_TEST_IMAGE and HONE_TEST_RUNTIME_CLASS may say more. The namespace must be set up as in
deploy/kubernetes/sandbox, with the machine that runs the tests allowed by the NetworkPolicy; it must reach pods by
their addresses.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from sandbox.backends.kubernetes.backend import KubernetesBackend
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.types import BoxSpec, Owner, Purpose, Template, Termination

from .conftest import LIMITS, Shell

KUBECONFIG = os.environ.get("HONE_TEST_KUBECONFIG", "")

pytestmark = [
    pytest.mark.skipif(not KUBECONFIG, reason="HONE_TEST_KUBECONFIG is not set"),
    pytest.mark.slow,
]


@pytest.fixture
async def real(tmp_path):
    options = KubernetesOptions(
        kubeconfig=Path(KUBECONFIG or "none"),
        namespace=os.environ.get("HONE_TEST_NAMESPACE", "hone-sandboxes"),
        image=os.environ.get("HONE_TEST_IMAGE", "python:3.12-slim"),
        runtime_class=os.environ.get("HONE_TEST_RUNTIME_CLASS", ""),
        create_seconds=180.0,
        pool="pods",
    )
    backend = KubernetesBackend(tmp_path, options, rng=random.Random(1))
    info = await backend.start()
    yield backend, info
    await backend.close()


async def make(backend, number=0) -> Shell:
    owner = Owner(rollout_id=f"test-{number}", run_id="test", purpose=Purpose.AGENT)
    spec = BoxSpec(
        sandbox_id=f"sbx_real_{os.getpid()}_{number}",
        limits=LIMITS,
        template=Template(limits=LIMITS),
        owner=owner,
        lifetime_seconds=600.0,
    )
    return Shell(await backend.create(spec, lambda _: None))


async def test_the_network_policy_is_enforced(real):
    _, info = real
    assert info.detail == ""


async def test_the_agent_is_the_pod_s_first_process_and_nobody_special(real):
    backend, _ = real
    shell = await make(backend)
    info = await shell.box._agent.info()
    assert info["is_first_process"]
    outcome = await shell.sh(
        f"id -u; kill -9 1; kill -9 {os.getpid()}; kill -9 -1; cat /proc/1/environ; echo alive"
    )
    assert outcome.stdout.split() == [str(info["command_uid"]).encode(), b"alive"]
    await shell.box.destroy()


async def test_memory_and_disk_end_where_they_should(real):
    backend, _ = real
    shell = await make(backend, 1)
    full = await shell.sh("dd if=/dev/zero of=/work/big bs=1M count=3000")
    assert b"No space left" in full.stderr
    outcome = await shell.python("x = bytearray(8 << 30)")
    assert outcome.termination is Termination.OOM_KILLED
    await shell.box.destroy()


async def test_forty_at_once(real):
    backend, _ = real
    shells = await asyncio.gather(*(make(backend, number) for number in range(40)))
    said = await asyncio.gather(*(shell.sh("echo up") for shell in shells))
    assert {outcome.stdout for outcome in said} == {b"up\n"}
    await asyncio.gather(*(shell.box.destroy() for shell in shells))
    assert backend.live_count() == 0
