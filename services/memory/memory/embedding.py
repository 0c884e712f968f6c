"""The seam to whatever turns a text into a vector."""

from typing import Protocol

from memory.nearest import Vectors


class Embedder(Protocol):
    """Turns texts into unit vectors whose dot product says how alike they are. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """What makes vectors comparable: a file of memories is of one embedder."""
        ...

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        ...

    def embed(self, text: str) -> Vectors:
        """Return a unit vector of shape [dimension], equal for equal texts."""
        ...
