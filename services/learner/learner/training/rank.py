"""One rank of a gang: `python -m learner.training.rank`, started by `workers/gang.py`.

RANK, LOCAL_RANK and WORLD_SIZE are as torchrun sets them. The first rank takes calls from the service, hands them on to
the others and answers; the others do what it hands on. An error that all ranks meet alike is an answer; any other ends
the rank, and with it the gang. A rank ends at once when the service is gone, whatever it is in the middle of: waiting
for another rank that will never come, or writing a checkpoint that the next ranks may be writing as well.
"""

import os
import pickle
import queue
import signal
import sys
import threading
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed

from learner.ports import Stopped
from learner.training.errors import NonFiniteStep
from learner.training.session import Session, SessionSettings
from learner.training.sharded import Sharded

PATIENCE = timedelta(days=7)
"""How long a rank waits for the next call: rollouts take as long as they take. A rank that ends is seen at once."""

STEPS = ("rollout_step", "sft_step", "preference_step", "measure", "measure_rows")
"""Calls that tell how far they are and may be stopped."""


class Desk:
    """The first rank's connection to the service."""

    def __init__(self, connection: Connection) -> None:
        """Listens on a thread, so that a stop is heard in the middle of a step."""
        self.stop = threading.Event()
        self._connection = connection
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="desk", daemon=True).start()

    def next(self) -> Any:
        """Returns what the service sent next; None at the end."""
        return self._calls.get()

    def tell(self, kind: str, value: object) -> None:
        """Answers."""
        self._connection.send((kind, value))

    def _listen(self) -> None:
        while True:
            try:
                found = self._connection.recv()
            except (EOFError, OSError):
                found = None
            if found == "stop":
                self.stop.set()
                continue
            if found is None:
                # The service is gone or wants the end: a step under way is undone.
                self.stop.set()
            self._calls.put(found)
            if found is None:
                return


def _hand_on(value: Any) -> Any:
    """Gives what the first rank has to all."""
    box = [value]
    distributed.broadcast_object_list(box)
    return box[0]


def _sendable(error: Exception) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]  # loads gives Any
    except Exception:  # whatever it is, what it says is what counts
        return RuntimeError(str(error))


def serve(session: Session, desk: Desk | None) -> None:
    """Does what the service asks for until it asks for the end."""
    stop = threading.Event() if desk is None else desk.stop
    while True:
        call = _hand_on(None if desk is None else desk.next())
        if call is None:
            return
        name, arguments = call

        def progress(done: int, total: int) -> None:
            if desk is not None:
                desk.tell("progress", (done, total))

        watched = (progress, stop) if name in STEPS else ()
        try:
            returned = getattr(session, name)(*arguments, *watched)
        except (Stopped, NonFiniteStep) as error:
            if desk is not None:
                desk.tell("raised", _sendable(error))
        except Exception as error:  # the service is told, then this rank ends by it
            if desk is not None:
                desk.tell("raised", _sendable(error))
            raise
        else:
            if desk is not None:
                desk.tell("returned", returned)


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise SystemExit(
            f"train.processes: rank {local_rank} has no GPU of its own; this machine has "
            f"{torch.cuda.device_count()}"
        )
    return torch.device("cuda", local_rank)


def _end_with(lifeline: int) -> None:
    """Ends this process when the service has closed its end of a pipe."""

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def main() -> None:
    """Joins the gang and serves."""
    # The learner ends the run in order and then its ranks, whoever else is told to end.
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, signal.SIG_IGN)
    _end_with(int(os.environ["HONE_RANKS_END_WITH"]))
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = _device(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{os.environ['HONE_RANKS_MEET_AT']}",
        rank=rank,
        world_size=count,
        timeout=PATIENCE,
    )
    desk = None
    if rank == 0:
        desk = Desk(Connection(int(os.environ["HONE_RANKS_TALK_OVER"])))
    settings: SessionSettings | None = _hand_on(None if desk is None else desk.next())
    if settings is not None:
        serve(Session(settings, Sharded(device), device), desk)
    distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception:  # printed as ever; only how the process ends is different
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        # Without waiting for threads or the other ranks, which wait for this one.
        os._exit(1)
