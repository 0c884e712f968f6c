"""Fetches an export of a run into a folder that is there as a whole or not at all."""

import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hone.learner.v1 import learner_pb2

from hone_cli.addresses import AddressBook
from hone_cli.clients import learner_client
from hone_cli.errors import FAILED, USAGE, CliError
from modelstore.resolve import PACKAGE_PREFIX, staged_folder

MANIFEST = "hone.json"
"""Every export has one; by it an earlier export is known."""

TIMEOUT_SECONDS = 3600.0


def choice_of(text: str) -> learner_pb2.CheckpointChoice:
    """Reads which checkpoint is meant: a step, best or latest.

    Raises:
        CliError: it is none of them.
    """
    if text in ("best", "latest"):
        return learner_pb2.CheckpointChoice(**{text: True})
    if text.isascii() and text.isdigit() and len(text) < 10:
        return learner_pb2.CheckpointChoice(step=int(text))
    raise CliError(f"found {text!r}, expected a number of steps, or best", USAGE)


def check_target(folder: Path, *, force: bool) -> None:
    """Refuses a folder that would be overwritten.

    Raises:
        CliError: something is there that is no export, or that --force was not given for.
        OSError: it cannot be looked at.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MANIFEST).is_file():
        raise CliError(f"{folder} is there and is no export; name another folder", USAGE)
    if not force:
        raise CliError(f"{folder} holds an export; --force replaces it", USAGE)


async def export(
    run_id: str,
    choice: learner_pb2.CheckpointChoice,
    folder: Path,
    book: AddressBook,
    *,
    merged: bool,
    force: bool,
) -> learner_pb2.ExportManifest:
    """Fetches an export and puts it into `folder`; what is there stays until all of the new one is.

    Raises:
        CliError: the run, the checkpoint or the folder is not fit, or what came is not what was sent.
    """
    request = learner_pb2.ExportRunRequest(run_id=run_id, checkpoint=choice, merged=merged)
    # Of a link it is the folder behind it that is made.
    folder = Path(os.path.realpath(folder))
    if not folder.name:
        raise CliError(f"{folder} cannot be made; name a folder in it", USAGE)
    ready = folder.with_name(f".{folder.name}.new")
    try:
        check_target(folder, force=force)
        shutil.rmtree(ready, ignore_errors=True)
        async with learner_client(book) as learner:
            with staged_folder(ready) as staging:
                pieces = learner.ExportRun(request, timeout=TIMEOUT_SECONDS)
                manifest = await receive(pieces, staging)
        check_target(folder, force=force)
        _replace(ready, folder)
    except OSError as error:
        raise CliError(f"{error.filename or folder}: {error.strerror or error}", FAILED) from error
    finally:
        shutil.rmtree(ready, ignore_errors=True)
    return manifest


async def receive(
    pieces: AsyncIterator[learner_pb2.ExportRunResponse], folder: Path
) -> learner_pb2.ExportManifest:
    """Writes the files of an export into a folder and checks each.

    Raises:
        CliError: a file has a name that leads out of the folder, another content, or is missing.
    """
    arriving: _Arriving | None = None
    count = 0
    async for piece in pieces:
        match piece.WhichOneof("piece"):
            case "file":
                if arriving is not None:
                    arriving.close()
                arriving, count = _Arriving.open(piece.file, folder), count + 1
            case "chunk" if arriving is not None:
                arriving.write(piece.chunk)
            case "manifest":
                if arriving is not None:
                    arriving.close()
                if count != piece.manifest.file_count or not _is_manifest(folder / MANIFEST):
                    raise CliError(
                        f"{count} files came of {piece.manifest.file_count} that the export has; "
                        "try again",
                        FAILED,
                    )
                return piece.manifest
    raise CliError("the export broke off; try again", FAILED)


@dataclass(slots=True, kw_only=True)
class _Arriving:
    """A file whose content is on its way."""

    head: learner_pb2.ExportedFile
    file: BinaryIO
    digest: "hashlib._Hash"

    @classmethod
    def open(cls, head: learner_pb2.ExportedFile, folder: Path) -> "_Arriving":
        plain = head.path.isprintable() and head.path == Path(head.path).name
        if not plain or head.path in ("", ".", ".."):
            raise CliError(f"the export has a file called {head.path!r}, which is refused", FAILED)
        return cls(head=head, file=(folder / head.path).open("xb"), digest=hashlib.sha256())

    def write(self, chunk: bytes) -> None:
        self.file.write(chunk)
        self.digest.update(chunk)

    def close(self) -> None:
        size = self.file.tell()
        self.file.close()
        if size != self.head.size_bytes or self.digest.hexdigest() != self.head.sha256:
            raise CliError(
                f"{self.head.path} arrived with {size} bytes of {self.head.size_bytes} or with "
                "another hash than the learner's; try again",
                FAILED,
            )


def _is_manifest(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    except (FileNotFoundError, ValueError, RecursionError):
        return False


def _replace(ready: Path, folder: Path) -> None:
    """Puts the new folder in the place of the old one, if there is one."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    ready.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def described(manifest: learner_pb2.ExportManifest, folder: Path) -> str:
    """Says what was exported and how to open it."""
    kind = "model" if manifest.merged else "adapter"
    base = json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("base_model", "")
    if manifest.merged:
        opened = f"AutoModelForCausalLM.from_pretrained({str(folder)!r})   opens it"
    elif base.startswith(PACKAGE_PREFIX):
        opened = (
            f"peft.PeftModel.from_pretrained(MODEL, {str(folder)!r})   opens it, where MODEL is {base}, as "
            "AutoModelForCausalLM.from_pretrained opens it from "
            f".hone/models/{base.removeprefix(PACKAGE_PREFIX)}-VERSION, where the learner unpacked it"
        )
    else:
        opened = f"peft.AutoPeftModelForCausalLM.from_pretrained({str(folder)!r})   opens it"
    return (
        f"{folder}: the {kind} of run {manifest.run_id} after step {manifest.step} "
        f"(policy version {manifest.policy_version}), {manifest.file_count} files\n"
        f"  {opened}"
    )


def as_json(manifest: learner_pb2.ExportManifest, folder: Path) -> str:
    """For programs: the export's own manifest, and where it is."""
    own = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return json.dumps({"folder": str(folder), **own}, indent=2)
