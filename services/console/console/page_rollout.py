"""The page of one rollout: turn by turn, with its rewards, its events and its trace."""

from collections.abc import Sequence

from console.archive_reader import RolloutEntry
from console.charts import token_strip, waterfall
from console.markup import Child, Markup, tag
from console.page_layout import badge, page, strip, table
from console.page_runs import run_path, slot_text, trace_path
from console.span_tree import SpanTree
from console.views import RolloutView
from console.wording import clipped, duration, number, pretty_json, step_number
from trajectory.types import (
    ChatMessage,
    Failure,
    ImagePart,
    Masked,
    Role,
    RolloutRecord,
    Scored,
    ToolCallRecord,
    TurnRecord,
)


def rollout_page(view: RolloutView, attempts: Sequence[RolloutEntry]) -> bytes:
    """Shows a rollout; `attempts` are all rollouts of its slot."""
    entry = view.entry
    score = number(entry.score) if entry.score is not None else None
    return page(
        f"Rollout {entry.rollout_id}",
        tag("h1", "Rollout ", badge(entry.outcome), f" {score}" if score else None),
        tag("div", entry.rollout_id, class_="mono quiet"),
        strip(
            ("Task", entry.task_id),
            ("Slot (phase step / group / sample, from 0)", slot_text(entry)),
            ("Policy version", str(entry.policy_version)),
            ("Turns", str(entry.turn_count)),
            ("Tool calls", str(entry.tool_call_count)),
            ("Sampled tokens", str(entry.sampled_token_count)),
            ("Took", duration(entry.seconds)),
            ("Stopped because", view.record.stop_reason.value if view.record else ""),
            (
                "Trained in step",
                "" if entry.trained_in_step is None else str(step_number(entry.trained_in_step)),
            ),
        ),
        _attempts(entry, attempts),
        _outcome(view),
        _conversation(view),
        _tokens(view.record),
        _spans(view.tree),
        _timeline(view),
        crumbs=[("Runs", "/"), (entry.run_id, run_path(entry.run_id))],
        refresh=entry.outcome == "open",
    )


def trace_page(trace_id: str, tree: SpanTree) -> bytes:
    """Shows a trace that is no rollout's, for example that of a training step."""
    return page(
        f"Trace {trace_id}",
        tag("h1", "Trace"),
        tag("div", trace_id, class_="mono quiet"),
        _spans(tree),
    )


def _attempts(entry: RolloutEntry, attempts: Sequence[RolloutEntry]) -> Child:
    if len(attempts) < 2:
        return None
    chips = [
        tag(
            "a",
            f"attempt {other.attempt}: {other.outcome}",
            href=trace_path(other.rollout_id),
            class_="on" if other.rollout_id == entry.rollout_id else None,
        )
        for other in attempts
    ]
    return tag("h2", "Attempts of this slot"), tag("div", chips, class_="chips")


def _remarks(scored: Scored) -> list[str]:
    """What guards flagged, and which graders had nothing to say."""
    remarks = [
        f"Flagged {flag.name}{' (in the score)' if flag.priced else ''}: {flag.detail}"
        for flag in scored.flags
    ]
    remarks += [f"{error.name} could not be measured: {error.detail}" for error in scored.errors]
    if scored.abstained:
        remarks.append(f"Without an opinion: {', '.join(scored.abstained)}")
    return remarks


def _outcome(view: RolloutView) -> Child:
    match view.outcome:
        case Scored() as scored:
            rows: list[list[Child]] = [
                [
                    reward.name,
                    number(reward.value),
                    number(reward.weight) if reward.weight else "measured only",
                    tag("span", tag("i", style=f"width:{_percent(reward.value)}%"), class_="meter"),
                    reward.explanation,
                    f"{reward.grader_name} {reward.grader_version}",
                ]
                for reward in scored.rewards
            ]
            heads = [
                ("Reward", "t"), ("Value", "n"), ("Weight", "n"), ("", ""), ("Why", "w"), ("Grader", ""),
            ]  # fmt: skip
            why = f"Did not succeed: {scored.kind.value.replace('_', ' ')}" if scored.kind else None
            return (
                tag("h2", f"Rewards - score {number(scored.score)}"),
                tag("p", why, class_="quiet") if why else None,
                table(heads, rows, "The grader gave a score without components."),
                [tag("p", remark, class_="note") for remark in _remarks(scored)],
            )
        case Masked() as masked:
            kind = f"{masked.kind.value}: " if masked.kind else ""
            return tag("h2", "Outcome"), tag("p", f"Masked. {kind}{masked.reason}", class_="note")
        case Failure() as failure:
            retry = "a new attempt can succeed" if failure.retryable else "not worth a new attempt"
            return (
                tag("h2", "Outcome"),
                tag(
                    "p",
                    f"Failed: {failure.kind.value} ({failure.attributable.value}; {retry}). ",
                    clipped(failure.detail),
                    class_="note bad",
                ),
            )
        case _:
            return None


def _percent(value: float) -> str:
    # NaN compares false with everything, so it ends at 0 here.
    return f"{100 * min(value, 1.0):.1f}" if value > 0 else "0"


def _conversation(view: RolloutView) -> Child:
    head = tag("h2", "Turn by turn")
    if view.record_problem:
        return head, tag("p", view.record_problem, class_="note bad")
    if view.record is None:
        reason = "The agent is at work." if view.entry.outcome == "open" else "It never finished."
        return head, tag("p", f"There is no record. {reason}", class_="quiet")
    record = view.record
    said = [i for i, message in enumerate(record.messages) if message.role is Role.ASSISTANT]
    # Examples in the prompt are assistant messages too: the turns are the last of them.
    turn_at = (
        dict(zip(said[-len(record.turns) :], record.turns, strict=False)) if record.turns else {}
    )
    first_turn = min(turn_at, default=len(record.messages))
    cards = [
        _turn(message, turn_at.get(index))
        for index, message in enumerate(record.messages)
        # Results of the agent's calls are shown with the calls.
        if message.role is not Role.TOOL or index < first_turn
    ]
    return head, cards


def _turn(message: ChatMessage, turn: TurnRecord | None) -> Markup:
    if turn is None:
        title, facts = tag("b", message.role.value), message.name
    else:
        title = tag("b", f"turn {turn.turn}")
        facts = (
            f"version {turn.policy_version} - {turn.prompt_token_count} tokens read, "
            f"{turn.sampled_token_count} sampled - {duration(turn.generate_seconds)} generating"
        )
        if turn.tool_calls:
            facts += f", {duration(turn.tools_seconds)} in tools"
    calls = (
        [_call(record) for record in turn.tool_calls]
        if turn is not None
        else [
            _block(f"calls {call.name}", pretty_json(call.arguments_json))
            for call in message.tool_calls
        ]
    )
    return tag(
        "article",
        tag("header", tag("span", title), tag("span", facts)),
        tag("div", _thinking(message), _content(message), calls, class_="body"),
        class_="card turn policy" if turn is not None else "card turn",
    )


def _thinking(message: ChatMessage) -> Child:
    if not message.reasoning_content:
        return None
    return tag(
        "details",
        tag("summary", f"thinking, {len(message.reasoning_content)} characters"),
        tag("pre", clipped(message.reasoning_content)),
        class_="thinking",
    )


def _content(message: ChatMessage) -> list[Child]:
    return [
        tag("pre", clipped(part), class_="said") if isinstance(part, str) else _image(part)
        for part in message.content
        if part
    ]


def _image(part: ImagePart) -> Markup:
    # Never loaded: an address that an agent wrote would be called by whoever looks at the page.
    where = part.uri or f"{len(part.data)} bytes inline"
    return tag("p", f"[image {part.media_type} {where}]", class_="quiet")


def _call(record: ToolCallRecord) -> list[Child]:
    failed = bool(record.error_kind)
    caption = f"result - {record.error_kind}" if failed else "result"
    return [
        _block(f"calls {record.call.name}", pretty_json(record.call.arguments_json)),
        _block(caption, record.result, error=failed),
    ]


def _block(caption: str, content: str, *, error: bool = False) -> Markup:
    return tag(
        "div",
        tag("div", caption, class_="cap"),
        tag("pre", clipped(content)),
        class_="block error" if error else "block",
    )


def _tokens(record: RolloutRecord | None) -> Child:
    if record is None or not record.tokens.rows:
        return None
    rows = []
    for row in record.tokens.rows[:50]:
        sampled = sum(row.loss_mask)
        told = f"{len(row.token_ids)} tokens, {sampled} in the loss"
        rows.append(tag("div", token_strip(row), tag("small", told), class_="tokenrow"))
    nan = record.tokens.nan_logprob_count
    return (
        tag("h2", "Tokens"),
        tag("div", rows, class_="card"),
        tag("p", f"{nan} sampled tokens had no finite log-probability.", class_="note")
        if nan
        else None,
    )


def _spans(tree: SpanTree) -> Child:
    head = tag("h2", "Trace")
    if not tree.rows:
        return head, tag("p", "No span has arrived: this rollout is not sampled.", class_="quiet")
    services = dict.fromkeys(row.span.service_name for row in tree.rows)
    colours = {name: f"s{1 + index % 7}" for index, name in enumerate(services)}
    missing = tree.num_missing_parents
    told = f"Spans: {len(tree.rows)}, services: {len(services)}, {duration(tree.seconds)} in all"
    return (
        head,
        tag("p", told, class_="quiet"),
        tag("p", f"Spans whose parent is not here: {missing}", class_="note") if missing else None,
        tag("div", waterfall(tree, colours), class_="card"),
    )


def _timeline(view: RolloutView) -> Child:
    rows: list[list[Child]] = [
        [
            f"{event.time:%H:%M:%S.%f}"[:-3],
            tag("code", event.type),
            event.source,
            str(event.epoch) if event.epoch else "",
            clipped(event.note),
        ]
        for event in view.timeline[:1000]
    ]
    heads = [("Time (UTC)", "t"), ("Event", ""), ("Source", ""), ("Epoch", "n"), ("What", "w")]
    return tag("h2", "Events"), table(heads, rows, "No event has been told.")
