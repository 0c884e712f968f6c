"""What the service tells the rest of the suite; the domain knows this protocol, `publisher` keeps it."""

from typing import Protocol

from sandbox.fleet.records import SandboxRecord
from sandbox.types import SandboxInfo


class Events(Protocol):
    """Tells facts. Telling one twice tells it once."""

    async def created(self, info: SandboxInfo) -> None:
        """Tell that a sandbox is ready.

        Raises:
            HoneError: it could not be told.
        """
        ...

    async def destroyed(self, record: SandboxRecord) -> None:
        """Tell that nothing is left of a sandbox.

        Raises:
            HoneError: it could not be told.
        """
        ...
