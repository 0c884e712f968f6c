"""Event ids are derived, so that telling a fact twice tells it once.

The id is also the Nats-Msg-Id: inside its duplicate window the stream itself admits only one event per id, and
consumers that record ids in their own store admit only one for ever.
"""

import uuid

NAMESPACE = uuid.UUID("6f1b1f5e-3c0a-5d0e-9a4e-7a6f6e65b001")
"""Namespace of all event ids; changing it makes every replay look new."""

ROLLOUT_ENDED = "rollout.ended"
"""Shared by rollout.finished and the rollout service's rollout.failed: an attempt ends once."""

ATTEMPT_JUDGED = "attempt.judged"
"""Shared by reward.assigned and the grader's rollout.failed: a grader version judges an attempt once."""


def event_id(subject_id: str, type: str, ordinal: int = 0, grader_version: str = "") -> str:
    """Returns the UUIDv5 of what happened.

    Args:
        subject_id: rollout_id, or run_id for events of a run.
        type: Dotted type, for example `rollout.requested`, `rollout.ended` or `attempt.judged`.
        ordinal: Tells apart events of one type and subject, for example turns.
        grader_version: Tells apart judgements of one attempt.
    """
    return str(uuid.uuid5(NAMESPACE, f"{subject_id}\n{type}\n{ordinal}\n{grader_version}"))


def dead_letter_id(consumer: str, sequence: int) -> str:
    """Returns the id of the dead letter that a consumer writes about one message of the stream."""
    return event_id(f"{consumer}/{sequence}", "message.dead_lettered")
