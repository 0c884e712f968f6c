"""Which addresses of endpoints may be called: a definition comes with a run, and must not reach what is internal.

Names are looked up here and the addresses that were checked are the ones that are connected to, so a name cannot
change between the check and the call.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatch

from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host; raises OSError if it has none."""


class Addresses:
    """An allow-list of hosts and networks."""

    def __init__(self, allow: Sequence[str], lookup: Lookup | None = None) -> None:
        """Read the list.

        Args:
            allow: `loopback`, `public`, `private`, networks such as 10.2.0.0/16, host names, patterns such as
                *.example.com.
            lookup: finds addresses; by default the system does.
        """
        self._allow = tuple(allow)
        self._lookup = lookup or _system_lookup
        self._words = frozenset(allow) & frozenset(_WORDS)
        self._networks = [network for text in allow if (network := _network(text)) is not None]
        self._names = [
            text.lower() for text in allow if text not in _WORDS and _network(text) is None
        ]

    async def of(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host that may be called.

        Raises:
            GradingFaultError: none may be, kind definition.
            OSError: the host has no address.
        """
        literal = _address(host)
        try:
            found = [host] if literal is not None else await self._lookup(host, port)
        except UnicodeError as err:
            raise uncallable(f"url: {host} is no host name: {err}") from err
        if literal is None and any(fnmatch(host.lower(), name) for name in self._names):
            return found
        allowed = [text for text in found if self._allows(text)]
        if not allowed:
            raise uncallable(
                f"url: {host} ({', '.join(found)}) may not be called: endpoint_allow lists "
                f"{', '.join(self._allow) or 'nothing'}; the operator adds hosts with HONE_GRADER_ENDPOINT_ALLOW"
            )
        return allowed

    def _allows(self, text: str) -> bool:
        address = _address(text)
        if address is None:
            return False
        if any(address in network for network in self._networks):
            return True
        return any(_WORDS[word](address) for word in self._words)


def check_allow(allow: Sequence[str]) -> None:
    """Raise ValueError for an element that is neither a word, a network nor a host name."""
    for text in allow:
        if text in _WORDS or _network(text) is not None:
            continue
        if not text or set(text) - _NAME_CHARACTERS:
            raise ValueError(
                f"endpoint_allow: {text!r} is no host name, pattern such as *.example.com, network such as "
                f"10.0.0.0/8, or one of {', '.join(_WORDS)}"
            )


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.*")


def _is_private(address: Address) -> bool:
    return address.is_private and not (
        address.is_loopback or address.is_link_local or address.is_unspecified
    )


def _is_public(address: Address) -> bool:
    site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not (address.is_multicast or address.is_reserved or site_local)


_WORDS: dict[str, Callable[[Address], bool]] = {
    "loopback": lambda address: address.is_loopback,
    "public": _is_public,
    # Link-local addresses are in none: a cloud's metadata service must be listed to be reached.
    "private": _is_private,
}


_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""IPv6 addresses whose last 32 bits are an IPv4 address: NAT64 (RFC 6052), IPv4-compatible (RFC 4291, 2.5.5.1)."""


def _address(text: str) -> Address | None:
    """Read an address; one that only carries an IPv4 address (mapped, 6to4, NAT64) is that address."""
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback or address.is_unspecified:
        return address
    if any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def uncallable(detail: str) -> GradingFaultError:
    """Return the fault of a definition whose url cannot be used."""
    return GradingFaultError(detail, kind=GraderErrorKind.DEFINITION, retryable=False, client=True)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


async def _system_lookup(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
