"""Why rollouts did not succeed: counts by step, both accuracies, the alarm."""

import re
from typing import Any

import pytest
from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2

from console.archive import Archive
from console.archive_reader import ArchiveReader, ResultCount
from console.convert import archived_event
from console.markup import join
from console.page_errors import MAX_STEPS, errors_section


def counted(result: str, num: int, step: int = 0) -> ResultCount:
    return ResultCount(phase="train", step=step, result=result, num=num, example=f"{result}-{step}")


def text_of(*found: ResultCount) -> str:
    return re.sub(r"<[^>]+>", " ", html_of(*found))


def html_of(*found: ResultCount) -> str:
    section: Any = errors_section(found, lambda rollout_id: f"/trace/{rollout_id}")
    return str(join(*section))


def test_nothing_is_shown_before_a_rollout_has_ended() -> None:
    assert errors_section([], str) is None


def test_accuracy_with_and_without_answers_that_could_not_be_read() -> None:
    text = text_of(
        counted("success", 60),
        counted("reasoning", 20),
        counted("extraction", 20),
        counted("infrastructure", 7),
        counted("unjudged", 3),
    )
    assert "Accuracy 0.600, without answers that could not be read 0.750; 20.0%" in text


@pytest.mark.parametrize(("unread", "alarm"), [(2, False), (3, True)])
def test_alarm_begins_above_two_percent(unread: int, alarm: bool) -> None:
    text = text_of(counted("success", 100 - unread), counted("extraction", unread))
    assert ("needs mending" in text) is alarm


def test_infrastructure_alone_has_no_accuracy() -> None:
    assert "Accuracy" not in text_of(counted("infrastructure", 4))


def test_long_runs_show_their_last_steps() -> None:
    text = text_of(*(counted("success", 1, step) for step in range(MAX_STEPS + 5)))
    assert "train 5 " not in text
    assert "train 6 " in text and f"train {MAX_STEPS + 5} " in text


def test_each_count_leads_to_an_example() -> None:
    html = html_of(counted("budget", 3, step=1), counted("budget", 2, step=2))
    assert '<a href="/trace/budget-1">3</a>' in html
    assert '<a href="/trace/budget-2">2</a>' in html


def test_archive_types_every_ended_rollout(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    run_writer.start()
    outcomes = {
        "success": events_pb2.RewardAssigned(scored=outcome_pb2.Scored(score=1)),
        "budget": events_pb2.RewardAssigned(
            scored=outcome_pb2.Scored(kind=outcome_pb2.OUTCOME_KIND_BUDGET)
        ),
        "extraction": events_pb2.RewardAssigned(
            masked=outcome_pb2.Masked(kind=outcome_pb2.OUTCOME_KIND_EXTRACTION)
        ),
        "polluted": events_pb2.RewardAssigned(
            masked=outcome_pb2.Masked(kind=outcome_pb2.OUTCOME_KIND_POLLUTED)
        ),
        "unjudged": events_pb2.RewardAssigned(masked=outcome_pb2.Masked()),
    }
    for sample, payload in enumerate(outcomes.values()):
        rollout_id = f"0195abcd-0000-7000-8000-{sample:012d}"
        run_writer.request(rollout_id, sample=sample)
        run_writer.tell(
            payload, "grader", rollout_id=rollout_id, sample=sample, grader_version="g1"
        )
    failed, still_open = (f"0195abcd-0000-7000-8000-{n:012d}" for n in (98, 99))
    run_writer.request(failed, sample=98)
    run_writer.fail(failed, sample=98)
    run_writer.request(still_open, sample=99)
    archive.write([archived_event(i, e) for i, e in enumerate(run_writer.envelopes, start=1)], [])
    found = {count.result: count.num for count in reader.result_counts("run-1")}
    assert all(reader.rollout(count.example) for count in reader.result_counts("run-1"))
    assert found == {"success": 1, "budget": 1, "extraction": 1, "infrastructure": 2, "unjudged": 1}
