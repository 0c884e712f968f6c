"""Starts the tool gateway: `python -m tool_gateway`."""

import time

from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc

from eventbus.nats_bus import NatsBus
from servicekit.channels import connect, resolve
from servicekit.serve import App, run
from tool_gateway.announcer import Announcer
from tool_gateway.clients import GrpcSandbox
from tool_gateway.gateway import Gateway
from tool_gateway.ledger import CallLedger
from tool_gateway.servicer import ToolGatewayServicer
from tool_gateway.settings import ToolGatewaySettings
from tool_gateway.tools.table import make_tools


async def build(app: App[ToolGatewaySettings]) -> None:
    """Put the tool gateway together."""
    settings = app.settings
    if settings.token_key_file is None:
        raise ValueError(
            "token_key_file is not set: rollout tokens cannot be checked; set "
            "HONE_TOOL_GATEWAY_TOKEN_KEY_FILE to the PEM file that the suite shares"
        )
    sandbox = GrpcSandbox(
        lambda: connect(resolve("sandbox", settings), idempotent_methods=("Exec",))
    )
    app.on_close(sandbox.close)
    bus = await NatsBus.connect(settings.nats_url, name="tool_gateway")
    app.on_close(bus.close)
    announcer = Announcer(bus, time.time, max_waiting=settings.max_waiting_events)
    ledger = CallLedger(
        max_rollouts=settings.max_remembered_rollouts, max_calls=settings.max_remembered_calls
    )
    gateway = Gateway(
        make_tools(sandbox),
        ledger,
        announcer.announce,
        app.tracer,
        max_tool_seconds=settings.max_tool_seconds,
    )
    servicer = ToolGatewayServicer(gateway)
    tool_gateway_pb2_grpc.add_ToolGatewayServiceServicer_to_server(servicer, app.server)
    app.add_service(tool_gateway_pb2.DESCRIPTOR.services_by_name["ToolGatewayService"].full_name)
    app.on_drain(ledger.drain)
    app.on_drain(announcer.drain)
    app.spawn(announcer.run(), name="announcer")


if __name__ == "__main__":
    run("tool_gateway", ToolGatewaySettings, build)
