"""The RPCs over a real channel: the shared cases' figures, repetitions, errors."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from hone.memory.v1 import memory_pb2 as pb
from hone.memory.v1 import memory_pb2_grpc

from memory.memories import Memories
from memory.servicer import MemoryServicer
from servicekit.channels import connect
from servicekit.errors import AlreadyExists, InvalidArgument, NotFound
from servicekit.testing import running_server

Case = Callable[[str], dict[str, Any]]
ROLLOUT = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
async def address(memories: Memories) -> AsyncIterator[str]:
    servicer = MemoryServicer(memories)
    async with running_server(
        lambda server: memory_pb2_grpc.add_MemoryServiceServicer_to_server(servicer, server)
    ) as where:
        yield where


@pytest.fixture
async def stub(address: str) -> AsyncIterator[Any]:
    async with connect(address) as channel:
        yield memory_pb2_grpc.MemoryServiceStub(channel)


async def remember(stub: Any, intent: str, utility: float = 0.0, experience: str = "e") -> str:
    request = pb.RememberMemoryRequest(
        namespace="ns", intent=intent, experience=experience, utility=utility
    )
    return str((await stub.RememberMemory(request)).memory.memory_id)


def named(*memory_ids: str) -> pb.MemorySet:
    return pb.MemorySet(namespace="ns", memory_ids=memory_ids)


async def test_credits_give_the_figures_of_the_cases(stub: Any, case: Case) -> None:
    row = case("memrl_q_update")
    one = await remember(stub, "a", row["inputs"]["Q0"])
    after = []
    for number, reward in enumerate(row["inputs"]["rewards"]):
        request = pb.CreditMemoriesRequest(
            credit_id=f"c{number}",
            memories=named(one),
            reward=reward,
            learning_rate=row["inputs"]["alpha"],
        )
        after.append((await stub.CreditMemories(request)).memories[0].utility)
    assert after == pytest.approx(row["expected"]["Q_after_each"], abs=row["tol"])

    row = case("memrl_q_next")
    asked = row["inputs"]
    two = await remember(stub, "b", asked["Q0"])
    request = pb.CreditMemoriesRequest(
        credit_id="next",
        memories=named(two),
        reward=asked["r"],
        learning_rate=asked["alpha"],
        discount=asked["gamma"],
        max_next_utility=asked["max_next_Q"],
    )
    (changed,) = (await stub.CreditMemories(request)).memories
    assert changed.utility == pytest.approx(row["expected"]["Q"], abs=row["tol"])
    assert (changed.namespace, changed.memory_id) == ("ns", two)
    assert changed.previous_utility == asked["Q0"]


async def test_only_what_was_used_changes_as_in_the_case(stub: Any, case: Case) -> None:
    row = case("memrl_only_used_items")
    asked = row["inputs"]
    made = {
        name: await remember(stub, f"{0.9 if name in asked['used'] else 0.1} {name}", utility)
        for name, utility in asked["Q"].items()
    }
    await stub.RecallMemories(
        pb.RecallMemoriesRequest(namespace="ns", query="q", rollout_id=ROLLOUT)
    )
    await stub.CreditMemories(
        pb.CreditMemoriesRequest(
            credit_id="c", rollout_id=ROLLOUT, reward=asked["r"], learning_rate=asked["alpha"]
        )
    )
    listed = await stub.ListMemories(pb.ListMemoriesRequest(namespace="ns"))
    found = {memory.memory_id: memory.utility for memory in listed.memories}
    for name, utility in row["expected"]["Q"].items():
        assert found[made[name]] == pytest.approx(utility, abs=row["tol"])


async def test_a_recall_chooses_as_in_the_case(stub: Any, case: Case) -> None:
    row = case("memrl_two_phase")
    asked, expected = row["inputs"], row["expected"]
    made = [
        await remember(stub, f"{similarity} {number}", utility)
        for number, (similarity, utility) in enumerate(zip(asked["sim"], asked["Q"], strict=True))
    ]
    request = pb.RecallMemoriesRequest(
        namespace="ns",
        query="q",
        min_similarity=asked["delta"],
        utility_weight=asked["lambda"],
        max_memory_count=100,
    )
    every = (await stub.RecallMemories(request)).memories
    scores = {item.memory.memory_id: item.score for item in every}
    # Vectors are float32, so the cosines are the case's to seven digits.
    assert [scores[made[index]] for index in expected["candidates"]] == pytest.approx(
        expected["scores"], abs=1e-6
    )
    assert len(scores) == len(expected["candidates"])
    request.max_memory_count = asked["k2"]
    best = (await stub.RecallMemories(request)).memories
    assert [item.memory.memory_id for item in best] == [made[i] for i in expected["selected"]]


async def test_what_is_not_said_has_the_default_that_the_contract_names(stub: Any) -> None:
    for number in range(4):
        await remember(stub, f"0.6 {number}")
    await remember(stub, "0.45 too far")
    found = await stub.RecallMemories(pb.RecallMemoriesRequest(namespace="ns", query="q"))
    assert len(found.memories) == 3
    request = pb.RecallMemoriesRequest(namespace="ns", query="q", max_memory_count=100)
    assert len((await stub.RecallMemories(request)).memories) == 4
    request.min_similarity = 0.0
    assert len((await stub.RecallMemories(request)).memories) == 5
    one = found.memories[0].memory.memory_id
    credit = pb.CreditMemoriesRequest(credit_id="c", memories=named(one), reward=1)
    assert (await stub.CreditMemories(credit)).memories[0].utility == 0.5


async def test_every_call_may_be_repeated(stub: Any) -> None:
    one = await remember(stub, "0.9 a")
    await remember(stub, "0.8 b", utility=0.1)
    calls = (
        (stub.RecallMemories, dict(namespace="ns", query="q", rollout_id=ROLLOUT)),
        (stub.CreditMemories, dict(credit_id="c", rollout_id=ROLLOUT, reward=1.0)),
    )
    recall = pb.RecallMemoriesRequest(**calls[0][1])
    credit = pb.CreditMemoriesRequest(**calls[1][1])
    recalled, credited = await stub.RecallMemories(recall), await stub.CreditMemories(credit)
    assert await stub.CreditMemories(credit) == credited
    again = await stub.RecallMemories(recall)
    assert [item.memory.memory_id for item in again.memories] == [
        item.memory.memory_id for item in recalled.memories
    ]
    assert {item.memory.recall_count for item in again.memories} == {1}
    assert {item.memory.credit_count for item in again.memories} == {1}
    snapshot = pb.SnapshotMemoriesRequest(namespace="ns", snapshot_name="s")
    forget = pb.ForgetMemoryRequest(namespace="ns", memory_id=one)
    assert [(await stub.SnapshotMemories(snapshot)).created for _ in "ab"] == [True, False]
    assert [(await stub.ForgetMemory(forget)).forgotten for _ in "ab"] == [True, False]
    kept = pb.GetMemoryRequest(namespace="ns", memory_id=one, snapshot_name="s")
    assert (await stub.GetMemory(kept)).memory.intent == "0.9 a"


async def test_memories_are_credited_in_any_order(stub: Any) -> None:
    made = [await remember(stub, text) for text in "abc"]
    one, other = (
        pb.CreditMemoriesRequest(credit_id="c", memories=named(*order), reward=1)
        for order in (made, made[::-1])
    )
    assert await stub.CreditMemories(one) == await stub.CreditMemories(other)


async def test_pages_end(stub: Any) -> None:
    made = [await remember(stub, f"{number / 10}") for number in range(5)]
    request, found = pb.ListMemoriesRequest(namespace="ns", page_size=2), []
    for _ in range(3):
        page = await stub.ListMemories(request)
        found += [memory.memory_id for memory in page.memories]
        request.page_token = page.next_page_token
    assert found == made
    assert request.page_token == ""


@pytest.mark.parametrize(
    ("rpc", "request_message", "field"),
    [
        ("RememberMemory", pb.RememberMemoryRequest(), "namespace"),
        ("RecallMemories", pb.RecallMemoriesRequest(namespace="ns"), "query"),
        ("CreditMemories", pb.CreditMemoriesRequest(credit_id="c", reward=1), "target"),
        ("CreditMemories", pb.CreditMemoriesRequest(credit_id="c", rollout_id="r"), "reward"),
        (
            "CreditMemories",
            pb.CreditMemoriesRequest(credit_id="c", rollout_id="", reward=1),
            "rollout_id",
        ),
        ("ForgetMemory", pb.ForgetMemoryRequest(namespace="ns"), "memory_id"),
        ("GetMemory", pb.GetMemoryRequest(namespace="ns", memory_id="a\0"), "memory_id"),
        ("ListMemories", pb.ListMemoriesRequest(namespace="ns", page_size=101), "page_size"),
        ("ListMemories", pb.ListMemoriesRequest(namespace="ns", page_token="-1"), "page_token"),
        ("SnapshotMemories", pb.SnapshotMemoriesRequest(namespace="ns"), "snapshot_name"),
    ],
)
async def test_bad_requests_name_the_field(
    stub: Any, rpc: str, request_message: Any, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await getattr(stub, rpc)(request_message)
    assert set(caught.value.violations) == {field}


async def test_what_is_not_there_and_what_is_taken_are_told_apart(stub: Any) -> None:
    one = await remember(stub, "a")
    with pytest.raises(NotFound):
        await stub.GetMemory(pb.GetMemoryRequest(namespace="other", memory_id=one))
    with pytest.raises(NotFound):
        await stub.ListMemories(pb.ListMemoriesRequest(namespace="ns", snapshot_name="s"))
    request = pb.CreditMemoriesRequest(credit_id="c", memories=named(one), reward=1)
    await stub.CreditMemories(request)
    request.reward = 0
    with pytest.raises(AlreadyExists) as caught:
        await stub.CreditMemories(request)
    assert caught.value.reason == "CREDIT_ID_TAKEN"


async def test_the_largest_answer_fits_into_a_message(stub: Any) -> None:
    for number in range(100):
        await remember(stub, f"0.9 {number} " + "i" * 8_000, experience="e" * 65_536)
    request = pb.RecallMemoriesRequest(
        namespace="ns", query="q", max_candidate_count=100, max_memory_count=100
    )
    assert len((await stub.RecallMemories(request)).memories) == 100
    page = pb.ListMemoriesRequest(namespace="ns", page_size=100)
    assert len((await stub.ListMemories(page)).memories) == 100


async def test_bytes_that_are_no_text_end_the_call_and_not_the_service(
    address: str, stub: Any
) -> None:
    lone_surrogate = b"\x0a\x03\xed\xa0\x80"  # field 1, three bytes
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/hone.memory.v1.MemoryService/RememberMemory")(
                lone_surrogate
            )
    await remember(stub, "still there")
