"""The ranks of a run with `train.processes` above 1: started as one, ended as one.

The service talks to the first rank alone, which hands every call on to the others; each computes its part. Where one
rank ends, all are ended and the call says which one it was: the run fails, and resumed it goes on from its checkpoint.
The ranks are processes of this machine that run `learner.training.rank`, and know each other as those of torchrun do.
Each holds the end of a pipe that this process keeps open: a rank ends with the learner, however that ends.
"""

import contextlib
import math
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from learner.ports import Restored, ScoredRollout
from servicekit.errors import Unavailable

if TYPE_CHECKING:
    from learner.training.rendered import RenderedPair
    from learner.training.rows import MaskedRow
    from learner.training.session import SessionSettings

Progress = Callable[[int, int], None]

MODULE = "learner.training.rank"
POLL_SECONDS = 0.2
"""How often a call looks whether someone asked for the end, or a rank has ended."""

CLOSE_SECONDS = 20.0
"""Time that ranks have to end by themselves."""

MEETS_IN = "meet-"
"""Begin of the name of the folder, beside the logs, where the ranks find each other."""

LAST_WORDS = 600
"""Characters of a rank's log that an error repeats."""


def rank_environment(
    rank: int, count: int, threads: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment of one of `count` ranks of this machine: what torchrun sets, over what is inherited.

    OMP_NUM_THREADS stays where it is inherited; else it is `threads`, and where that is 0 the rank's share of what one
    process would take, since ranks that take all cores each wait for one another.
    """
    from modelstore.compute import threads_of_each

    return {
        "OMP_NUM_THREADS": str(threads or threads_of_each(count)),
        **inherited,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def limit_waits(connection: Connection, seconds: float) -> None:
    """Has a send or receive raise BlockingIOError once the other side has done nothing for it for so long.

    Also within a message of which a part has come (SO_SNDTIMEO and SO_RCVTIMEO, socket(7)).
    """
    whole, part = divmod(0.0 if math.isinf(seconds) else seconds, 1.0)
    limit = struct.pack("ll", int(whole), int(part * 1e6))
    # Of the connection as such, whichever of its numbers is used.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, limit)


class Gang:
    """Has the methods of `training.session.Session`, done by several ranks."""

    def __init__(
        self,
        settings: "SessionSettings",
        processes: int,
        logs: Path,
        *,
        silence_seconds: float = math.inf,
    ) -> None:
        """Starts nothing yet; each rank's output goes to a file in `logs`.

        A call is given up, as a rank hangs, when nothing shows progress for `silence_seconds`: in a step no micro-batch
        ends, any other call does not end.
        """
        self._settings = settings
        self._count = processes
        self._logs = logs
        self.silence_seconds = silence_seconds
        """Holds for calls to come."""
        self._home: Path | None = None
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._ended: list[tuple[int, int]] = []
        """Exit code and number of the ranks that ended by themselves, once all have ended."""
        self._connection: Connection | None = None
        self._lifeline = -1
        """Writing end of the pipe that no one writes to."""

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the ranks, in order."""
        return tuple(rank.pid for rank in self._ranks)

    def restore(self) -> Restored | None:
        """Starts the ranks; they load the model and the newest whole checkpoint, if there is one."""
        self._start()
        self._talk().send(self._settings)
        found: Restored | None = self._call("restore")
        return found

    def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Updates the policy by one batch of groups."""
        return self._step("rollout_step", groups, progress, stop)

    def sft_step(
        self, rows: "Sequence[MaskedRow]", progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Updates the policy by supervised rows."""
        return self._step("sft_step", rows, progress, stop)

    def preference_step(
        self, pairs: "Sequence[RenderedPair]", progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Updates the policy by pairs."""
        return self._step("preference_step", pairs, progress, stop)

    def measure(
        self, pairs: "Sequence[RenderedPair]", progress: Progress, stop: Event
    ) -> dict[str, float]:
        """Returns figures of pairs."""
        return self._step("measure", pairs, progress, stop)

    def measure_rows(self, rows: "Sequence[MaskedRow]", progress: Progress, stop: Event) -> float:
        """Returns the mean log-probability of the rows' tokens."""
        found: float = self._call("measure_rows", rows, progress=progress, stop=stop)
        return found

    def save(self, restored: Restored) -> None:
        """Writes a checkpoint, whole or not at all."""
        self._call("save", restored)

    def export(self, folder: Path) -> None:
        """Writes what the run made as others open it."""
        self._call("export", folder)

    def close(self) -> None:
        """Ends the ranks."""
        if self._connection is not None:
            # A rank that is gone does not hear it.
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._connection.close()
            self._connection = None
        self._end(CLOSE_SECONDS)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def _start(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        for left in self._logs.glob(f"{MEETS_IN}*"):
            # Of a learner that was killed.
            shutil.rmtree(left)
        self._home = Path(tempfile.mkdtemp(prefix=MEETS_IN, dir=self._logs))
        mine, theirs = socket.socketpair()
        self._connection = Connection(mine.detach())
        ends_with, self._lifeline = os.pipe()
        try:
            with theirs:
                for rank in range(self._count):
                    self._ranks.append(self._start_rank(rank, theirs.fileno(), ends_with))
        finally:
            os.close(ends_with)

    def _start_rank(self, rank: int, talks_over: int, ends_with: int) -> "subprocess.Popen[bytes]":
        assert self._home is not None
        environment = rank_environment(rank, self._count, self._settings.threads, os.environ)
        # Where the ranks meet, and how the first one talks to the service.
        environment["HONE_RANKS_MEET_AT"] = str(self._home / "meet")
        environment["HONE_RANKS_END_WITH"] = str(ends_with)
        if rank == 0:
            environment["HONE_RANKS_TALK_OVER"] = str(talks_over)
        with (self._logs / f"rank-{rank}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", MODULE],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal is for the learner.
                process_group=0,
                pass_fds=(ends_with, talks_over) if rank == 0 else (ends_with,),
            )

    def _step(self, name: str, what: Any, progress: Progress, stop: Event) -> dict[str, float]:
        figures: dict[str, float] = self._call(name, what, progress=progress, stop=stop)
        return figures

    def _call(
        self,
        name: str,
        *arguments: object,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> Any:
        """Has all ranks do something, and returns what the first one returns."""
        connection = self._talk()
        told = False

        def tell_stop() -> None:
            nonlocal told
            if stop is not None and stop.is_set() and not told:
                connection.send("stop")
                told = True

        heard = time.monotonic()
        try:
            limit_waits(connection, self.silence_seconds)
            tell_stop()  # before the call, which a small one may not outlast
            connection.send((name, arguments))
            while True:
                tell_stop()
                if not connection.poll(POLL_SECONDS):
                    self._check_alive()
                    if time.monotonic() - heard > self.silence_seconds:
                        raise self._silent(name)
                    continue
                kind, value = connection.recv()
                heard = time.monotonic()
                if kind == "progress" and progress is not None:
                    progress(*value)
                elif kind == "raised":
                    raise self._cause(value)
                elif kind == "returned":
                    return value
        except BlockingIOError as error:
            # The first rank takes in nothing more, or hangs within what it says.
            raise self._silent(name) from error
        except (EOFError, ConnectionError) as error:
            # The first rank is gone, or goes since another one has.
            self._end(1.0)
            raise self._lost() from error

    def _talk(self) -> Connection:
        if self._connection is None:
            raise Unavailable("the training ranks have ended", reason="RANK_LOST")
        return self._connection

    def _check_alive(self) -> None:
        if any(rank.poll() is not None for rank in self._ranks):
            lost = self._lost()
            self._end(1.0)
            raise lost

    def _silent(self, name: str) -> Unavailable:
        """Ends ranks of which one hangs, and returns the error that says so."""
        self._end(0.0)
        return Unavailable(
            f"{name}: no progress for {self.silence_seconds:g} s (HONE_LEARNER_RANK_SILENCE_SECONDS), so that one of "
            f"the {self._count} training ranks hangs; all were ended, {self._logs} has their output; resume the run to "
            "go on from its checkpoint",
            reason="RANK_SILENT",
        )

    def _cause(self, raised: Exception) -> Exception:
        """Returns what the first rank raised, or that another rank has ended where that is why."""
        # Torch raises a RuntimeError where a connection to another rank breaks.
        if not isinstance(raised, RuntimeError):
            return raised
        for rank in self._ranks[1:]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(POLL_SECONDS)
                return self._lost(f"; rank 0 says: {raised}")
        return raised

    def _lost(self, more: str = "") -> Unavailable:
        """Returns the error that names the rank that ended first, as far as that can be seen."""
        # First a rank that was killed: others end with 1 because of it.
        found: list[tuple[int | None, int]] = [*sorted(self._ended or self._gone()), (None, 0)]
        code, index = found[0]
        how = "ended"
        if code is not None:
            how = (
                f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
            )
        log = self._logs / f"rank-{index}.log"
        said = log.read_text(errors="replace").strip()[-LAST_WORDS:] if log.is_file() else ""
        return Unavailable(
            f"training rank {index} of {self._count} {how}; resume the run to go on from its last checkpoint; "
            f"{log}{': ' + said if said else ' is empty'}{more}",
            reason="RANK_LOST",
        )

    def _gone(self) -> list[tuple[int, int]]:
        found = ((rank.poll(), index) for index, rank in enumerate(self._ranks))
        return [(code, index) for code, index in found if code is not None]

    def _end(self, seconds: float) -> None:
        """Gives all ranks together some time to end by themselves; those that have not are killed."""
        until = time.monotonic() + seconds
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, until - time.monotonic()))
        # Before the others are killed, which would look as if they had been the cause.
        self._ended = self._ended or self._gone()
        for rank in self._ranks:
            if rank.poll() is None:
                rank.kill()
                # One that hangs in the kernel, as over a disk that is gone, does nothing more once it comes back.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    rank.wait(CLOSE_SECONDS)
