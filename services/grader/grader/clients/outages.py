"""Which endpoints seem to be down: then one call at a time is let through, to see, and the others fail at once.

Otherwise an endpoint that hangs would hold grading places for its whole time limit, one per rollout that waits for it.
"""

from dataclasses import dataclass

FAILURES = 3
"""In a row, before an endpoint seems to be down."""


@dataclass(slots=True)
class _Seen:
    failures: int = 0
    probing: bool = False


class Outages:
    """Failures in a row by endpoint; an endpoint that answers is forgotten."""

    def __init__(self) -> None:
        """Start with every endpoint up."""
        self._seen: dict[str, _Seen] = {}

    def admit(self, endpoint: str) -> bool:
        """Whether to call now; whoever is admitted must tell how it went."""
        seen = self._seen.get(endpoint)
        if seen is None or seen.failures < FAILURES:
            return True
        if seen.probing:
            return False
        seen.probing = True
        return True

    def answered(self, endpoint: str) -> None:
        """Note that an endpoint said something, whatever it was."""
        self._seen.pop(endpoint, None)

    def failed(self, endpoint: str) -> None:
        """Note that an endpoint said nothing usable for as long as it was asked."""
        seen = self._seen.setdefault(endpoint, _Seen())
        seen.failures += 1
        seen.probing = False

    def left(self, endpoint: str) -> None:
        """Note that a call was given up for other reasons."""
        seen = self._seen.get(endpoint)
        if seen is not None:
            seen.probing = False
