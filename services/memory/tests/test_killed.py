"""A process killed between the write and the answer: what was answered is there, and the file opens again."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memory.memories import Memories

WRITER = """
import itertools, pathlib, sys, time
import numpy as np
from memory.memories import Memories
from memory.requests import Credit, Remember
from memory.store import MemoryStore

class Embedder:
    name, dimension = "written", 2
    def embed(self, text):
        return np.array([1, 0], np.float32)

store = MemoryStore(pathlib.Path(sys.argv[1]), embedder="written", dimension=2, clock=time.time)
memories = Memories(store, Embedder(), learning_rate=0.3, max_loaded_memories=1000)
for number in itertools.count():
    one = memories.remember(Remember(namespace="ns", intent=f"i{number}", experience="e"))
    memory_id = one.memory.memory_id
    print("remembered", memory_id, flush=True)
    memories.credit(Credit(credit_id=f"c{number}", reward=1.0, learning_rate=0.5,
                           namespace="ns", memory_ids=(memory_id,)))
    print("credited", memory_id, flush=True)
"""


@pytest.mark.fault
@pytest.mark.parametrize("answers", [1, 12])
def test_what_was_answered_outlives_a_kill(
    answers: int, file: Path, open_memories: Callable[..., Memories]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(answers)]
    process.kill()
    said += process.stdout.read().splitlines(keepends=True)
    process.wait()
    assert len([line for line in said if line.endswith("\n")]) >= answers
    memories = open_memories()
    kept = {m.memory_id: m.utility for m in memories.page("ns", "", 0, 1000).memories}
    for line in said:
        if not line.endswith("\n"):
            continue
        what, memory_id = line.split()
        assert memory_id in kept
        assert what == "remembered" or kept[memory_id] == 0.5
    memories.close()
