"""Puts a fleet together from the settings."""

import time
import uuid
from collections.abc import Callable, Mapping

from sandbox.backends.protocol import Backend
from sandbox.figures.measures import Measures
from sandbox.fleet.admission import Admission
from sandbox.fleet.events import Events
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.memory import available_memory_bytes, total_memory_bytes
from sandbox.fleet.plans import Plans
from sandbox.fleet.records import Records
from sandbox.fleet.turns import Turns
from sandbox.settings import SandboxSettings
from sandbox.storage.snapshots import SnapshotStore
from sandbox.types import MIB, Template


def plans_of(settings: SandboxSettings, clock: Callable[[], float]) -> Plans:
    """Return what adds up the needs of steps that are planned."""
    return Plans(
        default_template=settings.default_template,
        most=settings.warm_max,
        seconds=settings.warm_seconds,
        clock=clock,
    )


def fleet_of(
    settings: SandboxSettings,
    *,
    backend: Backend,
    records: Records,
    events: Events,
    templates: Mapping[str, Template],
    plans: Plans,
    measures: Measures,
    clock: Callable[[], float],
    on_rollout_end: Callable[[str], None],
) -> Fleet:
    """Return a fleet on this machine's memory and clock; not started."""
    admission = Admission(
        max_sandboxes=settings.max_sandboxes,
        memory_budget_bytes=int(settings.memory_overcommit * total_memory_bytes()),
        reserve_bytes=settings.reserve_mib * MIB,
        available_bytes=available_memory_bytes,
        clock=time.monotonic,
    )
    return Fleet(
        backend=backend,
        records=records,
        events=events,
        admission=admission,
        turns=Turns(settings.parallel_creates, settings.queue_seconds, time.monotonic),
        templates=templates,
        plans=plans,
        measures=measures,
        provision_seconds=settings.provision_seconds,
        clock=clock,
        new_id=lambda: f"sbx_{uuid.uuid4().hex}",
        on_rollout_end=on_rollout_end,
    )


def snapshots_of(settings: SandboxSettings, records: Records) -> SnapshotStore:
    """Return what keeps snapshots; not opened."""
    return SnapshotStore(
        settings.data_dir / "snapshots",
        max_bytes=settings.snapshots_mib * MIB,
        clock=time.time,
        has_ended=records.has_ended,
    )
