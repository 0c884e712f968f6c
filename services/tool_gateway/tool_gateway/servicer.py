"""The tool gateway's RPCs: thin, the gateway does the work."""

from typing import Any

import grpc
from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc

from servicekit.errors import InvalidArgument
from servicekit.tokens import require_token
from tool_gateway.convert import calls_from_proto, result_to_proto, spec_to_proto, turn_from_proto
from tool_gateway.gateway import Gateway

DEFAULT_PAGE = 100
MAX_PAGE = 1000


class ToolGatewayServicer(tool_gateway_pb2_grpc.ToolGatewayServiceServicer):
    """Lists and runs tools."""

    def __init__(self, gateway: Gateway) -> None:
        """Answer from the gateway."""
        self._gateway = gateway

    async def ListTools(
        self,
        request: tool_gateway_pb2.ListToolsRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> tool_gateway_pb2.ListToolsResponse:
        """List tools by name; the page token is the name of the last one."""
        if not 0 <= request.page_size <= MAX_PAGE:
            raise InvalidArgument(
                f"page_size must be from 0 to {MAX_PAGE}, found {request.page_size}",
                violations={"page_size": f"must be from 0 to {MAX_PAGE}"},
            )
        size = request.page_size or DEFAULT_PAGE
        left = [tool.spec for tool in self._gateway.tools if tool.spec.name > request.page_token]
        page = left[:size]
        return tool_gateway_pb2.ListToolsResponse(
            tools=[spec_to_proto(spec) for spec in page],
            next_page_token=page[-1].name if len(left) > size else "",
        )

    async def CallTools(
        self,
        request: tool_gateway_pb2.CallToolsRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> tool_gateway_pb2.CallToolsResponse:
        """Run the calls of one turn."""
        token = require_token(request.rollout_id, "agent")
        turn = turn_from_proto(request, token.epoch)
        results = await self._gateway.call(turn, calls_from_proto(request))
        return tool_gateway_pb2.CallToolsResponse(results=[result_to_proto(r) for r in results])
