"""The calls over a real gRPC server: tokens, epochs, conversion, typed errors."""

import asyncio
import time

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_client import Client, create_request, fails, serve
from hone.sandbox.v1 import sandbox_pb2 as pb

from sandbox.types import Feature
from servicekit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)


@pytest.fixture
async def client(suite, tmp_path):
    """A client of a server over the scripted backend."""
    async for made in serve(suite, tmp_path):
        yield made


@pytest.fixture
async def real_client(real, tmp_path):
    """A client of a server over the embedded backend."""
    async for made in serve(real, tmp_path):
        yield made


SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"]
METHODS = [method.name for method in SERVICE.methods]
ABOUT_NO_SANDBOX = ("CreateSandbox", "DeleteSnapshot")
FOR_OPERATORS = ("ListSandboxes", "DestroyByRun")
FOR_ALL = ("GetStats",)


def _calls(client: Client, rollout_id: str, sandbox_id: str):
    """Every call about one rollout, by name."""
    stub = client.stub
    target = {"rollout_id": rollout_id, "sandbox_id": sandbox_id}
    spec = pb.ExecSpec(**target, exec_id="x", argv=["true"])
    file = pb.SandboxFile(path="/work/x", content=b"x")
    upload = pb.UploadTarTarget(**target, folder="/work")
    saved = {"rollout_id": rollout_id, "snapshot_id": "s-1"}

    async def all_of(stream):
        async for _ in stream:
            pass

    async def messages():
        yield pb.UploadTarRequest(target=upload)
        yield pb.UploadTarRequest(chunk=b"archive")

    return {
        "CreateSandbox": lambda: stub.CreateSandbox(create_request(rollout_id)),
        "StreamExec": lambda: all_of(stub.StreamExec(pb.StreamExecRequest(exec=spec))),
        "Exec": lambda: stub.Exec(pb.ExecRequest(exec=spec)),
        "KillExec": lambda: stub.KillExec(pb.KillExecRequest(**target, exec_id="x")),
        "WriteFile": lambda: stub.WriteFile(pb.WriteFileRequest(**target, file=file)),
        "ReadFile": lambda: stub.ReadFile(pb.ReadFileRequest(**target, path="/work/x")),
        "ListFiles": lambda: stub.ListFiles(pb.ListFilesRequest(**target, path="/work")),
        "StatFile": lambda: stub.StatFile(pb.StatFileRequest(**target, path="/work")),
        "UploadTar": lambda: stub.UploadTar(messages()),
        "DownloadTar": lambda: all_of(
            stub.DownloadTar(pb.DownloadTarRequest(**target, path="/work"))
        ),
        "CreateSnapshot": lambda: stub.CreateSnapshot(
            pb.CreateSnapshotRequest(**target, snapshot_id="s-1")
        ),
        "DeleteSnapshot": lambda: stub.DeleteSnapshot(pb.DeleteSnapshotRequest(**saved)),
        "ExtendLifetime": lambda: stub.ExtendLifetime(pb.ExtendLifetimeRequest(**target)),
        "GetSandbox": lambda: stub.GetSandbox(pb.GetSandboxRequest(**target)),
        "DestroySandbox": lambda: stub.DestroySandbox(pb.DestroySandboxRequest(**target)),
    }


def test_every_call_of_the_contract_is_checked_below():
    checked = {*_calls(_NoClient(), "", ""), *FOR_OPERATORS, *FOR_ALL}
    assert set(METHODS) == checked


class _NoClient:
    """Enough of a client to name the calls."""

    stub = None


@pytest.mark.parametrize("name", [name for name in METHODS if name not in FOR_ALL])
async def test_every_call_needs_a_valid_token(client, suite, name):
    rollout_id = suite.rollout_id()
    client.be(rollout_id)
    made = await client.stub.CreateSandbox(create_request(rollout_id))
    if name in FOR_OPERATORS:
        requests = {
            "ListSandboxes": pb.ListSandboxesRequest(),
            "DestroyByRun": pb.DestroyByRunRequest(run_id="run-1"),
        }

        async def call():
            return await getattr(client.stub, name)(requests[name])

        assert (await fails(call, PermissionDenied)).reason == "WRONG_ROLE"
        client.be("", role="operator", ttl=-10)
        assert (await fails(call, PermissionDenied)).reason == "TOKEN_EXPIRED"
    else:
        call = _calls(client, rollout_id, made.sandbox.sandbox_id)[name]
        client.be(suite.rollout_id())
        assert (await fails(call, PermissionDenied)).reason == "WRONG_ROLLOUT"
        client.be(rollout_id, ttl=-10)
        assert (await fails(call, PermissionDenied)).reason == "TOKEN_EXPIRED"
    client.token = ""
    await fails(call, Unauthenticated)
    client.token = "rubbish"
    await fails(call, Unauthenticated)
    client.be(rollout_id)
    target = {"rollout_id": rollout_id, "sandbox_id": made.sandbox.sandbox_id}
    await client.stub.GetSandbox(pb.GetSandboxRequest(**target))


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name not in (*FOR_ALL, *FOR_OPERATORS, *ABOUT_NO_SANDBOX)]
)
async def test_a_sandbox_of_another_rollout_is_out_of_reach(client, suite, name):
    mine, other = suite.rollout_id(), suite.rollout_id()
    client.be(other)
    made = await client.stub.CreateSandbox(create_request(other))
    client.be(mine)
    call = _calls(client, mine, made.sandbox.sandbox_id)[name]
    assert (await fails(call, PermissionDenied)).reason == "WRONG_ROLLOUT"


@pytest.mark.parametrize("name", [n for n in METHODS if n not in (*FOR_ALL, *FOR_OPERATORS)])
async def test_an_old_epoch_may_do_nothing(client, suite, name):
    rollout_id = suite.rollout_id()
    client.be(rollout_id, epoch=4)
    made = await client.stub.CreateSandbox(create_request(rollout_id))
    client.be(rollout_id, epoch=5)
    sandbox_id = made.sandbox.sandbox_id
    await client.stub.GetSandbox(pb.GetSandboxRequest(rollout_id=rollout_id, sandbox_id=sandbox_id))
    client.be(rollout_id, epoch=4)
    call = _calls(client, rollout_id, sandbox_id)[name]
    assert (await fails(call, FailedPrecondition)).reason == "EPOCH_OLD"


@pytest.mark.parametrize(
    ("feature", "names"),
    [
        (Feature.FILES, ("WriteFile", "ReadFile", "ListFiles", "StatFile")),
        (Feature.ARCHIVES, ("UploadTar", "DownloadTar")),
        (Feature.SNAPSHOTS, ("CreateSnapshot",)),
    ],
)
async def test_what_a_backend_does_not_have_is_refused(
    backend, suite_maker, tmp_path, feature, names
):
    backend.features -= {feature}
    suite = suite_maker(backend, tmp_path, time.time)
    await suite.manager.start()
    async for client in serve(suite, tmp_path):
        await _is_refused_as_unsupported(client, suite.rollout_id(), feature, names)
    await suite.manager.close()


async def _is_refused_as_unsupported(client, rollout_id, feature, names):
    client.be(rollout_id)
    made = await client.stub.CreateSandbox(create_request(rollout_id))
    for name in names:
        call = _calls(client, rollout_id, made.sandbox.sandbox_id)[name]
        error = await fails(call, FailedPrecondition)
        assert (error.reason, error.attributable, error.retryable) == (
            "UNSUPPORTED",
            "client",
            False,
        )
        assert str(feature) in error.message
    if feature is Feature.SNAPSHOTS:
        other = create_request(rollout_id, sequence=1, snapshot_id="s-1")
        error = await fails(lambda: client.stub.CreateSandbox(other), FailedPrecondition)
        assert error.reason == "UNSUPPORTED"


async def test_a_grader_may_use_the_agents_box_and_an_agent_not_the_graders(client, suite):
    rollout_id = suite.rollout_id()
    client.be(rollout_id)
    agents = await client.stub.CreateSandbox(create_request(rollout_id))
    request = create_request(rollout_id, purpose=pb.SANDBOX_PURPOSE_GRADE)
    await fails(lambda: client.stub.CreateSandbox(request), PermissionDenied)
    client.be(rollout_id, role="grader")
    graders = await client.stub.CreateSandbox(request)
    await client.stub.ExtendLifetime(
        pb.ExtendLifetimeRequest(
            rollout_id=rollout_id,
            sandbox_id=agents.sandbox.sandbox_id,
            idle_timeout=Duration(seconds=120),
        )
    )
    client.be(rollout_id)
    for name, call in _calls(client, rollout_id, graders.sandbox.sandbox_id).items():
        if name not in ABOUT_NO_SANDBOX:
            assert (await fails(call, PermissionDenied)).reason == "WRONG_ROLE", name


async def test_an_operator_lists_and_destroys_but_does_not_use(client, suite):
    ids = []
    for _ in range(5):
        rollout_id = suite.rollout_id()
        client.be(rollout_id)
        ids.append((await client.stub.CreateSandbox(create_request(rollout_id))).sandbox)
    await fails(lambda: client.stub.ListSandboxes(pb.ListSandboxesRequest()), PermissionDenied)
    await fails(lambda: client.stub.DestroyByRun(pb.DestroyByRunRequest()), PermissionDenied)
    client.be("", role="operator")
    seen, token = [], ""
    while True:
        page = await client.stub.ListSandboxes(
            pb.ListSandboxesRequest(page_size=2, page_token=token, run_id="run-1")
        )
        seen += [one.sandbox_id for one in page.sandboxes]
        token = page.next_page_token
        if not token:
            break
    assert sorted(seen) == sorted(one.sandbox_id for one in ids)
    target = {"rollout_id": ids[0].rollout_id, "sandbox_id": ids[0].sandbox_id}
    spec = pb.ExecSpec(**target, exec_id="x", argv=["true"])
    await fails(lambda: client.stub.Exec(pb.ExecRequest(exec=spec)), PermissionDenied)
    await client.stub.DestroySandbox(pb.DestroySandboxRequest(**target))
    done = await client.stub.DestroyByRun(pb.DestroyByRunRequest(run_id="run-1"))
    assert done.destroyed_count == 4
    client.token = ""
    stats = await client.stub.GetStats(pb.GetStatsRequest())
    assert (stats.live_count, stats.expected_count, stats.destroyed_count) == (0, 0, 5)


async def test_bad_requests_name_every_field(client, suite):
    rollout_id = suite.rollout_id()
    client.be(rollout_id)
    request = create_request(
        rollout_id,
        template="windows",
        network_profile="open",
        limits=pb.SandboxLimits(
            memory_bytes=1 << 28, disk_bytes=1 << 28, max_processes=-1, max_inodes=123_456_789
        ),
        env={"A=B": "c"},
        lifetime=Duration(seconds=100_000),
    )
    error = await fails(lambda: client.stub.CreateSandbox(request), InvalidArgument)
    assert set(error.violations) == {
        "template",
        "network_profile",
        "limits.disk_bytes",
        "limits.max_processes",
        "limits.max_inodes",
        "env",
        "lifetime",
    }
    assert error.violations["limits.max_inodes"].startswith("found 123456789; must be 1000 to ")
    missing = pb.CreateSandboxRequest(rollout_id=rollout_id, run_id="run-1")
    assert (
        "purpose"
        in (await fails(lambda: client.stub.CreateSandbox(missing), InvalidArgument)).violations
    )
    bad_run = create_request(rollout_id, run_id="a.b")
    await fails(lambda: client.stub.CreateSandbox(bad_run), InvalidArgument)
    spec = pb.ExecSpec(rollout_id=rollout_id, sandbox_id="x", exec_id="has space", argv=[])
    error = await fails(lambda: client.stub.Exec(pb.ExecRequest(exec=spec)), InvalidArgument)
    assert set(error.violations) == {"exec.exec_id", "exec.argv"}


async def test_unknown_is_not_found(client, suite):
    rollout_id = suite.rollout_id()
    client.be(rollout_id)
    for name, call in _calls(client, rollout_id, "sbx_unknown").items():
        if name not in (*ABOUT_NO_SANDBOX, "DestroySandbox"):
            await fails(call, NotFound)
    await _calls(client, rollout_id, "sbx_unknown")["DestroySandbox"]()


async def test_a_real_rollout_over_grpc(real_client, real):
    client, rollout_id = real_client, real.rollout_id()
    client.be(rollout_id)
    made = await client.stub.CreateSandbox(
        create_request(
            rollout_id,
            files=[pb.SandboxFile(path="/work/in/task.txt", content=b"21", mode=0o600)],
            env={"FACTOR": "2"},
        )
    )
    assert made.created
    assert made.sandbox.rootfs_digest.startswith("sha256:")
    target = {"rollout_id": rollout_id, "sandbox_id": made.sandbox.sandbox_id}
    script = "import os; print(int(open('/work/in/task.txt').read()) * int(os.environ['FACTOR']))"
    spec = pb.ExecSpec(**target, exec_id="a", argv=["python3", "-c", script])
    result = (await client.stub.Exec(pb.ExecRequest(exec=spec))).result
    assert (result.termination, result.stdout) == (pb.TERMINATION_EXITED, b"42\n")
    await client.stub.WriteFile(
        pb.WriteFileRequest(**target, file=pb.SandboxFile(path="/work/out", content=b"done"))
    )
    read = await client.stub.ReadFile(
        pb.ReadFileRequest(**target, path="/work/out", offset_bytes=1, max_bytes=2)
    )
    assert (read.content, read.size_bytes) == (b"on", 4)
    await client.stub.DestroySandbox(pb.DestroySandboxRequest(**target))
    await fails(lambda: client.stub.Exec(pb.ExecRequest(exec=spec)), NotFound)


async def test_a_stream_brings_output_as_it_comes_and_its_end_kills(real_client, real):
    client, rollout_id = real_client, real.rollout_id()
    client.be(rollout_id)
    made = await client.stub.CreateSandbox(create_request(rollout_id))
    target = {"rollout_id": rollout_id, "sandbox_id": made.sandbox.sandbox_id}
    script = "echo one; echo two >&2; read line; echo $line; exit 3"
    spec = pb.ExecSpec(**target, exec_id="a", argv=["sh", "-c", script], stdin=b"three\n")
    out = {pb.OUTPUT_STREAM_STDOUT: b"", pb.OUTPUT_STREAM_STDERR: b""}
    last = None
    async for event in client.stub.StreamExec(pb.StreamExecRequest(exec=spec)):
        if event.WhichOneof("event") == "chunk":
            out[event.chunk.stream] += event.chunk.data
        last = event
    assert out == {pb.OUTPUT_STREAM_STDOUT: b"one\nthree\n", pb.OUTPUT_STREAM_STDERR: b"two\n"}
    assert (last.result.exit_code, last.result.stdout) == (3, b"")
    spec = pb.ExecSpec(**target, exec_id="b", argv=["sh", "-c", "echo up; exec sleep 786"])
    stream = client.stub.StreamExec(pb.StreamExecRequest(exec=spec))
    async for event in stream:
        assert event.chunk.data == b"up\n"
        break
    stream.cancel()
    box = real.fleet.find(made.sandbox.sandbox_id).box
    while box.busy:
        await asyncio.sleep(0.01)
    check = pb.ExecSpec(**target, exec_id="c", argv=["sh", "-c", "ps ax | grep -c '[s]leep 786'"])
    result = (await client.stub.Exec(pb.ExecRequest(exec=check))).result
    assert (result.termination, result.stdout) == (pb.TERMINATION_EXITED, b"0\n"), result
