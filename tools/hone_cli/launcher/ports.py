"""Finds ports that are free on loopback."""

import errno
import socket

HOST = "127.0.0.1"


class PortAllocator:
    """Gives out each port once; where the wanted one is busy, the next free one above it."""

    def __init__(self) -> None:
        """Starts with nothing given out."""
        self._given: set[int] = set()
        self.moved: dict[int, int] = {}
        """Wanted port to the one given instead."""

    def take(self, wanted: int) -> int:
        """Returns a free port.

        Raises:
            OSError: no port from the wanted one up is free.
        """
        for port in range(wanted, 65536):
            if port not in self._given and is_free(port):
                self._given.add(port)
                if port != wanted:
                    self.moved[wanted] = port
                return port
        raise OSError(errno.EADDRINUSE, f"no port from {wanted} up is free on {HOST}")

    def reserve(self, ports: range) -> None:
        """Keeps ports from being given out as a replacement for another."""
        self._given |= set(ports)

    def release(self, port: int) -> None:
        """Lets a reserved port be taken."""
        self._given.discard(port)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections linger in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True
