from pathlib import Path

from grader.store import Judged, JudgedStore


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
