"""Asks a process of its own how long each number type takes to train a model on this machine.

Not this process: torch keeps what it once took of a GPU until its process ends, and the ranks of a run with several
processes need that GPU themselves. There is one, however many processes train, with the threads of one of them.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from learner.ports import Stopped
from learner.runs.dtype_choice import DtypeSeconds
from learner.workers.gang import rank_environment
from runspec.schema import RunSpec
from servicekit.errors import FailedPrecondition

MODULE = "learner.training.dtype_speed"

PATIENCE_SECONDS = 600.0
"""For imports, unpacking a model and measuring: seconds where all is well."""

LAST_WORDS = 600
"""Characters of the process's output that an error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What the process is told, as JSON in its argument: a pipe to a process that died at once cannot be written to."""

    path: str
    """As `model.path` has it."""
    cache: str
    """Folder of models that packages carry."""
    threads: int
    """Of torch; 0 means as OMP_NUM_THREADS says."""
    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    gradient_checkpointing: bool


class MeasureDtypes(Protocol):
    """Finds out how long each number type takes."""

    async def __call__(self, spec: RunSpec, stop: asyncio.Event) -> DtypeSeconds:
        """Measures for a run.

        Raises:
            Stopped: `stop` was set. FailedPrecondition: it could not be measured.
        """
        ...


class DtypeProbe:
    """Implements `MeasureDtypes` by a process."""

    def __init__(self, model_cache_dir: Path, threads: int) -> None:
        """Finds models and takes threads as the runs of this learner do."""
        self._cache = model_cache_dir
        self._threads = threads

    async def __call__(self, spec: RunSpec, stop: asyncio.Event) -> DtypeSeconds:
        """Measures for a run; see `MeasureDtypes`."""
        asked = ProbeSettings(
            path=spec.model.path,
            cache=str(self._cache),
            threads=self._threads,
            rank=spec.lora.new_rank,
            alpha=spec.lora.new_alpha,
            # An adapter names its layers as peft wrote them, by a pattern or each in full.
            target_modules=() if spec.model.adapter else spec.lora.target_modules,
            gradient_checkpointing=spec.train.gradient_checkpointing,
        )
        # It imports torch to count threads.
        environment = await asyncio.to_thread(
            rank_environment, 0, spec.train.processes, self._threads, os.environ
        )
        # Threads that spin while they wait for others would be measured too.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        said = await _answer(json.dumps(asdict(asked)), environment, stop)
        try:
            return DtypeSeconds(**json.loads(said.splitlines()[-1]))
        except (ValueError, TypeError, IndexError) as error:
            raise _failure(
                f"it answered {said.decode(errors='replace')[-LAST_WORDS:]!r}"
            ) from error


async def _answer(asked: str, environment: Mapping[str, str], stop: asyncio.Event) -> bytes:
    """Runs the process and returns its output; it is over when this returns, whatever happens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        MODULE,
        asked,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        # Ctrl-C in a terminal is for the learner.
        start_new_session=True,
    )
    talk = asyncio.ensure_future(process.communicate())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait(
            {talk, stopping},
            timeout=PATIENCE_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not talk.done():
            if stop.is_set():
                raise Stopped
            raise _failure(f"no answer within {PATIENCE_SECONDS:g} s")
        said, complained = talk.result()
    finally:
        stopping.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.wait({talk})
    if process.returncode:
        words = complained.decode(errors="replace").strip()[-LAST_WORDS:]
        raise _failure(f"exit code {process.returncode}: {words}")
    return said


def _failure(what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"model.dtype: auto could not be measured ({what}); float32 or bfloat16 is right where it cannot",
        reason="DTYPE_NOT_MEASURED",
    )
