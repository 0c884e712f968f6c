"""The memory service's RPCs: thin, the memories do the work, in threads."""

import asyncio
from typing import Any

import grpc
from hone.memory.v1 import memory_pb2 as pb
from hone.memory.v1 import memory_pb2_grpc

from memory import checks, convert
from memory.memories import Memories
from memory.requests import MAX_RETURNED

_DEFAULT_PAGE = 50


class MemoryServicer(memory_pb2_grpc.MemoryServiceServicer):
    """Answers from the memories."""

    def __init__(self, memories: Memories) -> None:
        """Answer from these."""
        self._memories = memories

    async def RememberMemory(
        self, request: pb.RememberMemoryRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.RememberMemoryResponse:
        """Add a memory."""
        asked = convert.remember_from_proto(request)
        remembered = await asyncio.to_thread(self._memories.remember, asked)
        return convert.remembered_to_proto(remembered)

    async def RecallMemories(
        self, request: pb.RecallMemoriesRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.RecallMemoriesResponse:
        """Return what fits a query."""
        asked = convert.recall_from_proto(request)
        return convert.recalled_to_proto(await asyncio.to_thread(self._memories.recall, asked))

    async def CreditMemories(
        self, request: pb.CreditMemoriesRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.CreditMemoriesResponse:
        """Move utilities towards a reward."""
        credit = convert.credit_from_proto(request)
        return convert.credited_to_proto(await asyncio.to_thread(self._memories.credit, credit))

    async def ForgetMemory(
        self, request: pb.ForgetMemoryRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.ForgetMemoryResponse:
        """Remove a memory."""
        checks.name("namespace", request.namespace)
        checks.name("memory_id", request.memory_id)
        forgotten = await asyncio.to_thread(
            self._memories.forget, request.namespace, request.memory_id
        )
        return pb.ForgetMemoryResponse(forgotten=forgotten)

    async def GetMemory(
        self, request: pb.GetMemoryRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.GetMemoryResponse:
        """Return one memory."""
        _check_scope(request.namespace, request.snapshot_name)
        checks.name("memory_id", request.memory_id)
        memory = await asyncio.to_thread(
            self._memories.get, request.namespace, request.memory_id, request.snapshot_name
        )
        return pb.GetMemoryResponse(memory=convert.memory_to_proto(memory))

    async def ListMemories(
        self, request: pb.ListMemoriesRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.ListMemoriesResponse:
        """Return a page of memories."""
        _check_scope(request.namespace, request.snapshot_name)
        size = request.page_size or _DEFAULT_PAGE
        checks.count("page_size", size, 1, MAX_RETURNED)
        page = await asyncio.to_thread(
            self._memories.page,
            request.namespace,
            request.snapshot_name,
            convert.position_from_token(request.page_token),
            size,
        )
        return convert.page_to_proto(page)

    async def SnapshotMemories(
        self, request: pb.SnapshotMemoriesRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.SnapshotMemoriesResponse:
        """Copy a namespace."""
        checks.name("namespace", request.namespace)
        checks.name("snapshot_name", request.snapshot_name)
        snapshot = await asyncio.to_thread(
            self._memories.snapshot, request.namespace, request.snapshot_name
        )
        return convert.snapshot_to_proto(snapshot)


def _check_scope(namespace: str, snapshot_name: str) -> None:
    checks.name("namespace", namespace)
    if snapshot_name:
        checks.name("snapshot_name", snapshot_name)
