"""The HTTP client beneath the chat API's: answers of bounded size, from the endpoint itself.

Compressed answers are refused and not unpacked: a few kilobytes can hold gigabytes. Redirections are not followed: the
question would go to a place that nobody set.

Loads the HTTP library; imported with the first question.
"""

from collections.abc import AsyncIterator

import httpx2

MAX_BYTES = 8 * 1024 * 1024
"""Of an answer's body."""


class UnfitAnswerError(httpx2.TransportError):
    """An answer is not read to its end; the message says why."""


def bounded_client() -> httpx2.AsyncClient:
    """Return the client; an answer that it does not take is an `UnfitAnswerError`."""
    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity"},
        follow_redirects=False,
        limits=httpx2.Limits(max_connections=None),
        event_hooks={"response": [_bound]},
    )


async def _bound(response: httpx2.Response) -> None:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise UnfitAnswerError(
            f"the answer is compressed ({encoding[:40]}), which was not asked for"
        )
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends with an error beyond `MAX_BYTES`."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for chunk in self._body:
            num_bytes += len(chunk)
            if num_bytes > MAX_BYTES:
                raise UnfitAnswerError(f"the answer is longer than {MAX_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()
