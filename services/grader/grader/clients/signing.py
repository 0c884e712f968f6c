"""Signatures of what endpoints are asked, as Standard Webhooks defines them (standardwebhooks.com).

webhook-signature is `v1,` and the base64 HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<body>`. Keys are files of
one folder, each with `whsec_` and the base64 key; a definition names the file, so no key is ever in it.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.fields import nearest
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

PREFIX = "whsec_"
MIN_KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The operator's keys."""

    folder: Path | None
    """One file per key; None if there are none."""

    def key(self, name: str) -> bytes:
        """Return a key; read each time, so that an exchanged one is in use at once.

        Raises:
            GradingFaultError: there is no such key, or its file holds none; kind definition.
        """
        if self.folder is None:
            raise _fault(
                f"secret: {name!r} is asked for, and the grader has no keys; "
                "the operator names their folder with HONE_GRADER_ENDPOINT_SECRETS_DIR"
            )
        known = sorted(path.name for path in self.folder.glob("*") if path.is_file())
        if name not in known:
            raise _fault(f"secret: there is no key {name!r}; {nearest(name, known)}")
        return read_key((self.folder / name).read_text(encoding="utf-8", errors="replace"), name)


def read_key(text: str, name: str) -> bytes:
    """Return the key in a file's text.

    Raises:
        GradingFaultError: it is not `whsec_` and base64 of at least 16 bytes; kind definition.
    """
    encoded = text.strip().removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < MIN_KEY_BYTES:
        raise _fault(
            f"secret: the file of key {name!r} must hold {PREFIX} and the base64 of at least "
            f"{MIN_KEY_BYTES} bytes"
        )
    return key


def signed_headers(
    key: bytes, message_id: str, timestamp_seconds: int, body: bytes
) -> Mapping[str, str]:
    """Return the three headers that prove who asks, and what."""
    content = f"{message_id}.{timestamp_seconds}.".encode() + body
    digest = hmac.new(key, content, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_seconds),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode('ascii')}",
    }


def _fault(detail: str) -> GradingFaultError:
    return GradingFaultError(detail, kind=GraderErrorKind.DEFINITION, retryable=False, client=True)
