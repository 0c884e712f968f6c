"""Which backends there are, by the name that the settings choose."""

from collections.abc import Callable, Mapping
from pathlib import Path

from sandbox.backends.local import LocalBackend
from sandbox.backends.protocol import Backend

BACKENDS: Mapping[str, Callable[[Path], Backend]] = {
    "local": LocalBackend,
}
"""Each takes the folder for its own state."""
