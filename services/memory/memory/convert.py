"""Messages of the memory service to and from domain types."""

import re

from hone.memory.v1 import memory_pb2 as pb

from memory import checks, requests
from memory.records import Credited, Memory, MemoryPage, Recalled, Remembered, Snapshot
from memory.requests import Credit, Recall, Remember
from trajectory.convert import time_to_proto

_TOKEN = re.compile(r"[1-9][0-9]{0,17}")


def remember_from_proto(request: pb.RememberMemoryRequest) -> Remember:
    """Convert a memory to add.

    Raises:
        InvalidArgument: names the field, what was found and what would be right. So do the functions below.
    """
    return Remember(
        namespace=request.namespace,
        intent=request.intent,
        experience=request.experience,
        utility=request.utility,
    )


def recall_from_proto(request: pb.RecallMemoriesRequest) -> Recall:
    """Convert a recall."""
    return Recall(
        namespace=request.namespace,
        query=request.query,
        max_candidate_count=request.max_candidate_count or requests.DEFAULT_CANDIDATES,
        min_similarity=request.min_similarity
        if request.HasField("min_similarity")
        else requests.DEFAULT_MIN_SIMILARITY,
        utility_weight=request.utility_weight
        if request.HasField("utility_weight")
        else requests.DEFAULT_UTILITY_WEIGHT,
        max_memory_count=request.max_memory_count or requests.DEFAULT_RETURNED,
        rollout_id=request.rollout_id,
        snapshot_name=request.snapshot_name,
        exploration_rate=request.exploration.rate,
        seed=request.exploration.seed,
    )


def credit_from_proto(request: pb.CreditMemoriesRequest) -> Credit:
    """Convert a credit."""
    target = request.WhichOneof("target")
    if target is None:
        raise checks.wrong("target", "found none; rollout_id or memories is right")
    if target == "rollout_id":
        checks.name("rollout_id", request.rollout_id)
    if not request.HasField("reward"):
        raise checks.wrong("reward", "found none; a number is right")
    return Credit(
        credit_id=request.credit_id,
        reward=request.reward,
        learning_rate=request.learning_rate if request.HasField("learning_rate") else None,
        discount=request.discount,
        max_next_utility=request.max_next_utility,
        rollout_id=request.rollout_id,
        namespace=request.memories.namespace,
        memory_ids=tuple(sorted(request.memories.memory_ids)),
    )


def position_from_token(page_token: str) -> int:
    """Return where the page begins."""
    if not page_token:
        return 0
    if not _TOKEN.fullmatch(page_token):
        raise checks.wrong("page_token", "found one that no ListMemories returned")
    return int(page_token)


def remembered_to_proto(remembered: Remembered) -> pb.RememberMemoryResponse:
    """Convert a memory that is there."""
    return pb.RememberMemoryResponse(
        memory=memory_to_proto(remembered.memory), created=remembered.created
    )


def recalled_to_proto(recalled: tuple[Recalled, ...]) -> pb.RecallMemoriesResponse:
    """Convert what fits."""
    return pb.RecallMemoriesResponse(
        memories=[
            pb.RecalledMemory(
                memory=memory_to_proto(item.memory), similarity=item.similarity, score=item.score
            )
            for item in recalled
        ]
    )


def credited_to_proto(credited: tuple[Credited, ...]) -> pb.CreditMemoriesResponse:
    """Convert what a credit changed."""
    return pb.CreditMemoriesResponse(
        memories=[
            pb.CreditedMemory(
                namespace=item.namespace,
                memory_id=item.memory_id,
                previous_utility=item.previous_utility,
                utility=item.utility,
            )
            for item in credited
        ]
    )


def page_to_proto(page: MemoryPage) -> pb.ListMemoriesResponse:
    """Convert a page."""
    return pb.ListMemoriesResponse(
        memories=[memory_to_proto(memory) for memory in page.memories],
        next_page_token=str(page.next_position) if page.next_position else "",
    )


def snapshot_to_proto(snapshot: Snapshot) -> pb.SnapshotMemoriesResponse:
    """Convert a snapshot."""
    return pb.SnapshotMemoriesResponse(
        snapshot=pb.Snapshot(
            namespace=snapshot.namespace,
            snapshot_name=snapshot.snapshot_name,
            memory_count=snapshot.memory_count,
            create_time=time_to_proto(snapshot.create_time),
        ),
        created=snapshot.created,
    )


def memory_to_proto(memory: Memory) -> pb.Memory:
    """Convert a memory."""
    return pb.Memory(
        memory_id=memory.memory_id,
        namespace=memory.namespace,
        intent=memory.intent,
        experience=memory.experience,
        utility=memory.utility,
        recall_count=memory.recall_count,
        credit_count=memory.credit_count,
        create_time=time_to_proto(memory.create_time),
        update_time=time_to_proto(memory.update_time),
    )
