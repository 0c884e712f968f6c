import dataclasses
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hone.common.v1 import outcome_pb2

from console.archive import Archive
from console.archive_reader import ArchiveReader
from console.audit import audit_run
from console.convert import archived_event, stored_row
from console.markup import tag, visible
from console.site import Site
from console.spans import Span, SpanEvent, SpanLink
from console.view_convert import rollout_view
from trajectory.types import ChatMessage, ImagePart, Role, RolloutRecord, ToolCall, ToolCallRecord

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)></pre></style><!--"
    "\x1b[31m\x00\u202egnp.exe&lt;b&gt;{{7*7}} javascript:alert(3)"
)


class Elements(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def site(reader: ArchiveReader) -> Site:
    return Site(
        reader,
        view=rollout_view,
        audit=lambda run_id: audit_run(map(stored_row, reader.run_events(run_id))),
    )


def store(archive: Archive, envelopes: list[Any], spans: list[Span] | None = None) -> None:
    events = [archived_event(i, e) for i, e in enumerate(envelopes, start=1)]
    archive.write(events, spans or [])


def page(site: Site, target: str, status: int = 200) -> str:
    response = site.respond(target)
    assert response.status == status, response.body
    return response.body.decode("utf-8")


def hostile_record(record: RolloutRecord) -> RolloutRecord:
    call = ToolCall(tool_call_id=HOSTILE, name=HOSTILE, arguments_json=HOSTILE)
    turn = dataclasses.replace(
        record.turns[0],
        tool_calls=(ToolCallRecord(call=call, result=HOSTILE, error_kind=HOSTILE),),
    )
    said = ChatMessage(
        role=Role.ASSISTANT,
        content=(HOSTILE, ImagePart(uri="http://internal/" + HOSTILE, media_type=HOSTILE)),
        reasoning_content=HOSTILE,
        tool_calls=(call,),
        name=HOSTILE,
    )
    prompt = ChatMessage(role=Role.USER, content=(HOSTILE,), name=HOSTILE, tool_calls=(call,))
    task = dataclasses.replace(record.task, task_id=HOSTILE)
    return dataclasses.replace(record, task=task, messages=(prompt, said), turns=(turn,))


def hostile_span(rollout_id: str) -> Span:
    return Span(
        trace_id=rollout_id.replace("-", ""),
        span_id="cd" * 8,
        parent_span_id="ab" * 8,
        service_name=HOSTILE,
        name=HOSTILE,
        start_ns=1,
        end_ns=2,
        attributes={HOSTILE: HOSTILE},
        status="error",
        status_message=HOSTILE,
        links=(SpanLink(trace_id="01" * 16, span_id="02" * 8),),
        events=(SpanEvent(time_ns=1, name=HOSTILE, attributes={HOSTILE: HOSTILE}),),
    )


def test_whatever_an_agent_writes_stays_text(
    archive: Archive, site: Site, run_writer: Any, record: RolloutRecord
) -> None:
    rollout_id = "0195abcd-0000-7000-8000-00000000aaaa"
    failed_id = "0195abcd-0000-7000-8000-00000000bbbb"
    run_writer.start()
    run_writer.request(rollout_id)
    run_writer.envelopes[-1].rollout_requested.task.task_id = HOSTILE
    run_writer.finish(rollout_id, record=hostile_record(record))
    run_writer.score(rollout_id, 0.5, explanation=HOSTILE)
    scored = run_writer.envelopes[-2].reward_assigned.scored
    scored.flags.add(name=HOSTILE, detail=HOSTILE, priced=True)
    scored.errors.add(name=HOSTILE, kind=outcome_pb2.GRADER_ERROR_KIND_SERVER, detail=HOSTILE)
    scored.abstained.append(HOSTILE)
    run_writer.request(failed_id, sample=1)
    run_writer.fail(failed_id, sample=1, detail=HOSTILE)
    run_writer.train(0, rollout_id)
    run_writer.envelopes[-1].run_step_trained.metrics[HOSTILE] = float("nan")
    run_writer.end()
    run_writer.envelopes[-1].run_finished.detail = HOSTILE
    store(archive, run_writer.envelopes, [hostile_span(rollout_id)])
    for target in (
        "/",
        "/runs/run-1",
        "/runs/run-1/audit",
        f"/trace/{rollout_id}",
        f"/trace/{failed_id}",
        f"/{HOSTILE}",
        f"/runs/{HOSTILE}",
        f"/runs/run-1?phase={HOSTILE}",
    ):
        response = site.respond(target)
        elements = Elements()
        elements.feed(response.body.decode("utf-8"))
        assert not elements.tags & {"script", "img", "iframe", "object", "embed", "form", "b1"}
        assert not [name for name, _ in elements.attributes if name.startswith("on")]
        addresses = [value or "" for name, value in elements.attributes if name in ("href", "src")]
        assert all(address.startswith("/") for address in addresses)
        assert not re.search("[\x00\x1b\u202e]", response.body.decode("utf-8"))
    shown = page(site, f"/trace/{rollout_id}")
    # Nothing is dropped either: the text is there to be read, several times.
    assert shown.count(html.escape("<script>alert(1)</script>")) > 8
    assert "[U+202E]" in shown


def test_a_rollout_is_shown_turn_by_turn(archive: Archive, site: Site, demo: Any) -> None:
    span = Span(
        trace_id=demo.scored_id.replace("-", ""),
        span_id="cd" * 8,
        service_name="rollout",
        name="invoke_agent",
        start_ns=10**9,
        end_ns=3 * 10**9,
    )
    store(archive, demo.envelopes, [span])
    shown = page(site, f"/trace/{demo.scored_id.replace('-', '')}")
    for text in (
        "turn 0",
        "turn 1",
        "I need a product.",
        "calls calculator",
        "The answer is 12.",
        "score 0.850",
        "invoke_agent",
        "Spans: 1, services: 1, 2.0 s in all",
        "10 tokens, 5 in the loss",
        "reward_assigned",
    ):
        assert text in shown
    assert page(site, f"/rollouts/{demo.scored_id}") == shown


def test_what_guards_flagged_is_shown(archive: Archive, site: Site, run_writer: Any) -> None:
    rollout_id = "0195abcd-0000-7000-8000-00000000aaaa"
    run_writer.start()
    run_writer.request(rollout_id)
    run_writer.finish(rollout_id)
    run_writer.score(rollout_id, 0.5)
    scored = run_writer.envelopes[-2].reward_assigned.scored
    scored.flags.add(name="lucky_guess", detail="no working", priced=True)
    scored.errors.add(
        name="style", kind=outcome_pb2.GRADER_ERROR_KIND_SERVER, detail="the judge was away"
    )
    scored.abstained.append("taste")
    store(archive, run_writer.envelopes)
    shown = page(site, f"/trace/{rollout_id}")
    assert "Flagged lucky_guess (in the score): no working" in shown
    assert "style could not be measured: the judge was away" in shown
    assert "Without an opinion: taste" in shown


def test_a_failed_rollout_names_its_failure_and_the_other_attempts(
    archive: Archive, site: Site, demo: Any
) -> None:
    store(archive, demo.envelopes)
    shown = page(site, f"/trace/{demo.failed_id}")
    assert "Failed: sandbox (infra; a new attempt can succeed)" in shown
    assert "attempt 1: open" in shown
    assert "this rollout is not sampled" in shown


def test_a_record_that_is_not_consistent_is_said_and_the_rest_is_shown(
    archive: Archive, site: Site, run_writer: Any
) -> None:
    envelope = run_writer.finish("r" * 36)
    envelope.rollout_finished.inline.tokens.rows[0].loss_mask.pop()
    store(archive, run_writer.envelopes)
    shown = page(site, f"/trace/{'r' * 36}")
    assert "the record is not consistent" in shown
    assert "rollout_finished" in shown


def test_runs_and_their_rollouts_are_listed_and_filtered(
    archive: Archive, site: Site, demo: Any
) -> None:
    store(archive, demo.envelopes)
    assert 'href="/runs/run-1"' in page(site, "/")
    shown = page(site, "/runs/run-1")
    assert "reward/mean" in shown
    assert demo.scored_id[-12:] in shown and demo.failed_id[-12:] in shown
    failed = page(site, "/runs/run-1?outcome=failed&phase=train&step=0")
    assert f">...{demo.scored_id[-12:]}<" in shown
    assert f">...{demo.scored_id[-12:]}<" not in failed and demo.failed_id[-12:] in failed


def test_steps_of_training_are_counted_from_1_and_slots_are_as_in_the_log(
    archive: Archive, site: Site, demo: Any
) -> None:
    demo.envelopes[-1].run_step_trained.metrics["reward/mean"] = 0.5
    store(archive, demo.envelopes)
    run = page(site, "/runs/run-1?phase=train&step=0")
    for shown in ("<title>step 1: 0.500</title>", ">step 1 x</a>", ">step 1</td>", ">train 1</td>"):
        assert shown in run, shown
    assert "train 0 / 0 / 0" in run
    assert ">step 4 x</a>" in page(site, "/runs/run-1?phase=evaluate&step=4")
    assert re.search(r"Trained in step</dt>\s*<dd[^>]*>1<", page(site, f"/trace/{demo.scored_id}"))


def test_long_lists_go_on_on_a_next_page(archive: Archive, site: Site, run_writer: Any) -> None:
    for number in range(205):
        run_writer.request(f"{number:036d}", sample=number)
    store(archive, run_writer.envelopes)
    seen: list[str] = []
    target = "/runs/run-1?outcome=open"
    while target:
        shown = page(site, target)
        seen += re.findall(r"\.\.\.(\d{12})<", shown)
        following = re.search(r'href="([^"]+)">Next page', shown)
        target = html.unescape(following.group(1)) if following else ""
    assert [int(text) for text in seen] == list(range(205))


def test_an_empty_archive_says_how_to_begin(site: Site) -> None:
    assert "hone train run.yaml" in page(site, "/")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/nothing", 404),
        ("/runs/nobody", 404),
        ("/runs/nobody/audit", 404),
        ("/trace/nobody", 404),
        ("/?page=nonsense", 400),
        ("/runs/run-1?step=-1", 400),
        ("/runs/run-1?outcome=lost", 400),
        ("/runs/run-1?page=nonsense", 400),
        ("/api/nothing", 404),
        ("/api/traces", 400),
        ("/api/traces?service=s&limit=x", 400),
        (f"/api/traces/{'00' * 16}", 404),
    ],
)
def test_requests_that_make_no_sense_are_answered(
    archive: Archive, site: Site, demo: Any, target: str, status: int
) -> None:
    store(archive, demo.envelopes)
    assert site.respond(target).status == status


def test_jaeger_clients_find_services_and_traces(archive: Archive, site: Site, demo: Any) -> None:
    trace_id = demo.scored_id.replace("-", "")
    root = Span(
        trace_id=trace_id,
        span_id="01" * 8,
        service_name="learner",
        name="request rollout",
        kind="producer",
        start_ns=10**9,
        end_ns=2 * 10**9,
        attributes={"n": 1, "x": float("inf"), "ok": True, "list": [1]},
    )
    child = dataclasses.replace(
        root,
        span_id="02" * 8,
        parent_span_id="01" * 8,
        service_name="rollout",
        name="chat",
        status="error",
        status_message="no",
    )
    orphan = dataclasses.replace(child, span_id="03" * 8, parent_span_id="09" * 8)
    store(archive, [], [root, child, orphan])

    def get(target: str) -> Any:
        # No NaN or Infinity: those are not JSON.
        return json.loads(page(site, target), parse_constant=lambda word: pytest.fail(word))["data"]

    assert get("/api/services") == ["learner", "rollout"]
    assert get("/api/services/rollout/operations") == ["chat"]
    (trace,) = get(f"/api/traces/{trace_id}")
    assert trace["traceID"] == trace_id
    assert get(f"/api/traces/{demo.scored_id}") == [trace]
    spans = {span["spanID"]: span for span in trace["spans"]}
    assert spans["01" * 8]["references"] == []
    assert spans["01" * 8]["startTime"] == 10**6
    assert spans["01" * 8]["duration"] == 10**6
    parent = {"refType": "CHILD_OF", "traceID": trace_id, "spanID": "01" * 8}
    assert spans["02" * 8]["references"] == [parent]
    assert {"key": "error", "type": "bool", "value": True} in spans["02" * 8]["tags"]
    assert "is not in the archive" in spans["03" * 8]["warnings"][0]
    process = trace["processes"][spans["02" * 8]["processID"]]
    assert process["serviceName"] == "rollout"
    assert get("/api/traces?service=rollout&operation=chat&limit=5") == [trace]
    assert get("/api/traces?service=rollout&end=1") == []


def test_markup_escapes_text_and_attributes_alike() -> None:
    built = tag("a", "<b>", tag("i", "&"), None, ["x", ["y"]], href='"><script>', class_="k")
    assert built == ('<a href="&quot;&gt;&lt;script&gt;" class="k">&lt;b&gt;<i>&amp;</i>xy</a>')


def test_unseen_characters_are_shown_as_numbers() -> None:
    assert visible("a\u202eb\x00\u2066\ud800") == "a[U+202E]b[U+0000][U+2066][U+D800]"
    assert visible("tab\tline\nfine") == "tab\tline\nfine"


def test_alarms_are_counted_where_runs_are_listed_and_named_where_a_run_is_shown(
    archive: Archive, site: Site, run_writer: Any
) -> None:
    run_writer.start()
    run_writer.train(0)
    run_writer.train(1)
    store(archive, run_writer.envelopes)
    assert "Alarms:" not in page(site, "/runs/run-1")
    run_writer.envelopes.clear()
    for step in (2, 3):
        run_writer.train(step)
        run_writer.envelopes[-1].run_step_trained.metrics["alarms/reward_hacking"] = 1.0
    later = [archived_event(100 + i, e) for i, e in enumerate(run_writer.envelopes)]
    archive.write(later, [])
    assert "Alarms: reward hacking in step 3; reward hacking in step 4" in page(site, "/runs/run-1")
    row = page(site, "/").partition("run-1")[2]
    assert ">4</td>" in row.partition(">2</td>")[0]


def test_counting_alarms_reads_no_figures(archive: Archive) -> None:
    query = (
        "EXPLAIN QUERY PLAN SELECT count(*) FROM steps WHERE run_id = 'r' "
        "AND instr(metrics_json, '\"alarms/') > 0"
    )
    (plan,) = archive._connection.execute(query).fetchall()
    assert "steps_with_alarms" in plan[-1]
