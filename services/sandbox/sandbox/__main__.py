"""Starts the sandbox service: `python -m sandbox`."""

import logging
import resource
import time

from hone.sandbox.v1 import sandbox_pb2_grpc

from eventbus.nats_bus import NatsBus
from sandbox.access import Gate
from sandbox.backends.table import BACKENDS
from sandbox.figures.measures import Measures
from sandbox.fleet.assembly import fleet_of, plans_of, snapshots_of
from sandbox.fleet.reaper import tend
from sandbox.fleet.records import Records
from sandbox.manager import SandboxManager
from sandbox.publisher import BusEvents, consume
from sandbox.requests import Policy
from sandbox.servicer import SERVICE_NAME, SandboxServicer
from sandbox.settings import SandboxSettings
from sandbox.storage.spool import Spool
from sandbox.templates import load_templates
from sandbox.transfers import Transfers
from servicekit.clock import steady_clock
from servicekit.errors import FailedPrecondition
from servicekit.serve import App, run

log = logging.getLogger("sandbox")


async def build(app: App[SandboxSettings]) -> None:
    """Put the service together."""
    settings = app.settings
    if settings.token_key_file is None:
        raise FailedPrecondition(
            "HONE_SANDBOX_TOKEN_KEY_FILE is not set; every call is checked against its rollout token"
        )
    templates = load_templates(
        settings.templates_file,
        settings.default_template,
        settings.network_profiles(),
        settings.starts_from(),
    )
    _allow_many_descriptors()
    bus = await NatsBus.connect(settings.nats_url, name="sandbox")
    app.on_close(bus.close)
    clock = steady_clock()
    measures = Measures(clock, app.meter)
    app.on_call(measures.call_ended)
    backend = BACKENDS[settings.backend](settings)
    backend.lock()  # before the journal is opened: one manager per folder
    records = Records(settings.data_dir / "records.jsonl")
    snapshots = snapshots_of(settings, records)
    plans = plans_of(settings, clock)
    fleet = fleet_of(
        settings,
        backend=backend,
        records=records,
        events=BusEvents(bus, app.tracer, time.time),
        templates=templates,
        plans=plans,
        measures=measures,
        clock=clock,
        on_rollout_end=snapshots.drop,
    )
    manager = SandboxManager(fleet, records, Gate(), snapshots)
    app.on_close(manager.close)
    info = await manager.start()
    log.log(
        logging.WARNING if info.detail else logging.INFO,
        "isolation",
        extra={"backend": info.backend, "isolation": info.isolation, "detail": info.detail},
    )
    policy = Policy(
        templates=templates,
        default_template=settings.default_template,
        network_profiles=settings.network_profiles(),
        default_idle_seconds=settings.default_idle_seconds,
        default_lifetime_seconds=settings.default_lifetime_seconds,
    )
    transfers = Transfers(manager.door, Spool(settings.data_dir / "spool"), snapshots)
    servicer = SandboxServicer(manager, transfers, policy, app.tracer)
    sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(servicer, app.server)
    app.add_service(SERVICE_NAME)
    app.on_drain(manager.drain)
    app.spawn(consume(bus, fleet, plans, app.stopping), name="events")
    app.spawn(tend(fleet, app.stopping), name="reaper")


def _allow_many_descriptors() -> None:
    """Raise the soft limit to the hard one: a live sandbox holds four descriptors, a command four more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    run("sandbox", SandboxSettings, build)
