"""Files, archives and snapshots over a real gRPC server: pages, streams, and calls that end early."""

import asyncio
import hashlib
import io
import random
import tarfile

import pytest
from grpc_client import create_request, fails, serve
from hone.sandbox.v1 import sandbox_pb2 as pb

from sandbox.types import FileEntry, FileKind
from servicekit.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
)

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


class Sandbox:
    """One sandbox behind a server, and what is left of calls about it."""

    def __init__(self, client, suite, folder, made) -> None:
        self.client, self.stub, self.suite = client, client.stub, suite
        self.folder = folder
        self.rollout_id, self.sandbox_id = made.rollout_id, made.sandbox_id
        self.target = {"rollout_id": made.rollout_id, "sandbox_id": made.sandbox_id}
        self._numbers = iter(range(1000))

    def upload(self, folder: str, pieces):
        async def messages():
            target = pb.UploadTarTarget(**self.target, folder=folder)
            yield pb.UploadTarRequest(target=target)
            async for piece in pieces:
                yield pb.UploadTarRequest(chunk=piece)

        return self.stub.UploadTar(messages())

    def download(self, path: str):
        return self.stub.DownloadTar(pb.DownloadTarRequest(**self.target, path=path))

    async def sh(self, script: str, **fields) -> pb.ExecResult:
        spec = pb.ExecSpec(
            **self.target, exec_id=f"e{next(self._numbers)}", argv=["sh", "-c", script], **fields
        )
        return (await self.stub.Exec(pb.ExecRequest(exec=spec))).result

    async def nothing_is_left(self) -> None:
        """Wait until no call has anything on the manager's disk."""
        async with asyncio.timeout(10):
            while list((self.folder / "spool").iterdir()):
                await asyncio.sleep(0.01)


@pytest.fixture
async def scripted(suite, tmp_path):
    async for client in serve(suite, tmp_path):
        yield await _begin(client, suite, tmp_path)


@pytest.fixture
async def sandbox(real, tmp_path):
    async for client in serve(real, tmp_path):
        yield await _begin(client, real, tmp_path)


async def _begin(client, suite, folder) -> Sandbox:
    rollout_id = suite.rollout_id()
    client.be(rollout_id)
    made = await client.stub.CreateSandbox(create_request(rollout_id))
    return Sandbox(client, suite, folder, made.sandbox)


async def _in_pieces(data: bytes, size: int):
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


def _archive(content: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        header = tarfile.TarInfo("data")
        header.size = len(content)
        archive.addfile(header, io.BytesIO(content))
    return target.getvalue()


async def _list(sandbox: Sandbox, page_size: int = 0) -> list[pb.ListFilesResponse]:
    pages, token = [], ""
    while True:
        page = await sandbox.stub.ListFiles(
            pb.ListFilesRequest(
                **sandbox.target, path="/work", page_size=page_size, page_token=token
            )
        )
        pages.append(page)
        token = page.next_page_token
        if not token:
            return pages


def _entry(name: str, **fields) -> FileEntry:
    base = {"kind": FileKind.FILE, "size_bytes": 1, "mode": 0o644, "modify_time": 1.5}
    return FileEntry(name=name, **(base | fields))


async def test_a_folder_comes_in_pages_that_fit_a_message(scripted):
    box = scripted.suite.backend.boxes[scripted.sandbox_id]
    names = sorted(f"{number:05}" + "n" * 200 for number in range(4000))
    box.entries = [
        _entry(name, kind=FileKind.LINK, link_target="t" * 4000, modify_time=1e30) for name in names
    ]
    pages = await _list(scripted, page_size=10_000)
    assert [entry.name for page in pages for entry in page.entries] == names
    assert len(pages) > 4  # by size, not by number
    assert max(page.ByteSize() for page in pages) < 3 * MIB
    box.entries = [_entry(name) for name in names]
    assert [len(page.entries) for page in await _list(scripted)] == [1000] * 4
    sizes = [len(page.entries) for page in await _list(scripted, page_size=1500)]
    assert sizes == [1500, 1500, 1000]
    box.entries = []
    assert [len(page.entries) for page in await _list(scripted)] == [0]


async def test_a_page_goes_on_behind_its_last_name_also_when_that_is_gone(scripted):
    box = scripted.suite.backend.boxes[scripted.sandbox_id]
    request = pb.ListFilesRequest(**scripted.target, path="/work", page_size=2)
    box.entries = [_entry(name) for name in ("a", "b\udcff", "c", "d")]
    first = await scripted.stub.ListFiles(request)
    assert [entry.name for entry in first.entries] == ["a", "b\\xff"]
    box.entries = [_entry(name) for name in ("a", "b", "c", "d")]
    request.page_token = first.next_page_token
    second = await scripted.stub.ListFiles(request)
    assert [entry.name for entry in second.entries] == ["c", "d"]
    assert second.next_page_token == ""
    request.page_token = "no token"
    error = await fails(lambda: scripted.stub.ListFiles(request), InvalidArgument)
    assert set(error.violations) == {"page_token"}
    request.page_token, request.page_size = "", 10_001
    await fails(lambda: scripted.stub.ListFiles(request), InvalidArgument)


@pytest.mark.parametrize("path", ["", "work", "/work/../etc", "/a\0b", "/" + "a" * 5000])
async def test_paths_that_cannot_be_are_refused(scripted, path):
    target = scripted.target
    for call in (
        lambda: scripted.stub.ListFiles(pb.ListFilesRequest(**target, path=path)),
        lambda: scripted.stub.StatFile(pb.StatFileRequest(**target, path=path)),
        lambda: scripted.upload(path, _in_pieces(b"", 1)),
        lambda: anext(aiter(scripted.download(path))),
    ):
        await fails(call, InvalidArgument)


@pytest.mark.parametrize("snapshot_id", ["", "Upper", "a/b", "..", "a" * 65])
async def test_snapshot_ids_that_cannot_be_are_refused(scripted, snapshot_id):
    saved = {"rollout_id": scripted.rollout_id, "snapshot_id": snapshot_id}
    create = pb.CreateSnapshotRequest(**scripted.target, snapshot_id=snapshot_id)
    for call in (
        lambda: scripted.stub.CreateSnapshot(create),
        lambda: scripted.stub.DeleteSnapshot(pb.DeleteSnapshotRequest(**saved)),
    ):
        assert set((await fails(call, InvalidArgument)).violations) == {"snapshot_id"}


async def test_the_messages_of_an_upload_come_in_order(scripted):
    target = pb.UploadTarRequest(target=pb.UploadTarTarget(**scripted.target, folder="/work"))
    piece = pb.UploadTarRequest(chunk=b"x")
    for messages in ([], [piece], [target, target], [target, pb.UploadTarRequest()]):
        await fails(lambda m=messages: scripted.stub.UploadTar(iter(m)), InvalidArgument)
    large = pb.UploadTarRequest(chunk=bytes(3 * MIB + 1))
    await fails(lambda: scripted.stub.UploadTar(iter([target, large])), InvalidArgument)
    await scripted.nothing_is_left()


async def test_an_archive_streams_in_and_out(sandbox):
    content = random.Random(3).randbytes(20 * MIB)
    data = _archive(content)
    answer = await sandbox.upload("/work/deep/in", _in_pieces(data, 3 * MIB))
    assert answer.size_bytes == len(data)
    digest = await sandbox.sh("sha256sum < /work/deep/in/data")
    assert digest.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()
    packed, end = b"", None
    async for event in sandbox.download("/work/deep"):
        assert end is None
        if event.WhichOneof("event") == "chunk":
            packed += event.chunk
        else:
            end = event.end
    assert (end.size_bytes, end.sha256) == (len(packed), hashlib.sha256(packed).hexdigest())
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["in", "in/data"]
        assert archive.extractfile("in/data").read() == content
    await sandbox.nothing_is_left()


async def test_a_caller_that_cancels_leaves_nothing(sandbox):
    begun = asyncio.Event()

    async def endless():
        while True:
            yield b"x" * MIB
            begun.set()
            await asyncio.sleep(0)

    upload = sandbox.upload("/work", endless())
    await begun.wait()
    upload.cancel()
    with pytest.raises((asyncio.CancelledError, Cancelled)):
        await upload
    await sandbox.sh("head -c 100000000 /dev/urandom > /work/large")
    download = sandbox.download("/work/large")
    assert len((await anext(aiter(download))).chunk) == MIB
    download.cancel()
    await sandbox.nothing_is_left()
    entry = sandbox.suite.fleet.find(sandbox.sandbox_id)
    async with asyncio.timeout(10):
        while not sandbox.suite.manager.door.is_quiet:
            await asyncio.sleep(0.01)
    assert entry.lease.expired() is None
    assert (await sandbox.sh("find / -xdev -name '.hone-*'")).stdout == b""


async def test_errors_of_archives_say_whose_doing_they_are(sandbox):
    error = await fails(lambda: sandbox.upload("/work", _in_pieces(b"no tar", 10)), InvalidArgument)
    assert (error.attributable, error.retryable) == ("client", False)
    large = _archive(bytes(300 * MIB))
    error = await fails(
        lambda: sandbox.upload("/work", _in_pieces(large, 3 * MIB)), FailedPrecondition
    )
    assert (error.reason, error.attributable) == ("DISK_FULL", "workload")
    await sandbox.sh("truncate -s 2G /work/sparse")
    await fails(lambda: anext(aiter(sandbox.download("/work"))), OutOfRange)
    await fails(lambda: anext(aiter(sandbox.download("/none"))), NotFound)
    await sandbox.nothing_is_left()


async def test_a_grader_grades_what_the_agent_left_from_a_snapshot(sandbox):
    client, stub, rollout_id = sandbox.client, sandbox.stub, sandbox.rollout_id
    await sandbox.sh("echo answer > /work/answer; rm /etc/hosts")
    request = pb.CreateSnapshotRequest(**sandbox.target, snapshot_id="end")
    saved = await stub.CreateSnapshot(request)
    assert saved.size_bytes > 0
    assert await stub.CreateSnapshot(request) == saved
    await sandbox.sh("echo something else > /work/answer")
    grade = create_request(
        rollout_id, purpose=pb.SANDBOX_PURPOSE_GRADE, snapshot_id="end", sequence=1
    )
    await fails(lambda: stub.CreateSandbox(grade), PermissionDenied)
    client.be(rollout_id, role="grader")
    made = (await stub.CreateSandbox(grade)).sandbox
    assert (made.template, made.warm, made.polluted) == ("host", False, False)
    target = {"rollout_id": rollout_id, "sandbox_id": made.sandbox_id}
    read = await stub.ReadFile(pb.ReadFileRequest(**target, path="/work/answer"))
    assert read.content == b"answer\n"
    stat = pb.StatFileRequest(**target, path="/etc/hosts")
    await fails(lambda: stub.StatFile(stat), NotFound)
    gone = pb.DeleteSnapshotRequest(rollout_id=rollout_id, snapshot_id="end")
    await stub.DeleteSnapshot(gone)
    await stub.DeleteSnapshot(gone)
    again = create_request(
        rollout_id, purpose=pb.SANDBOX_PURPOSE_GRADE, snapshot_id="end", sequence=2
    )
    assert (await fails(lambda: stub.CreateSandbox(again), NotFound)).reason == "SNAPSHOT_UNKNOWN"


async def test_what_a_path_is_crosses_the_wire(sandbox):
    await sandbox.sh("cd /work && ln -s ../x l && mkdir -m 750 d && mkfifo p && touch -d @5 f")
    kinds = {}
    for name in "ldpf":
        request = pb.StatFileRequest(**sandbox.target, path=f"/work/{name}")
        kinds[name] = (await sandbox.stub.StatFile(request)).entry
    assert [entry.kind for entry in kinds.values()] == [
        pb.FILE_KIND_LINK,
        pb.FILE_KIND_FOLDER,
        pb.FILE_KIND_OTHER,
        pb.FILE_KIND_FILE,
    ]
    assert (kinds["l"].link_target, kinds["d"].mode) == ("../x", 0o750)
    assert kinds["f"].modify_time.ToSeconds() == 5


async def test_survivors_die_where_the_call_says_so(sandbox):
    kept = await sandbox.sh("sleep 793 >/dev/null 2>&1 & echo up")
    killed = await sandbox.sh("sleep 794 & echo up", kill_survivors=True)
    assert (kept.stdout, killed.stdout) == (b"up\n", b"up\n")
    assert not killed.output_incomplete
    count = await sandbox.sh("ps ax | grep -c '[s]leep 793'; ps ax | grep -c '[s]leep 794'")
    assert count.stdout == b"1\n0\n"
