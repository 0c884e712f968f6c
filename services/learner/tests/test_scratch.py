"""What a killed learner leaves behind goes away, and nothing that a living one needs."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from learner.scratch import use_scratch

BEGINS = (
    "import sys, tempfile; from pathlib import Path; from learner.scratch import use_scratch; "
    "use_scratch(Path(sys.argv[1])); print(tempfile.mkdtemp(), flush=True); sys.stdin.read()"
)
"""A learner that has something in a temporary folder."""


def begun(root: Path) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", BEGINS, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_temporary_files_of_a_killed_process_are_removed_and_those_of_a_living_one_stay(
    tmp_path: Path,
) -> None:
    living, used = begun(tmp_path)
    killed, left = begun(tmp_path)
    with living, killed:
        killed.kill()
        killed.wait()
        assert left.is_dir()
        restarted, other = begun(tmp_path)
        with restarted:
            assert not left.exists()
            assert used.is_dir()
            assert other.is_relative_to(tmp_path)
            restarted.kill()
        living.kill()


def test_what_an_earlier_process_of_the_same_id_left_is_removed(tmp_path: Path) -> None:
    # In a container it is often 1 again and again.
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    left = tmp_path / str(os.getpid()) / "weights"
    left.mkdir(parents=True)
    (tmp_path / "no-number").mkdir()
    try:
        use_scratch(tmp_path)
        assert not left.exists()
        assert Path(tempfile.gettempdir()) == Path(os.environ["TMPDIR"])
        assert Path(tempfile.gettempdir()).parent == tmp_path
        assert (tmp_path / "no-number").is_dir()
    finally:
        tempfile.tempdir = before[0]
        os.environ.pop("TMPDIR")
        if before[1] is not None:
            os.environ["TMPDIR"] = before[1]
