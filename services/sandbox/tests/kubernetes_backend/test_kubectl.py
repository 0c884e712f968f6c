"""The fake cluster as people see it: kubectl lists, describes and deletes what the backend made."""

import asyncio
import json
import shutil

import pytest

from sandbox.backends.kubernetes import objects


@pytest.fixture
def kubectl(rig, tmp_path):
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")

    async def run(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            program,
            "--kubeconfig",
            str(rig.cluster.kubeconfig),
            "--cache-dir",
            str(tmp_path / "kubectl"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err.decode()
        return out.decode()

    return run


async def test_people_find_describe_and_delete_sandboxes_with_kubectl(rig, backend, kubectl):
    first, second = await rig.make(backend), await rig.make(backend)
    (name,) = (
        pod["metadata"]["name"]
        for pod in rig.cluster.pods()
        if pod["metadata"]["annotations"][objects.NOTE_SANDBOX] == first.box.sandbox_id
    )
    selector = f"{objects.LABEL_ROLLOUT}=rollout-0,{objects.LABEL_APP}={objects.APP}"
    listed = await kubectl("get", "pods", "-l", selector)
    assert name in listed
    assert second.box.name not in listed
    found = json.loads(await kubectl("get", "pod", name, "-o", "json"))
    assert found["spec"]["containers"][0]["name"] == objects.CONTAINER
    described = await kubectl("describe", "pod", name)
    assert "hone.dev/rollout-id: rollout-0" in described
    assert "Running" in described
    assert "RuntimeDefault" in described or "SeccompProfile" in described
    leases = await kubectl("get", "configmaps", "-o", "name")
    assert len(leases.split()) == 2
    await kubectl("delete", "pod", name)
    await rig.cluster.until(lambda: rig.lost == [first.box.sandbox_id], "the loss is noticed")
    assert (await second.sh("echo untouched")).stdout == b"untouched\n"
