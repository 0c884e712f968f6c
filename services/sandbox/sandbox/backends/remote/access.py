"""How the remote service is reached: its addresses, the API key, and what of a template's network it can give."""

from pathlib import Path
from urllib.parse import urlsplit

from servicekit.errors import FailedPrecondition

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def internet(network_profile: str) -> bool:
    """Say whether a sandbox may reach the internet.

    Raises:
        FailedPrecondition: the profile is not known here.
    """
    if network_profile == "none":
        return False
    raise FailedPrecondition(
        f"network_profile {network_profile!r}: the backend remote knows only none",
        reason="UNSUPPORTED",
    )


def check_url(name: str, url: str) -> None:
    """Refuse to send keys in the clear to another machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise FailedPrecondition(f"{name} {url!r}: must begin with https://; http only for {_LOOPBACK}")


def read_key(path: Path | None) -> str:
    """Return the key; it is never shown, not even in part.

    Raises:
        FailedPrecondition: there is none.
    """
    if path is None:
        raise FailedPrecondition(
            "remote.api_key_file is not set: the file that holds the service's API key, alone"
        )
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise FailedPrecondition(
            f"remote.api_key_file {path}: {type(error).__name__}; must be a readable text file"
        ) from error
    if not key or any(not 32 < ord(c) < 127 for c in key):
        raise FailedPrecondition(
            f"remote.api_key_file {path}: must hold the key alone, without spaces"
        )
    return key
