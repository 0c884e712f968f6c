"""Starts the grader: `python -m grader`."""

import random
import time
from pathlib import Path

from hone.grader.v1 import grader_pb2, grader_pb2_grpc

from eventbus.nats_bus import NatsBus
from grader.assembly import build_desk
from grader.clients.leases import NoLeases, SandboxLeases
from grader.consumer import FinishedConsumer
from grader.patience import Patience
from grader.servicer import GraderServicer
from grader.settings import GraderSettings
from grader.store import JudgedStore
from servicekit.channels import connect, resolve
from servicekit.serve import App, run
from servicekit.tokens import TokenMinter


async def build(app: App[GraderSettings]) -> None:
    """Put the grader together."""
    settings = app.settings
    desk = build_desk(settings, app.on_close)
    store = JudgedStore(settings.data_dir / "grader.sqlite")

    async def close_store() -> None:
        store.close()

    app.on_close(close_store)
    leases = _leases(settings)
    app.on_close(leases.close)
    bus = await NatsBus.connect(settings.nats_url, name="grader")
    app.on_close(bus.close)
    consumer = FinishedConsumer(
        bus=bus,
        store=store,
        desk=desk,
        leases=leases,
        patience=Patience(
            seconds=settings.grade_patience_seconds,
            min_tries=settings.max_grade_tries,
            first_delay_seconds=settings.retry_delay_seconds,
        ),
        tracer=app.tracer,
        clock=time.time,
        rng=random.Random(),
    )
    grader_pb2_grpc.add_GraderServiceServicer_to_server(GraderServicer(desk), app.server)
    app.add_service(grader_pb2.DESCRIPTOR.services_by_name["GraderService"].full_name)
    app.spawn(consumer.run(app.stopping, max_in_flight=settings.max_in_flight), name="consumer")


def _leases(settings: GraderSettings) -> SandboxLeases | NoLeases:
    if settings.token_key_file is None:
        return NoLeases()
    key_file: Path = settings.token_key_file
    minter = TokenMinter(key_file, time.time)
    ttl = 2 * settings.lease_seconds
    return SandboxLeases(
        lambda: connect(
            resolve("sandbox", settings), idempotent_methods=("ExtendLifetime", "GetSandbox")
        ),
        lambda rollout_id, epoch: minter.mint(rollout_id, epoch, "grader", ttl),
        renew_seconds=settings.lease_renew_seconds,
        lease_seconds=settings.lease_seconds,
    )


if __name__ == "__main__":
    run("grader", GraderSettings, build)
