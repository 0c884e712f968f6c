"""A judge behind an endpoint that speaks the OpenAI chat completions API (OpenAI, vLLM, llama.cpp, gateways).

Tries again after 408, 409, 425, 429, 5xx and a broken connection, with jitter, never sooner than Retry-After asks, and
never past the deadline: if the wait would pass it, the caller is told so at once. What an endpoint does not know
(response_format, max_tokens) is learned once per model. No streaming: a verdict is of use only whole.
"""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from critic import faults
from critic.clients.chat_reply import error_from_status, rejects, reply_from_body, retry_after
from critic.judge import Prompt, Reply
from critic.measures import Measures
from critic.tracing import span_in_trace
from servicekit import attributes
from servicekit.errors import FailedPrecondition, HoneError
from trajectory.types import ChatMessage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the judge is."""

    url: str
    """Base URL, for example http://127.0.0.1:8000/v1."""
    api_key_file: Path | None = None
    """Read for every try, so that a key can be exchanged; None sends none that matters."""
    max_tries: int = 4

    def __post_init__(self) -> None:
        """Refuse what is no URL, and a URL with a secret in it: messages and logs show the URL.

        Raises:
            ValueError: names the setting, and not the secret.
        """
        if any(sign in self.url for sign in "@?#"):
            raise ValueError(
                "HONE_CRITIC_ENDPOINT_URL: found a name or password before the host, or parameters after the path; "
                "a key is right in the file HONE_CRITIC_API_KEY_FILE"
            )
        if not _is_url(self.url):
            raise ValueError(
                f"HONE_CRITIC_ENDPOINT_URL: found {self.url!r}; it should be a URL such as http://127.0.0.1:8000/v1"
            )


class ChatApi:
    """Asks an endpoint; loads the client library with the first question."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        measures: Measures,
        tracer: Tracer,
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Connect on first use.

        Args:
            endpoint: where to ask.
            measures: records tries and tokens.
            tracer: makes a span per try.
            rng: source of jitter.
            sleep: waits between tries.
        """
        self._endpoint = endpoint
        self._measures = measures
        self._tracer = tracer
        self._rng = rng
        self._sleep = sleep
        self._client: AsyncOpenAI | None = None
        self._opening = asyncio.Lock()
        self._without_format: set[str] = set()
        """Models whose endpoint rejected response_format."""
        self._completion_tokens: set[str] = set()
        """Models that want max_completion_tokens for max_tokens."""
        self._secret = ""
        """The key that was sent last."""

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def ask(self, prompt: Prompt, *, deadline: float) -> Reply:
        """Ask until there is a reply, or trying again does not help; see `Judge`."""
        if not prompt.model:
            raise FailedPrecondition(
                "the question names no model and there is no default: set HONE_CRITIC_MODEL",
                reason=faults.UNCONFIGURED,
            )
        client = await self._opened()
        num_tries = 0
        while True:
            num_tries += 1
            try:
                return replace(await self._try(client, prompt, deadline), num_tries=num_tries)
            except HoneError as error:
                wait = self._wait(error, num_tries)
                if error.reason != faults.UNAVAILABLE:
                    raise
                last = num_tries >= self._endpoint.max_tries
                if last or asyncio.get_running_loop().time() + wait >= deadline:
                    raise faults.unavailable(
                        f"{error.message} (tries: {num_tries})", retry_after_seconds=wait
                    ) from error
            await self._sleep(wait)

    def _wait(self, error: HoneError, num_tries: int) -> float:
        """Return the seconds before the next try."""
        wait = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** (num_tries - 1))
        return max(self._rng.uniform(0.5, 1.0) * wait, error.retry_after_seconds or 0.0)

    async def _opened(self) -> "AsyncOpenAI":
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(self._open)
            return self._client

    def _open(self) -> "AsyncOpenAI":
        # Imported here and not at the start: it takes half a second, and a critic that is never asked needs none of it.
        import openai

        from critic.clients.http import bounded_client

        return openai.AsyncOpenAI(
            base_url=self._endpoint.url,
            api_key=self._key,
            max_retries=0,
            http_client=bounded_client(),
        )

    async def _key(self) -> str:
        file = self._endpoint.api_key_file
        if file is None:
            return "none"
        self._secret = await asyncio.to_thread(_read_key, file)
        return self._secret

    async def _try(self, client: "AsyncOpenAI", prompt: Prompt, deadline: float) -> Reply:
        """Ask once, measured and traced."""
        begun = time.monotonic()
        named: dict[str, str | int | float] = {
            attributes.GEN_AI_OPERATION: attributes.SPAN_CHAT,
            attributes.GEN_AI_MODEL: prompt.model,
            attributes.GEN_AI_TEMPERATURE: prompt.temperature,
            attributes.GEN_AI_MAX_TOKENS: prompt.max_tokens,
        }
        name = f"{attributes.SPAN_CHAT} {prompt.model}"
        with span_in_trace(self._tracer, name, named, SpanKind.CLIENT) as span:
            try:
                reply = await self._completed(client, prompt, deadline)
            except HoneError as error:
                span.set_status(Status(StatusCode.ERROR, error.message))
                span.set_attribute(attributes.ERROR_KIND, error.reason)
                self._measures.tried(prompt.model, time.monotonic() - begun, error.reason)
                raise
            except asyncio.CancelledError:
                span.set_status(Status(StatusCode.ERROR, "cancelled"))
                self._measures.tried(prompt.model, time.monotonic() - begun, "CANCELLED")
                raise
            span.set_attribute(attributes.GEN_AI_INPUT_TOKENS, reply.input_tokens)
            span.set_attribute(attributes.GEN_AI_OUTPUT_TOKENS, reply.output_tokens)
            span.set_attribute(
                attributes.GEN_AI_FINISH_REASONS, ["length" if reply.cut_off else "stop"]
            )
        self._measures.tried(prompt.model, time.monotonic() - begun, "")
        self._measures.used(prompt.model, reply.input_tokens, reply.output_tokens)
        return reply

    async def _completed(self, client: "AsyncOpenAI", prompt: Prompt, deadline: float) -> Reply:
        """Ask, again at once where the endpoint turns out not to know a parameter.

        Raises:
            HoneError: there is no reply.
        """
        import openai

        # Else taken from the environment, where they may be meant for another endpoint.
        unnamed = {"OpenAI-Organization": openai.omit, "OpenAI-Project": openai.omit}
        while True:
            # The caller cancels at the deadline; the client's own limit only comes after it.
            left = deadline - asyncio.get_running_loop().time() + 5.0
            try:
                raw = await client.chat.completions.with_raw_response.create(
                    **self._request(prompt), extra_headers=unnamed, timeout=left
                )
            except openai.APIStatusError as error:
                if not self._learns(error, prompt):
                    # Not chained: what the endpoint said may hold the key, and traces show causes.
                    raise self._status_error(error, prompt.model) from None
            except openai.APIConnectionError as error:
                cause = error.__cause__ or error
                raise faults.unavailable(
                    f"{self._endpoint.url} gave no answer: {type(cause).__name__}: {cause}"
                ) from error
            except openai.OpenAIError as error:
                raise faults.unavailable(f"{self._endpoint.url}: {error}") from error
            else:
                body = raw.http_response.content
                return await asyncio.to_thread(reply_from_body, body, secret=self._secret)

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        limit = "max_completion_tokens" if prompt.model in self._completion_tokens else "max_tokens"
        request: dict[str, Any] = {
            "model": prompt.model,
            "messages": [_message(message) for message in prompt.messages],
            "temperature": prompt.temperature,
            limit: prompt.max_tokens,
        }
        if prompt.seed is not None:
            request["seed"] = prompt.seed
        if prompt.schema is not None and prompt.model not in self._without_format:
            form = {"name": "verdict", "strict": True, "schema": dict(prompt.schema)}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        return request

    def _learns(self, error: "APIStatusError", prompt: Prompt) -> bool:
        """Whether an error says something new of what the endpoint does not know."""
        if error.status_code not in (400, 422, 501):
            return False
        body = error.body
        if rejects(body, "max_completion_tokens") and prompt.model not in self._completion_tokens:
            self._completion_tokens.add(prompt.model)
            return True
        formatted = prompt.schema is not None and prompt.model not in self._without_format
        words = ("response_format", "json_schema", "guided", "structured output")
        if formatted and any(rejects(body, word) for word in words):
            self._without_format.add(prompt.model)
            return True
        return False

    def _status_error(self, error: "APIStatusError", model: str) -> HoneError:
        return error_from_status(
            error.status_code,
            error.body if error.body is not None else error.response.text,
            url=self._endpoint.url,
            model=model,
            retry_after_seconds=retry_after(error.response.headers, datetime.now(UTC)),
            secret=self._secret,
        )


def _message(message: ChatMessage) -> dict[str, str]:
    return {"role": message.role.value, "content": message.text}


def _read_key(file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FailedPrecondition(
            f"HONE_CRITIC_API_KEY_FILE: {file} cannot be read: {error}", reason=faults.MISCONFIGURED
        ) from error
    if not key:
        raise FailedPrecondition(
            f"HONE_CRITIC_API_KEY_FILE: {file} is empty; it should hold the key",
            reason=faults.MISCONFIGURED,
        )
    if not re.fullmatch("[!-~]+", key):
        raise FailedPrecondition(
            f"HONE_CRITIC_API_KEY_FILE: {file} holds more than a key: a space, a second line or a sign beyond ASCII",
            reason=faults.MISCONFIGURED,
        )
    return key


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and re.fullmatch(r"[A-Za-z0-9._:-]+", parts.hostname or "") is not None
            and parts.port != 0
        )
    except ValueError:
        return False
