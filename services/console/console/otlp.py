"""Takes spans over OTLP/gRPC, as every OpenTelemetry exporter sends them, into the archive."""

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from console.otlp_convert import spans_from_proto
from console.writer import ArchiveWriter
from servicekit.serve import make_server

STOP_SECONDS = 2.0
"""How long exports under way may take when the console stops."""


class TraceServicer(trace_service_pb2_grpc.TraceServiceServicer):
    """The OpenTelemetry trace collector's one call."""

    def __init__(self, writer: ArchiveWriter) -> None:
        """Writes through `writer`."""
        self._writer = writer

    async def Export(
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: "grpc.aio.ServicerContext[trace_service_pb2.ExportTraceServiceRequest, "
        "trace_service_pb2.ExportTraceServiceResponse]",
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Stores the spans, and answers once they are stored; sending them again changes nothing."""
        spans, num_rejected = spans_from_proto(request)
        await self._writer.put_spans(spans)
        response = trace_service_pb2.ExportTraceServiceResponse()
        if num_rejected:
            response.partial_success.rejected_spans = num_rejected
            response.partial_success.error_message = (
                "a trace id of 16 bytes and a span id of 8 bytes, not all zero, are needed"
            )
        return response


class OtlpServer:
    """A gRPC server of its own for spans, on the port where exporters look for a collector.

    Apart from the console's own server, so that a flood of spans or an odd client meets no other call.
    """

    def __init__(
        self, writer: ArchiveWriter, *, host: str, port: int, max_message_bytes: int
    ) -> None:
        """Binds the port; 0 takes any free one.

        Raises:
            OSError: the port is in use or not allowed.
        """
        self._server = make_server(None, max_message_bytes)
        # The stub of opentelemetry-proto has no types.
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
            TraceServicer(writer), self._server
        )
        problem = f"HONE_CONSOLE_OTLP_PORT: port {port} on {host} is in use or not allowed"
        try:
            self.port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as err:
            raise OSError(problem) from err
        if self.port == 0:
            raise OSError(problem)

    async def start(self) -> None:
        """Begins to take spans."""
        await self._server.start()

    async def stop(self) -> None:
        """Takes no more spans, and returns once those under way are stored."""
        await self._server.stop(STOP_SECONDS)
