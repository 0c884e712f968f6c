"""Rollout tokens: who may touch which rollout's environment.

A token is a JWT signed with Ed25519 (EdDSA, RFC 8037) over {rollout_id, epoch, role, exp}; the key id in its header
allows rotation. It travels in gRPC metadata only. Keys are PEM: the first private key signs, every key verifies.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from servicekit.errors import PermissionDenied, Unauthenticated

TokenRole = Literal["agent", "grader", "operator"]
ROLES: tuple[TokenRole, ...] = ("agent", "grader", "operator")

_CURRENT: ContextVar["RolloutToken | None"] = ContextVar("hone_rollout_token", default=None)
_CURRENT_TEXT: ContextVar[str] = ContextVar("hone_rollout_token_text", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutToken:
    """What a verified token says. An operator's token has no rollout_id and may act on all."""

    rollout_id: str
    epoch: int
    role: TokenRole
    expires_at: float


def generate_key_file(path: Path) -> None:
    """Writes a new private key, readable by the owner alone; an existing file is left as it is."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    os.replace(temporary, path)


def _pem_blocks(path: Path) -> list[bytes]:
    text = path.read_text(encoding="ascii")
    ends = text.split("-----END ")
    blocks = []
    for i, part in enumerate(ends[:-1]):
        begin = part[part.index("-----BEGIN ") :]
        blocks.append(f"{begin}-----END {ends[i + 1].split('-----')[0]}-----\n".encode("ascii"))
    if not blocks:
        raise ValueError(f"{path}: no PEM key found; make one with `hone up` or openssl (Ed25519)")
    return blocks


def _key_id(key: Ed25519PublicKey) -> str:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _load(path: Path) -> tuple[list[Ed25519PrivateKey], list[Ed25519PublicKey]]:
    private, public = [], []
    for block in _pem_blocks(path):
        if b"PRIVATE" in block:
            key = serialization.load_pem_private_key(block, password=None)
            if not isinstance(key, Ed25519PrivateKey):
                raise ValueError(f"{path}: found a {type(key).__name__}; Ed25519 keys are needed")
            private.append(key)
            public.append(key.public_key())
        else:
            loaded = serialization.load_pem_public_key(block)
            if not isinstance(loaded, Ed25519PublicKey):
                raise ValueError(f"{path}: found a {type(loaded).__name__}; Ed25519 is needed")
            public.append(loaded)
    return private, public


class TokenMinter:
    """Makes tokens with the first private key of a file."""

    def __init__(self, key_file: Path, clock: Callable[[], float]) -> None:
        """Reads the key.

        Raises:
            ValueError: the file holds no Ed25519 private key.
        """
        private, _ = _load(key_file)
        if not private:
            raise ValueError(f"{key_file}: holds public keys only; minting needs a private one")
        self._key = private[0]
        self._key_id = _key_id(private[0].public_key())
        self._clock = clock

    def mint(self, rollout_id: str, epoch: int, role: TokenRole, ttl_seconds: float) -> str:
        """Returns a token that is good for `ttl_seconds` from now."""
        claims = {
            "sub": rollout_id,
            "epoch": epoch,
            "role": role,
            "exp": int(self._clock() + ttl_seconds + 1),
        }
        return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": self._key_id})


class TokenVerifier:
    """Checks tokens against every key of a file."""

    def __init__(self, key_file: Path, clock: Callable[[], float]) -> None:
        """Reads the keys.

        Raises:
            ValueError: the file holds no Ed25519 key.
        """
        _, public = _load(key_file)
        self._keys: Mapping[str, Ed25519PublicKey] = {_key_id(key): key for key in public}
        self._clock = clock

    def verify(self, token: str) -> RolloutToken:
        """Returns what the token says.

        Raises:
            Unauthenticated: it is no token of ours, or malformed.
            PermissionDenied: it has expired.
        """
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                raise Unauthenticated("rollout token: signed with a key that is not known here")
            claims = jwt.decode(
                token,
                key,
                algorithms=["EdDSA"],
                options={"verify_exp": False, "require": ["sub", "epoch", "role", "exp"]},
            )
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(f"rollout token: {error}") from error
        if claims["role"] not in ROLES:
            raise Unauthenticated(f"rollout token: unknown role {claims['role']!r}")
        if self._clock() >= claims["exp"]:
            raise PermissionDenied("rollout token: expired", reason="TOKEN_EXPIRED")
        return RolloutToken(
            rollout_id=str(claims["sub"]),
            epoch=int(claims["epoch"]),
            role=cast(TokenRole, claims["role"]),
            expires_at=float(claims["exp"]),
        )


def current_token() -> RolloutToken | None:
    """Returns the verified token of the call that is being handled, if it carried one."""
    return _CURRENT.get()


def current_token_text() -> str:
    """Returns the token of the call as it came, to pass it on; empty if there was none."""
    return _CURRENT_TEXT.get()


def set_current(token: RolloutToken | None, text: str) -> None:
    """Puts the call's token into the context; called by the server interceptor alone."""
    _CURRENT.set(token)
    _CURRENT_TEXT.set(text)


def require_token(rollout_id: str, *roles: TokenRole) -> RolloutToken:
    """Returns the call's token if it may act on `rollout_id`.

    Raises:
        Unauthenticated: the call carried none.
        PermissionDenied: it is for another rollout, or its role is not among `roles` (empty: any).
    """
    token = current_token()
    if token is None:
        raise Unauthenticated("this call needs a rollout token in the metadata")
    if roles and token.role not in roles and token.role != "operator":
        raise PermissionDenied(f"role {token.role} may not do this; it needs {' or '.join(roles)}")
    if token.role != "operator" and token.rollout_id != rollout_id:
        raise PermissionDenied("the token belongs to another rollout", reason="WRONG_ROLLOUT")
    return token
