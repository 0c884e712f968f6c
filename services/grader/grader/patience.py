"""How long a record that cannot be graded is tried again.

Three kinds of fault: one that another try cannot mend ends at once; an outage (an endpoint, a critic, a sandbox service
that is away) is waited for by the clock, since rollout.finished was told; whatever else broke is a defect, which gets
a few tries and no more, since it would come back each time.
"""

import random
from dataclasses import dataclass

from eventbus.backoff import Backoff
from grader.results import GradingFaultError
from servicekit.errors import HoneError, InvalidArgument
from trajectory.types import GraderErrorKind

LONGEST_DELAY_SECONDS = 30.0
"""Between two tries: what was away is noticed to be back this soon."""
MAX_TRIES = 1000
"""However wrong a clock is: beyond them the log would give the event up by itself, without its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a record could not be graded."""

    error: GradingFaultError
    final: bool
    """Another try cannot mend it."""
    outage: bool
    """Something that grading needs is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When to try again."""

    seconds: float
    """Since rollout.finished was told; outages are waited for until then."""
    min_tries: int
    """What every record gets, however late it comes; after a defect it gets no more."""
    first_delay_seconds: float
    """Doubles with each try up to LONGEST_DELAY_SECONDS."""

    def delay_seconds(
        self, fault: Fault, tries: int, waited_seconds: float, rng: random.Random
    ) -> float | None:
        """Return when to try again; None for never.

        Args:
            fault: what stopped the last try.
            tries: so far, from 1.
            waited_seconds: since rollout.finished was told.
            rng: for jitter.
        """
        may_wait = fault.outage and waited_seconds < self.seconds and tries < MAX_TRIES
        if fault.final or not (tries < self.min_tries or may_wait):
            return None
        backoff = Backoff(
            first_seconds=self.first_delay_seconds,
            longest_seconds=max(self.first_delay_seconds, LONGEST_DELAY_SECONDS),
        )
        return backoff.delay_seconds(tries, rng)


def fault_of(err: Exception) -> Fault:
    """Say what an exception of grading means.

    A record that is not consistent, or is lost, is a fault of ours: another rollout of the task may still succeed.
    """
    if isinstance(err, GradingFaultError):
        return Fault(error=err, final=not err.retryable, outage=True)
    return Fault(
        error=GradingFaultError(
            err.message if isinstance(err, HoneError) else f"{type(err).__name__}: {err}",
            kind=GraderErrorKind.INTERNAL,
            retryable=True,
            client=False,
        ),
        final=isinstance(err, InvalidArgument),
        outage=isinstance(err, HoneError) and err.retryable,
    )
