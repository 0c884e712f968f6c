"""Starts the memory service: `python -m memory`."""

import asyncio
import time

from hone.memory.v1 import memory_pb2, memory_pb2_grpc

from eventbus.nats_bus import NatsBus
from memory.consumer import follow
from memory.memories import Memories
from memory.servicer import MemoryServicer
from memory.settings import MemorySettings
from memory.store import MemoryStore
from servicekit.serve import App, run


async def build(app: App[MemorySettings]) -> None:
    """Put the service together; calls are answered from the start, events once NATS is there."""
    settings = app.settings
    # Imported when it is needed: it loads its weights' library, which --help can do without.
    from memory.wordllama_embedder import WordLlamaEmbedder

    embedder = WordLlamaEmbedder()
    store = MemoryStore(
        settings.data_dir / "memory.sqlite",
        embedder=embedder.name,
        dimension=embedder.dimension,
        clock=time.time,
    )
    memories = Memories(
        store,
        embedder,
        learning_rate=settings.learning_rate,
        max_loaded_memories=settings.max_loaded_memories,
    )
    app.on_close(lambda: asyncio.to_thread(memories.close))
    memory_pb2_grpc.add_MemoryServiceServicer_to_server(MemoryServicer(memories), app.server)
    app.add_service(memory_pb2.DESCRIPTOR.services_by_name["MemoryService"].full_name)
    app.spawn(
        follow(
            lambda: NatsBus.connect(settings.nats_url, name="memory"),
            memories,
            app.stopping,
        ),
        name="events",
    )


if __name__ == "__main__":
    run("memory", MemorySettings, build)
