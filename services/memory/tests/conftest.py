"""Fixtures of the memory service's tests: an embedder whose cosines are written in the texts, memories in a file."""

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.memories import Memories
from memory.nearest import Vectors
from memory.requests import Remember
from memory.store import MemoryStore


class WrittenEmbedder:
    """Embeds a text that begins with a number as a vector of that cosine with every text that does not."""

    name = "written"
    dimension = 2

    def embed(self, text: str) -> Vectors:
        try:
            cosine = float(text.split()[0])
        except ValueError:
            cosine = 1.0
        return np.array([cosine, math.sqrt(1 - cosine**2)], np.float32)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "memory.sqlite"


@pytest.fixture
def damage(file: Path) -> Callable[[str], None]:
    """Overwrites a table's first page; nobody may have the file open."""

    def overwrite(table: str) -> None:
        with closing(sqlite3.connect(file)) as connection:
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            (page,) = connection.execute(
                "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
            ).fetchone()
        with file.open("r+b") as opened:
            opened.seek((page - 1) * size)
            opened.write(b"\xff" * size)

    return overwrite


@pytest.fixture
def open_memories(file: Path, clock: Clock) -> Callable[..., Memories]:
    """Opens the file; whoever opens closes."""

    def open_them(max_loaded_memories: int = 1000, learning_rate: float = 0.5) -> Memories:
        embedder = WrittenEmbedder()
        store = MemoryStore(file, embedder=embedder.name, dimension=embedder.dimension, clock=clock)
        return Memories(
            store,
            embedder,
            learning_rate=learning_rate,
            max_loaded_memories=max_loaded_memories,
        )

    return open_them


@pytest.fixture
def memories(open_memories: Callable[..., Memories]) -> Iterator[Memories]:
    opened = open_memories()
    yield opened
    opened.close()


@pytest.fixture
def remember(memories: Memories) -> Callable[..., str]:
    """Adds a memory and returns its id."""

    def add(intent: str, utility: float = 0.0, namespace: str = "ns", experience: str = "e") -> str:
        request = Remember(
            namespace=namespace, intent=intent, experience=experience, utility=utility
        )
        return memories.remember(request).memory.memory_id

    return add


@pytest.fixture(scope="session")
def case() -> Callable[[str], dict[str, Any]]:
    """Looks up one of the shared cases by its id; skips where they are not at hand."""
    shared = Path(os.environ.get("HONE_SHARED", Path(__file__).parents[4] / "shared"))
    cases = shared / "cases" / "losses.json"
    if not cases.exists():
        pytest.skip(f"{cases} is not there; set HONE_SHARED")
    rows = json.loads(cases.read_text(encoding="utf-8"))["cases"]
    return {row["id"]: row for row in rows}.__getitem__
