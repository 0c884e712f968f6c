"""One rollout for people: task, turns, calls and results, tokens, rewards, and its trace as a waterfall."""

from collections.abc import Sequence
from datetime import UTC

from hone.common.v1 import message_pb2
from hone.console.v1 import console_pb2
from hone.events.v1 import events_pb2
from rich.console import Console
from rich.text import Text

from hone_cli.plain import enum_word
from hone_cli.render_run import console
from hone_cli.text import number, safe, shortened, span, table
from hone_cli.waterfall import SpanLine, verdict, waterfall

_TEXT_LIMIT = 4000


def print_rollouts(rollouts: Sequence[console_pb2.RolloutSummary]) -> None:
    """Prints a table of rollouts in the order in which they were requested."""
    headings = (
        "rollout",
        "slot",
        "task",
        "outcome",
        "score",
        "turns",
        "calls",
        "tokens",
        "version",
        "took",
    )
    rows = [
        (
            safe(item.rollout_id),
            slot_of(item),
            safe(item.task_id),
            outcome_of(item),
            number(item.score) if item.outcome == "scored" else "-",
            str(item.turn_count),
            str(item.tool_call_count),
            str(item.sampled_token_count),
            str(item.policy_version),
            span(item.duration.ToTimedelta().total_seconds()),
        )
        for item in rollouts
    ]
    left = frozenset({"rollout", "slot", "task", "outcome"})
    console().print(table(headings, rows, left=left))


def slot_of(item: console_pb2.RolloutSummary) -> str:
    """phase/step/group/sample, each as the log has it, from 0; with the attempt where it is not the first."""
    phase = enum_word(item.slot.DESCRIPTOR.fields_by_name["phase"], item.slot.phase)
    text = f"{phase}/{item.slot.step}/{item.slot.group_index}/{item.slot.sample_index}"
    return f"{text} attempt {item.attempt}" if item.attempt else text


def outcome_of(item: console_pb2.RolloutSummary) -> str:
    """The outcome with its kind."""
    fields = item.DESCRIPTOR.fields_by_name
    kind = enum_word(fields["failure_kind"], item.failure_kind) or enum_word(
        fields["kind"], item.kind
    )
    return f"{item.outcome} ({kind})" if kind else item.outcome


def print_rollout(reply: console_pb2.GetRolloutResponse) -> None:
    """Prints everything that is known of a rollout."""
    out, item = console(), reply.summary
    out.print(Text(f"rollout {safe(item.rollout_id)}", style="bold"))
    facts = [
        ("run", f"{safe(item.slot.run_id)}, slot {slot_of(item)}"),
        ("task", safe(item.task_id)),
        ("outcome", outcome_of(item)),
        ("took", span(item.duration.ToTimedelta().total_seconds())),
        ("policy version", str(item.policy_version)),
        (
            "trained in step",
            str(reply.trained_in_step + 1) if reply.HasField("trained_in_step") else "none so far",
        ),
    ]
    for name, value in facts:
        out.print(f"  {name:<15} {value}")
    if reply.HasField("record"):
        _print_conversation(out, reply.record)
        _print_tokens(out, reply.record)
    else:
        out.print("\nno record: the rollout did not finish")
    _print_outcome(out, reply)
    _print_trace(out, reply)


def _print_conversation(out: Console, record: events_pb2.RolloutRecord) -> None:
    roles = message_pb2.ChatMessage.DESCRIPTOR.fields_by_name["role"]
    out.print(Text("\nconversation", style="bold"))
    for message in record.messages:
        role = enum_word(roles, message.role)
        label = f"{role} ({safe(message.name)})" if message.name else role
        if message.tool_call_id:
            label += f" answers {safe(message.tool_call_id)}"
        out.print(Text(f"  {label}", style="cyan"))
        if message.reasoning_content:
            _print_block(out, f"[thinking] {message.reasoning_content}")
        _print_block(out, _content(message))
        for call in message.tool_calls:
            text = f"calls {call.name}({call.arguments_json})  id {call.tool_call_id}"
            _print_block(out, text)


def _content(message: message_pb2.ChatMessage) -> str:
    parts = []
    for part in message.parts:
        if part.WhichOneof("part") == "image":
            where = part.image.uri or f"{len(part.image.data)} bytes"
            parts.append(f"[image {part.image.media_type} {where}]")
        else:
            parts.append(part.text)
    return "".join(parts)


def _print_block(out: Console, text: str) -> None:
    for line in safe(shortened(text, _TEXT_LIMIT)).splitlines():
        out.print(f"    {line}")


def _print_tokens(out: Console, record: events_pb2.RolloutRecord) -> None:
    out.print(Text("\nturns", style="bold"))
    headings = ("turn", "version", "prompt", "sampled", "generating", "tools", "calls")
    rows = [
        (
            str(turn.turn),
            str(turn.policy_version),
            str(turn.prompt_token_count),
            str(turn.sampled_token_count),
            span(turn.generate_duration.ToTimedelta().total_seconds()),
            span(turn.tools_duration.ToTimedelta().total_seconds()),
            ", ".join(_call_word(call) for call in turn.tool_calls) or "-",
        )
        for turn in record.turns
    ]
    for line in table(headings, rows, left=frozenset({"calls"})).splitlines():
        out.print(f"  {line}")
    reason = enum_word(record.DESCRIPTOR.fields_by_name["stop_reason"], record.stop_reason)
    training_rows = record.tokens.rows
    sampled = sum(sum(row.loss_mask) for row in training_rows)
    total = sum(len(row.token_ids) for row in training_rows)
    text = f"{total} tokens in {len(training_rows)} training row{'s' if len(training_rows) != 1 else ''}"
    text += f", {sampled} sampled by the policy at temperature {number(record.tokens.sampling.temperature)}"
    if record.tokens.nan_logprob_count:
        text += (
            f", {record.tokens.nan_logprob_count} masked for a log-probability that is not finite"
        )
    out.print(f"  {text}; stopped: {reason.replace('_', ' ')}")


def _call_word(call: events_pb2.ToolCallRecord) -> str:
    name = safe(call.call.name)
    return f"{name} failed: {safe(call.error_kind)}" if call.error_kind else name


def _print_outcome(out: Console, reply: console_pb2.GetRolloutResponse) -> None:
    which = reply.WhichOneof("outcome")
    if which == "failure":
        fields = reply.failure.DESCRIPTOR.fields_by_name
        kind = enum_word(fields["kind"], reply.failure.kind)
        whose = enum_word(fields["attributable"], reply.failure.attributable)
        again = "retryable" if reply.failure.retryable else "not retryable"
        out.print(Text("\nfailure", style="bold red"))
        out.print(f"  {kind} ({whose}, {again}): {safe(reply.failure.detail)}")
    elif which == "reward_assigned":
        assigned = reply.reward_assigned
        out.print(Text("\nrewards", style="bold"))
        if assigned.WhichOneof("outcome") == "masked":
            out.print(f"  masked: {safe(assigned.masked.reason)}")
            return
        for reward in assigned.scored.rewards:
            why = f"  {safe(reward.explanation)}" if reward.explanation else ""
            origin = f"{safe(reward.grader_name)}@{safe(reward.grader_version)}"
            out.print(
                f"  {safe(reward.name):<20} {number(reward.value):>9}  "
                f"weight {number(reward.weight)}  {origin}{why}"
            )
        out.print(f"  {'score':<20} {number(assigned.scored.score):>9}")
        for flag in assigned.scored.flags:
            priced = ", in the score" if flag.priced else ""
            out.print(f"  flagged {safe(flag.name)}{priced}: {safe(flag.detail)}")
        for error in assigned.scored.errors:
            out.print(f"  {safe(error.name)} could not be measured: {safe(error.detail)}")
        if assigned.scored.abstained:
            out.print(f"  without an opinion: {safe(', '.join(assigned.scored.abstained))}")


def _print_trace(out: Console, reply: console_pb2.GetRolloutResponse) -> None:
    trace_id = reply.summary.rollout_id.replace("-", "")
    spans = [span_line(item) for item in reply.spans]
    out.print(Text(f"\ntrace {trace_id}", style="bold"))
    if not spans:
        out.print("  no spans: this rollout was not sampled, or they have not arrived yet")
        return
    colours = {"error": "red", "orphan": "yellow"}
    for text, status in waterfall(spans):
        out.print(Text(f"  {safe(text)}", style=colours.get(status, "")))
    problems = verdict(spans, trace_id)
    if problems:
        for problem in problems:
            out.print(Text(f"  {problem}", style="bold red"))
    else:
        out.print(f"  all {len(spans)} spans share trace id {trace_id}; no span lacks its parent")


def span_line(item: console_pb2.Span) -> SpanLine:
    """The archive's span as the waterfall wants it."""
    return SpanLine(
        trace_id=item.trace_id,
        span_id=item.span_id,
        parent_id=item.parent_span_id,
        service=item.service_name,
        name=item.name,
        start=item.start_time.ToDatetime(UTC).timestamp(),
        seconds=item.duration.ToTimedelta().total_seconds(),
        status=item.status,
        status_message=item.status_message,
    )
