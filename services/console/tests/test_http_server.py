import http.client
from collections.abc import Iterator

import pytest

from console.http_server import HttpServer
from console.site import HTML, Response


def respond(target: str) -> Response:
    if target == "/broken":
        raise RuntimeError("a secret detail")
    return Response(status=200, content_type=HTML, body=target.encode())


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, respond)
    server.start()
    yield server
    server.close()


def ask(server: HttpServer, method: str, target: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def test_pages_forbid_scripts_and_loading(server: HttpServer) -> None:
    response, body = ask(server, "GET", "/x?y=1")
    assert (response.status, body) == (200, b"/x?y=1")
    assert "default-src 'none'" in (response.getheader("Content-Security-Policy") or "")
    assert response.getheader("X-Content-Type-Options") == "nosniff"


def test_head_has_no_body(server: HttpServer) -> None:
    response, body = ask(server, "HEAD", "/x")
    assert (response.status, body, response.getheader("Content-Length")) == (200, b"", "2")


def test_a_page_that_fails_tells_nothing_of_why(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    response, body = ask(server, "GET", "/broken")
    assert response.status == 500
    assert b"secret" not in body
    assert "page failed" in caplog.text


def test_other_methods_are_refused(server: HttpServer) -> None:
    response, _ = ask(server, "POST", "/x")
    assert response.status == 501


def test_a_port_in_use_names_the_setting(server: HttpServer) -> None:
    with pytest.raises(OSError, match=f"HONE_CONSOLE_HTTP_PORT: port {server.port}"):
        HttpServer("127.0.0.1", server.port, respond)
