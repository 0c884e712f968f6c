"""What tests of runs share."""

import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus.memory_bus import MemoryBus


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    made = MemoryBus()
    yield made
    await made.close()


@pytest.fixture(scope="session")
def case() -> Callable[[str], Any]:
    """Looks up one of the shared cases by its id; skips where they are not at hand."""
    shared = Path(os.environ.get("HONE_SHARED", Path(__file__).parents[4] / "shared"))
    file = shared / "cases" / "losses.json"
    if not file.is_file():
        pytest.skip(f"{file} is not there; set HONE_SHARED")
    cases = json.loads(file.read_text(encoding="utf-8"))["cases"]
    return {case["id"]: case for case in cases}.__getitem__
