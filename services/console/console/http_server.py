"""Puts a site on a port, in threads of its own: pages never wait for gRPC, nor gRPC for pages.

The standard library's server is enough here: few readers, answers made from a local file, GET only.
"""

import logging
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from console.page_layout import message_page
from console.site import HTML, Response

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""How soon the serving thread notices that it should stop."""

Respond = Callable[[str], Response]

# No script runs and nothing is loaded, whatever hostile text should get past the escaping.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class HttpServer:
    """Serves a site until closed."""

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        """Binds the port; 0 takes any free one.

        Raises:
            OSError: the port is in use or not allowed.
        """
        try:
            self._server = _Server((host, port), _handler(respond))
        except OSError as err:
            raise OSError(
                f"HONE_CONSOLE_HTTP_PORT: port {port} on {host} is in use or not allowed ({err})"
            ) from err
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="http", daemon=True
        )

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stops answering and frees the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """The standard server, quiet about readers who go away."""

    daemon_threads = True
    # The standard 5 makes a page's burst of requests wait for a retransmission.
    request_queue_size = 128

    def server_bind(self) -> None:
        """Binds without asking DNS for the host's name, as the parent would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs instead of printing a traceback."""
        log.info("connection ended early", exc_info=True, extra={"client": str(client_address)})


def _handler(respond: Respond) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET and HEAD."""

        server_version = "hone-console"
        sys_version = ""
        protocol_version = "HTTP/1.1"
        # A client that sends nothing gives its thread back.
        timeout = 30

        def do_GET(self) -> None:
            """Answers with headers and body."""
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            """Answers with headers only."""
            self._send(with_body=False)

        def _send(self, *, with_body: bool) -> None:
            try:
                response = respond(self.path)
            except (
                Exception
            ):  # the boundary: one page that fails must not end its connection unsaid
                log.exception("page failed", extra={"path": self.path})
                body = message_page("Something broke", "The console's log says what.")
                response = Response(status=500, content_type=HTML, body=body)
            self.send_response(HTTPStatus(response.status))
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(response.body)

        def log_message(self, format: str, *args: object) -> None:
            """Writes the access log where a reader asks for it."""
            log.debug("http", extra={"request": format % args})

    return Handler
