"""Event types, their dotted names and their subjects: `hone.v1.<noun>.<past participle>.<run_id>`."""

import difflib
import re
from collections.abc import Iterable, Mapping

from servicekit.errors import InvalidArgument

PREFIX = "hone.v1"
"""First two tokens of every subject."""

TYPES: Mapping[str, str] = {
    "rollout_requested": "rollout.requested",
    "rollout_started": "rollout.started",
    "rollout_turn": "turn.taken",
    "rollout_finished": "rollout.finished",
    "rollout_failed": "rollout.failed",
    "reward_assigned": "reward.assigned",
    "tool_called": "tool.called",
    "sandbox_created": "sandbox.created",
    "sandbox_destroyed": "sandbox.destroyed",
    "policy_published": "policy.published",
    "run_started": "run.started",
    "run_step_planned": "step.planned",
    "run_step_trained": "step.trained",
    "run_finished": "run.finished",
    "dead_lettered": "message.dead_lettered",
    "run_rolled_back": "run.rolled_back",
}
"""Dotted type by the payload's field name in the envelope."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def check_types(types: Iterable[str]) -> list[str]:
    """Returns the types without repeats, in order.

    Raises:
        InvalidArgument: one is not a payload field of the envelope.
    """
    result = list(dict.fromkeys(types))
    for name in result:
        if name not in TYPES:
            near = difflib.get_close_matches(name, TYPES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(TYPES)}"
            raise InvalidArgument(
                f"event type {name!r} is not a payload of hone.events.v1.Envelope{hint}",
                reason="EVENT_TYPE_UNKNOWN",
                violations={"types": f"unknown: {name}"},
            )
    return result


def check_name(field: str, name: str) -> str:
    """Returns a name that can be one token of a subject or a key.

    Raises:
        InvalidArgument: it is empty, longer than 128, or holds anything but letters, digits, _ and -.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"{field} {name!r} cannot be part of a subject: use 1 to 128 letters, digits, '_' or '-'",
            reason=f"{field.upper()}_INVALID",
            violations={field: "must match [A-Za-z0-9_-]{1,128}"},
        )
    return name


def check_run_id(run_id: str) -> str:
    """Returns a run_id that can be one token of a subject; raises InvalidArgument for any other."""
    return check_name("run_id", run_id)


def subject(type_name: str, run_id: str) -> str:
    """Returns the subject on which a type of event of a run travels."""
    return f"{PREFIX}.{TYPES[type_name]}.{run_id}"


def filter_subjects(types: Iterable[str], run_id: str | None) -> list[str]:
    """Returns the filters that let pass the types (none given: all of them) of one run or of all."""
    last = "*" if run_id is None else check_run_id(run_id)
    names = check_types(types)
    if not names:
        return [f"{PREFIX}.*.*.{last}"]
    return [f"{PREFIX}.{TYPES[name]}.{last}" for name in names]


def matches(subject_text: str, filters: Iterable[str]) -> bool:
    """Tells whether a subject passes one of the filters; `*` stands for one token."""
    tokens = subject_text.split(".")
    for text in filters:
        wanted = text.split(".")
        if len(wanted) == len(tokens) and all(
            w in ("*", t) for w, t in zip(wanted, tokens, strict=True)
        ):
            return True
    return False
