"""What tests of runs share."""

from collections.abc import AsyncIterator

import pytest

from eventbus.memory_bus import MemoryBus


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    made = MemoryBus()
    yield made
    await made.close()
