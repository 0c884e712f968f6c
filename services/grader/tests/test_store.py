import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from grader.store import Judged, JudgedStore
from servicekit.errors import DataLoss, FailedPrecondition


def _judged(event_id: str = "e1", version: str = "v1") -> Judged:
    return Judged(
        finished_event_id=event_id,
        rollout_id="r1",
        attempt=0,
        grader_version=version,
        event=b"event",
        trace_parent="00-1-2-01",
    )


def test_judgement_survives_a_restart_unpublished(tmp_path: Path) -> None:
    first = JudgedStore(tmp_path / "new" / "grader.sqlite")
    assert first.add(_judged(), 1.0)
    first.close()
    second = JudgedStore(tmp_path / "new" / "grader.sqlite")
    assert second.unpublished() == [_judged()]
    second.mark_published("e1")
    assert second.unpublished() == []
    found = second.find("e1")
    assert found is not None and found.published and found.event == b""


def test_an_attempt_is_judged_once_per_version(tmp_path: Path) -> None:
    store = JudgedStore(tmp_path / "grader.sqlite")
    assert store.add(_judged("e1"), 1.0)
    assert not store.add(_judged("e1"), 2.0)
    assert not store.add(_judged("e2"), 2.0)
    assert store.add(_judged("e3", "v2"), 2.0)
    assert store.find("e2") is None


def test_a_file_that_is_damaged_or_of_another_program_is_named(tmp_path: Path) -> None:
    damaged, foreign = tmp_path / "damaged", tmp_path / "foreign"
    damaged.write_bytes(b"no SQLite file" * 100)
    with pytest.raises(DataLoss, match="damaged is damaged"):
        JudgedStore(damaged)
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE a (b)")
    with pytest.raises(FailedPrecondition, match="foreign is a file of another program"):
        JudgedStore(foreign)
