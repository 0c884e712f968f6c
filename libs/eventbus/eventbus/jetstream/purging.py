"""The order in which a run leaves NATS, so that a purge that was cut short can be repeated."""

from collections.abc import Iterable, Iterator

from eventbus import subjects
from eventbus.bus import STREAM
from eventbus.jetstream.streams import CLAIMS_BUCKET


def purges_of_run(run_id: str, rollout_ids: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the stream and the subject of each purge, in order.

    Requests go first: without its claim, a request that is still in the stream could run again. All other events go
    last: they name the rollouts whose claims a repeated purge has to remove.

    Args:
        run_id: Run to remove.
        rollout_ids: Rollouts that its events name.
    """
    (requests,) = subjects.filter_subjects(["rollout_requested"], run_id)
    (everything,) = subjects.filter_subjects((), run_id)
    yield STREAM, requests
    for rollout_id in sorted(rollout_ids):
        yield f"KV_{CLAIMS_BUCKET}", f"$KV.{CLAIMS_BUCKET}.{rollout_id}"
    yield STREAM, everything
