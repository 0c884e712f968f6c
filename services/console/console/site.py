"""What is at which address: the page for people, and Jaeger's query API for tools.

Plain functions from a path and a query to a response; `http_server` puts them on a port.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from console import jaeger
from console.archive_reader import ArchiveReader, RolloutEntry, RolloutFilter, StoredEvent
from console.audit import AuditReport
from console.page_layout import message_page
from console.page_rollout import rollout_page, trace_page
from console.page_runs import OUTCOMES, audit_page, run_page, run_path, runs_page
from console.paging import make_token, read_token
from console.span_tree import build_tree
from console.spans import Span
from console.views import RolloutView
from servicekit.errors import InvalidArgument, NotFound

PAGE_SIZE = 100
MAX_TRACES = 1500
"""Traces that one search returns at most, as in Jaeger."""

HTML = "text/html; charset=utf-8"
JSON = "application/json"

ViewRollout = Callable[[RolloutEntry, Sequence[StoredEvent], Sequence[Span]], RolloutView]
AuditRun = Callable[[str], AuditReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What goes back over HTTP."""

    status: int
    content_type: str
    body: bytes


def rollout_id_of(trace_id: str) -> str:
    """Returns the rollout_id that a trace id is, with or without dashes; other text stays as it is."""
    try:
        return str(uuid.UUID(trace_id))
    except ValueError:
        return trace_id


def trace_id_of(rollout_id: str) -> str:
    """Returns the trace id that a rollout_id is; other text stays as it is."""
    try:
        return uuid.UUID(rollout_id).hex
    except ValueError:
        return rollout_id


class Site:
    """Answers requests from the archive."""

    def __init__(self, reader: ArchiveReader, *, view: ViewRollout, audit: AuditRun) -> None:
        """Reads through `reader`; `view` and `audit` know how to read the stored bytes."""
        self._reader = reader
        self._view = view
        self._audit = audit

    def respond(self, target: str) -> Response:
        """Answers GET for a path with its query."""
        address = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(address.query).items()}
        parts = [unquote(part) for part in address.path.split("/") if part]
        if parts[:1] == ["api"]:
            return self._api(parts[1:], query)
        try:
            return Response(status=200, content_type=HTML, body=self._page(parts, query))
        except NotFound as err:
            body = message_page("Not found", err.message)
            return Response(status=404, content_type=HTML, body=body)
        except InvalidArgument as err:
            body = message_page("That request makes no sense", err.message)
            return Response(status=400, content_type=HTML, body=body)

    def _page(self, parts: Sequence[str], query: Mapping[str, str]) -> bytes:
        match parts:
            case []:
                return self._runs(query)
            case ["runs", run_id]:
                return self._run(run_id, query)
            case ["runs", run_id, "audit"]:
                return self._audit_page(run_id)
            case ["trace" | "rollouts", trace_id]:
                return self._rollout(trace_id)
            case _:
                raise NotFound(f"there is no page /{'/'.join(parts)}")

    def _runs(self, query: Mapping[str, str]) -> bytes:
        before = read_token(query.get("page", ""), ["runs"])
        runs = self._reader.runs(limit=PAGE_SIZE + 1, before_position=before)
        shown, more = runs[:PAGE_SIZE], len(runs) > PAGE_SIZE
        next_href = f"/?page={make_token(shown[-1].first_position, ['runs'])}" if more else ""
        return runs_page(shown, next_href)

    def _run(self, run_id: str, query: Mapping[str, str]) -> bytes:
        run = self._reader.run(run_id)
        if run is None:
            raise NotFound(f"the log knows no run {run_id}")
        outcome = query.get("outcome", "")
        if outcome not in ("", *OUTCOMES):
            raise InvalidArgument(f"outcome is {outcome}; one of {', '.join(OUTCOMES)} is right")
        where = RolloutFilter(
            run_id=run_id, phase=query.get("phase", ""), step=_step(query), outcome=outcome
        )
        question = [where.run_id, where.phase, where.step, where.outcome]
        after = read_token(query.get("page", ""), question) or 0
        found = self._reader.rollouts(where, limit=PAGE_SIZE + 1, after_position=after)
        shown, next_href = found[:PAGE_SIZE], ""
        if len(found) > PAGE_SIZE:
            token = make_token(shown[-1].first_position, question)
            kept = {key: query[key] for key in ("phase", "step", "outcome") if key in query}
            next_href = f"{run_path(run_id)}?{urlencode({**kept, 'page': token})}"
        return run_page(
            run,
            self._reader.steps(run_id),
            self._reader.result_counts(run_id),
            self._reader.outcome_counts(run_id),
            where,
            shown,
            next_href,
        )

    def _audit_page(self, run_id: str) -> bytes:
        if self._reader.run(run_id) is None:
            raise NotFound(f"the log knows no run {run_id}")
        return audit_page(run_id, self._audit(run_id))

    def _rollout(self, trace_id: str) -> bytes:
        entry = self._reader.rollout(rollout_id_of(trace_id))
        spans = self._reader.spans(trace_id_of(trace_id))
        if entry is None:
            if not spans:
                raise NotFound(f"neither an event nor a span of {trace_id} is in the archive")
            return trace_page(trace_id_of(trace_id), build_tree(spans))
        events = self._reader.rollout_events(entry.rollout_id)
        return rollout_page(self._view(entry, events, spans), self._reader.attempts(entry))

    def _api(self, parts: Sequence[str], query: Mapping[str, str]) -> Response:
        match parts:
            case ["services"]:
                return _json(jaeger.envelope(list(self._reader.operations())))
            case ["services", name, "operations"]:
                return _json(jaeger.envelope(self._reader.operations(name).get(name, [])))
            case ["traces"]:
                return self._find_traces(query)
            case ["traces", trace_id]:
                spans = self._reader.spans(trace_id_of(trace_id))
                if not spans:
                    return _json(jaeger.envelope(None, error=(404, "trace not found")), status=404)
                return _json(jaeger.envelope([jaeger.trace(trace_id_of(trace_id), spans)]))
            case _:
                return _json(jaeger.envelope(None, error=(404, "no such address")), status=404)

    def _find_traces(self, query: Mapping[str, str]) -> Response:
        try:
            limit = min(max(int(query.get("limit", "20")), 1), MAX_TRACES)
            start_us, end_us = int(query.get("start", "0")), int(query.get("end", str(1 << 52)))
        except ValueError as err:
            return _json(jaeger.envelope(None, error=(400, str(err))), status=400)
        if "service" not in query:
            error = (400, "parameter 'service' is required")
            return _json(jaeger.envelope(None, error=error), status=400)
        found = self._reader.find_traces(
            service_name=query["service"],
            name=query.get("operation", ""),
            start_ns=max(start_us, 0) * 1000,
            end_ns=min(end_us, 1 << 52) * 1000,
            limit=limit,
        )
        traces = [jaeger.trace(trace_id, self._reader.spans(trace_id)) for trace_id in found]
        return _json(jaeger.envelope(traces))


def _step(query: Mapping[str, str]) -> int | None:
    text = query.get("step", "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise InvalidArgument(f"step is {text}; a number from 0 is right")
    return int(text)


def _json(value: Mapping[str, object], *, status: int = 200) -> Response:
    return Response(status=status, content_type=JSON, body=json.dumps(value).encode("utf-8"))
