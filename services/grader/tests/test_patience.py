"""How long a record that cannot be graded is tried again."""

import random

import pytest

from eventbus.jetstream.options import BusOptions
from grader.patience import LONGEST_DELAY_SECONDS, Fault, Patience, fault_of
from grader.results import GradingFaultError
from servicekit.errors import HoneError, InvalidArgument, NotFound, Unavailable
from trajectory.types import GraderErrorKind

PATIENCE = Patience(seconds=600, min_tries=5, first_delay_seconds=2)
ERROR = GradingFaultError("away", kind=GraderErrorKind.SERVER, retryable=True, client=False)
OUTAGE = Fault(error=ERROR, final=False, outage=True)


def test_delays_grow_and_stay_below_the_longest() -> None:
    rng = random.Random(1)
    delays = [PATIENCE.delay_seconds(OUTAGE, tries, 0, rng) for tries in range(1, 1000)]
    assert all(delay is not None and delay <= LONGEST_DELAY_SECONDS for delay in delays)
    assert delays[0] is not None and delays[0] <= 2
    assert delays[900] is not None and delays[900] >= LONGEST_DELAY_SECONDS / 2


def test_an_outage_of_all_the_patience_needs_fewer_deliveries_than_the_log_grants() -> None:
    longest = Patience(seconds=14400, min_tries=5, first_delay_seconds=2)
    rng, waited, tries = random.Random(1), 0.0, 0
    while True:
        tries += 1
        delay = longest.delay_seconds(OUTAGE, tries, waited, rng)
        if delay is None:
            break
        waited += min(delay, LONGEST_DELAY_SECONDS / 2)
    assert tries < 1000


@pytest.mark.parametrize(
    ("err", "final", "outage"),
    [
        (ERROR, False, True),
        (
            GradingFaultError("bad", kind=GraderErrorKind.CODE, retryable=False, client=True),
            True,
            True,
        ),
        (Unavailable("the object store is away"), False, True),
        (NotFound("the record is lost"), False, False),
        (InvalidArgument("record: tokens: of unequal length"), True, False),
        (ZeroDivisionError("a defect"), False, False),
    ],
)
def test_only_what_is_away_is_waited_for(err: Exception, final: bool, outage: bool) -> None:
    fault = fault_of(err)
    assert (fault.final, fault.outage) == (final, outage)
    if not isinstance(err, GradingFaultError):
        assert fault.error.retryable and not fault.error.client
    if isinstance(err, HoneError):
        assert fault.error.detail == err.message


def test_an_event_from_a_clock_that_is_days_ahead_ends_before_the_log_gives_it_up() -> None:
    rng, tries = random.Random(1), 1
    while PATIENCE.delay_seconds(OUTAGE, tries, -1e6, rng) is not None:
        tries += 1
    consumer_default, options = 5, BusOptions()
    assert PATIENCE.min_tries < tries < consumer_default + options.spare_deliveries


def test_a_defect_gets_its_tries_and_no_more() -> None:
    rng = random.Random(0)
    defect = Fault(error=ERROR, final=False, outage=False)
    tried = [PATIENCE.delay_seconds(defect, tries, 0, rng) is not None for tries in range(1, 7)]
    assert tried == [True, True, True, True, False, False]
