"""Runs the console: `python -m console`."""

import asyncio
import logging
import time
from datetime import UTC, datetime

from hone.console.v1 import console_pb2, console_pb2_grpc

from console.archive import Archive
from console.archive_reader import ArchiveReader
from console.audit import AuditReport, audit_run
from console.consumer import LogArchiver
from console.convert import stored_row
from console.http_server import HttpServer
from console.otlp import OtlpServer
from console.servicer import ConsoleServicer
from console.settings import ConsoleSettings
from console.site import Site
from console.view_convert import rollout_view
from console.writer import ArchiveWriter
from eventbus.nats_bus import NatsBus
from servicekit.serve import App, run

log = logging.getLogger("console")


async def build(app: App[ConsoleSettings]) -> None:
    """Opens the archive, follows the stream into it, and serves gRPC, OTLP and HTTP from it."""
    settings = app.settings
    archive = Archive(settings.data_dir / "console.sqlite")

    async def close_archive() -> None:
        archive.close()

    app.on_close(close_archive)
    reader, writer = ArchiveReader(archive.path), ArchiveWriter(archive)

    def audit(run_id: str) -> AuditReport:
        return audit_run(map(stored_row, reader.run_log(run_id)))

    otlp = OtlpServer(
        writer,
        host=settings.host,
        port=settings.otlp_port,
        max_message_bytes=settings.max_message_bytes,
    )
    site = Site(reader, view=rollout_view, audit=audit)
    http = HttpServer(settings.host, settings.http_port, site.respond)

    async def close_http() -> None:
        await asyncio.to_thread(http.close)

    app.on_close(close_http)
    archiver = LogArchiver(
        writer,
        reader,
        connect=lambda: NatsBus.connect(settings.nats_url, name="console"),
        cursor=archive.cursor(),
        audit=audit,
        clock=lambda: datetime.now(UTC),
        seal_after_seconds=settings.seal_after_seconds,
    )
    name = console_pb2.DESCRIPTOR.services_by_name["ConsoleService"].full_name
    console_pb2_grpc.add_ConsoleServiceServicer_to_server(
        ConsoleServicer(reader, audit, clock=time.time), app.server
    )
    app.add_service(name)
    app.spawn(archiver.run(app.stopping, before_last_write=otlp.stop), name="archive")
    await otlp.start()
    http.start()
    log.info("listening", extra={"otlp_port": otlp.port, "http_port": http.port})


if __name__ == "__main__":
    run("console", ConsoleSettings, build)
