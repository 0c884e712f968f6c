"""What the bus raises beyond `servicekit.errors`, and what a handler raises to say that it is not the time yet."""

from servicekit.errors import DataLoss, FailedPrecondition, OutOfRange


class RetryLater(Exception):
    """Raised by a handler that cannot act yet: the event comes back after the delay.

    It does not count towards `max_deliver`, so waiting for somebody else's lease never becomes a dead letter.

    Args:
        delay_seconds: How long the event stays away, at least.
        reason: For the log.
    """

    def __init__(self, delay_seconds: float, reason: str = "") -> None:
        """Keeps the delay; see the class."""
        super().__init__(reason or f"retry in {delay_seconds} s")
        self.delay_seconds = delay_seconds


class LogTruncated(OutOfRange):
    """The log does not hold what a reader's cursor points at.

    Attributes:
        first_sequence: First sequence that the log still holds.
        last_sequence: Last sequence that the log ever gave out; 0 if none.
    """

    def __init__(self, *, start_sequence: int, first_sequence: int, last_sequence: int) -> None:
        """Says which of the log's two ends the cursor has fallen off."""
        if start_sequence < first_sequence:
            what = f"the log starts at {first_sequence}: earlier events were purged"
        else:
            what = f"the log ends at {last_sequence}: it is not the log that this cursor came from"
        super().__init__(
            f"cannot read from sequence {start_sequence}: {what}; read from {first_sequence} and rebuild "
            f"what lies before from the archive or from new rollouts",
            reason="LOG_TRUNCATED",
            attributable="infra",
        )
        self.start_sequence = start_sequence
        self.first_sequence = first_sequence
        self.last_sequence = last_sequence


class EventUnreadable(DataLoss):
    """A message of the log is no envelope; reading can go on after it.

    Attributes:
        sequence: Of the message.
    """

    def __init__(self, *, sequence: int, subject: str, problem: str) -> None:
        """Says which message it is and why it cannot be read."""
        super().__init__(
            f"sequence {sequence} on {subject} is not a hone.events.v1.Envelope: {problem}",
            reason="EVENT_UNREADABLE",
        )
        self.sequence = sequence


class ClaimLost(FailedPrecondition):
    """The claim belongs to somebody else, or to nobody, by now: stop, and commit nothing."""

    def __init__(self, message: str) -> None:
        """Says who holds the claim instead."""
        super().__init__(message, reason="CLAIM_LOST", attributable="infra")
