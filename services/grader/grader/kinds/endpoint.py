"""`endpoint`: a grader of people's own behind HTTP or gRPC.

    {"type": "endpoint", "url": "https://graders.example.com/score", "secret": "team-key", "headers": {"X-Team": "a"},
     "timeout_seconds": 30, "max_tries": 3, "pass_threshold": 0.5}

It is sent {"sample", "item", "grader_version", "rollout_id"} as JSON (`sample` as in `grader.sample_json`; without
rollout_id where the record belongs to no attempt) and answers {"score": 0.7, "explanation": "...", "parts": {"style":
0.4}}; score null is no opinion. With `payload`, any JSON with templates, it is sent that instead: {"text":
"{{sample.output_text}}", "gold": "{{item.answer}}"}. With grpc://host:port or grpcs://host:port it is an
`EndpointGraderService` (protos/hone/grader/v1/endpoint.proto).

`secret` names the key that signs the question; no key and no password is ever part of a definition. `timeout_seconds`
holds for all tries together. A response from `pass_threshold` up succeeded. An endpoint that is away, or too slow, or
answers 5xx or 429, is a fault that is graded again later, never a zero. A response that is longer than 1 MiB as JSON is
not sent and scores 0.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from grader.fields import Fields, shown
from grader.instruments.all import Instruments
from grader.instruments.endpoints import Call
from grader.kinds.base import Kinds
from grader.kinds.outside import judged_outside
from grader.results import Graded, abstain
from grader.sample import Sample
from grader.sample_json import MAX_BYTES, fits, sample_json
from grader.templates import (
    ResponseLacksError,
    TemplateError,
    ValueTemplate,
    parse_value_template,
)
from trajectory.types import OutcomeKind

SCHEMES = ("http", "https", "grpc", "grpcs")
_SECRETS = frozenset(
    [
        "apikey",
        "auth",
        "authorization",
        "cookie",
        "credential",
        "credentials",
        "key",
        "passwd",
        "password",
        "secret",
        "sig",
        "signature",
        "token",
    ]
)
"""Words in the name of a header or of a query's field that say what it carries."""
_TAKEN = (
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointGrader:
    """Asks an endpoint."""

    url: str
    headers: Mapping[str, str]
    secret: str
    timeout_seconds: float
    max_tries: int
    payload: ValueTemplate | None
    pass_threshold: float

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the endpoint's score."""
        try:
            # Reading a long response as JSON takes a while.
            payload = await asyncio.to_thread(self._payload, sample, instruments)
        except ResponseLacksError as lack:
            return Graded(value=0.0, kind=sample.shortfall(lack.kind), explanation=lack.detail)
        call = Call(
            url=self.url,
            payload=payload,
            headers=self.headers,
            secret_name=self.secret,
            timeout_seconds=self.timeout_seconds,
            max_tries=self.max_tries,
        )
        reply = await instruments.endpoints.call(call)
        if reply.value is None:
            return abstain(reply.explanation or "the endpoint has no opinion")
        return judged_outside(
            sample,
            reply.value,
            pass_threshold=self.pass_threshold,
            explanation=reply.explanation or f"the endpoint gives {reply.value:g}",
            parts=reply.parts,
        )

    def _payload(self, sample: Sample, instruments: Instruments) -> Mapping[str, object]:
        if not fits(sample.output_text):
            detail = f"the response is longer than the {MAX_BYTES} bytes that are sent to endpoints"
            raise ResponseLacksError(detail, OutcomeKind.BUDGET)
        if self.payload is not None:
            filled = self.payload.value(sample)
            assert isinstance(filled, Mapping)
            return filled
        asked: dict[str, object] = {
            "sample": sample_json(sample),
            "item": sample.item,
            "grader_version": instruments.grader_version,
        }
        if instruments.rollout_id:
            asked["rollout_id"] = instruments.rollout_id
        return asked


def parse(fields: Fields, kinds: Kinds) -> EndpointGrader:
    """Read the definition."""
    return EndpointGrader(
        url=_url(fields),
        headers=_headers(fields),
        secret=_secret(fields),
        timeout_seconds=fields.number("timeout_seconds", 30.0, low=0.1, high=600.0),
        max_tries=fields.whole("max_tries", 3, low=1, high=10),
        payload=_template(fields),
        pass_threshold=fields.number("pass_threshold", 0.5),
    )


def _url(fields: Fields) -> str:
    url = fields.text("url")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as err:
        fields.problems.add(fields.at("url"), f"{shown(url)} is no url: {err}")
        return url
    asked = parse_qsl(parts.query, keep_blank_values=True)
    if parts.username is not None or any(_carries_secret(name) for name, _ in asked):
        # Not shown.
        wrong = "must not hold a user or password, nor keys in its query"
        fields.problems.add(fields.at("url"), f"{wrong}; use secret, the name of a key file")
        return url
    wrong = ""
    if parts.scheme not in SCHEMES or not parts.hostname:
        wrong = f"must begin with {', '.join(f'{scheme}://' for scheme in SCHEMES)} and a host"
    elif parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        wrong = "must hold neither a fragment (#), spaces nor characters beyond printable ASCII"
    elif parts.scheme.startswith("grpc") and (port is None or parts.path.strip("/") or parts.query):
        wrong = (
            "must be host:port alone after grpc://, for example grpc://graders.example.com:50051"
        )
    if url and wrong:
        fields.problems.add(fields.at("url"), f"{wrong}, found {shown(url)}")
    return url


def _headers(fields: Fields) -> Mapping[str, str]:
    child = fields.child("headers") if fields.has("headers") else None
    if child is None:
        return {}
    headers = {}
    for name in child.values:
        value = child.text(name)
        if not name.replace("-", "").isalnum() or not name.isascii():
            child.problems.add(child.at(name), "must be named by letters, digits and -")
        elif _carries_secret(name):
            child.problems.add(
                child.at(name), "carries a secret, and definitions are stored; use secret to sign"
            )
        elif name.lower() in _TAKEN or name.lower().startswith("grpc-"):
            child.problems.add(child.at(name), "is set by the grader itself")
        elif name.lower().endswith("-bin"):
            child.problems.add(child.at(name), "must not end with -bin, which gRPC keeps for bytes")
        elif not value.isascii() or not value.isprintable():
            child.problems.add(child.at(name), f"must be printable ASCII, found {shown(value)}")
        headers[name] = value
    return headers


def _carries_secret(name: str) -> bool:
    return not _SECRETS.isdisjoint(name.lower().replace("_", "-").split("-"))


def _secret(fields: Fields) -> str:
    if not fields.has("secret"):
        return ""
    name = fields.text("secret")
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if name.startswith("whsec_"):
        fields.problems.add(
            fields.at("secret"),
            "is a key; definitions are stored, so give the name of a file that holds it",
        )
    elif name and not (plain.isalnum() and plain.isascii() and name[0] != "." and len(name) <= 128):
        # Not shown: it may be a key.
        fields.problems.add(fields.at("secret"), "must name a key file: letters, digits, - _ .")
    return name


def _template(fields: Fields) -> ValueTemplate | None:
    child = fields.child("payload") if fields.has("payload") else None
    if child is None:
        return None
    try:
        return parse_value_template(child.values)
    except TemplateError as err:
        fields.problems.add(fields.at("payload"), str(err))
        return None
