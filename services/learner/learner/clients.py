"""What the learner asks of other services: how tools are described to the model."""

from collections.abc import Mapping, Sequence

import grpc
from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc

from servicekit.errors import InvalidArgument
from trajectory import convert
from trajectory.types import ToolDefinition

IDEMPOTENT_METHODS = ("ListTools",)


class ToolCatalogue:
    """The tool gateway's list of tools."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Asks over `channel`."""
        self._stub = tool_gateway_pb2_grpc.ToolGatewayServiceStub(channel)

    async def definitions(self, names: Sequence[str]) -> Mapping[str, ToolDefinition]:
        """Returns the named tools.

        Raises:
            InvalidArgument: the gateway has no tool of a name.
        """
        if not names:
            return {}
        found: dict[str, ToolDefinition] = {}
        request = tool_gateway_pb2.ListToolsRequest(page_size=1000)
        while True:
            page = await self._stub.ListTools(request)
            found |= {tool.name: convert.tool_definition_from_proto(tool) for tool in page.tools}
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        for name in names:
            if name not in found:
                known = ", ".join(sorted(found)) or "no tool"
                said = f"{name!r} is unknown; the gateway has {known}"
                raise InvalidArgument(f"rollout.tools: {said}", violations={"rollout.tools": said})
        return {name: found[name] for name in names}
