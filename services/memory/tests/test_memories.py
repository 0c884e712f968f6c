"""Remember, recall, credit, forget and snapshot on a real file."""

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory.memories import Memories
from memory.records import Recalled
from memory.requests import Credit, Recall, Remember
from memory.store import MemoryStore
from servicekit.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound, Unavailable

Add = Callable[..., str]
ROLLOUT = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "0190b5c2-0000-7000-8000-0000000000ff"
REMEMBER = {"namespace": "ns", "intent": "b", "experience": "e"}


def recall(memories: Memories, **changes: Any) -> tuple[Recalled, ...]:
    return memories.recall(Recall(**{"namespace": "ns", "query": "q", **changes}))


def ids(found: tuple[Recalled, ...]) -> list[str]:
    return [item.memory.memory_id for item in found]


def credit(memories: Memories, credit_id: str = "c1", **changes: Any) -> dict[str, float]:
    asked = {"reward": 1.0, "learning_rate": 0.5, **changes}
    changed = memories.credit(Credit(credit_id=credit_id, **asked))
    return {item.memory_id: item.utility for item in changed}


def utilities(memories: Memories, snapshot_name: str = "") -> dict[str, float]:
    page = memories.page("ns", snapshot_name, 0, 100)
    return {memory.memory_id: memory.utility for memory in page.memories}


def test_equal_content_is_one_memory_and_the_first_stays(memories: Memories, clock: Any) -> None:
    first = memories.remember(Remember(namespace="ns", intent="i", experience="e", utility=0.5))
    clock.now += 5
    again = memories.remember(Remember(namespace="ns", intent="i", experience="e", utility=0.9))
    assert (first.created, again.created) == (True, False)
    assert again.memory == first.memory
    assert len(recall(memories)) == 1


def test_other_content_or_namespace_is_another_memory(memories: Memories, remember: Add) -> None:
    made = [
        remember("i"),
        remember("i", experience="other"),
        remember("j"),
        remember("i", namespace="ns2"),
    ]
    assert len(set(made)) == 4
    assert ids(recall(memories)) == made[:3]


def test_only_what_the_rollout_recalled_is_credited_as_in_the_case(
    memories: Memories, remember: Add, case: Callable[[str], dict[str, Any]]
) -> None:
    row = case("memrl_only_used_items")
    asked = row["inputs"]
    made = {
        name: remember(f"{0.9 if name in asked['used'] else 0.1} {name}", utility)
        for name, utility in asked["Q"].items()
    }
    assert set(ids(recall(memories, rollout_id=ROLLOUT))) == {made[n] for n in asked["used"]}
    credit(memories, rollout_id=ROLLOUT, reward=asked["r"], learning_rate=asked["alpha"])
    found = utilities(memories)
    for name, utility in row["expected"]["Q"].items():
        assert found[made[name]] == pytest.approx(utility, abs=row["tol"])


def test_a_useful_memory_overtakes_a_more_similar_one(memories: Memories, remember: Add) -> None:
    similar, useful, other = remember("0.9 a"), remember("0.8 b"), remember("0.6 c")
    assert ids(recall(memories, max_memory_count=1)) == [similar]
    credit(memories, namespace="ns", memory_ids=(useful,))
    assert ids(recall(memories, max_memory_count=1)) == [useful]
    assert ids(recall(memories, utility_weight=0.0)) == [similar, useful, other]


def test_recall_keeps_to_the_number_of_candidates_and_to_the_gate(
    memories: Memories, remember: Add
) -> None:
    near, far = remember("0.9 a"), remember("0.6 b", utility=9.0)
    remember("0.4 c", utility=99.0)
    assert set(ids(recall(memories))) == {near, far}
    assert ids(recall(memories, max_candidate_count=1)) == [near]
    assert recall(memories, min_similarity=0.95) == ()


def test_equal_intents_are_ranked_by_utility_alone(memories: Memories, remember: Add) -> None:
    made = [remember("same", utility=n / 10, experience=f"{n}") for n in (3, 1, 2)]
    found = recall(memories)
    assert len({item.similarity for item in found}) == 1
    assert ids(found) == [made[0], made[2], made[1]]


def test_a_rollout_gets_its_first_answer_again_and_uses_it_once(
    memories: Memories, remember: Add
) -> None:
    low, high = remember("0.7 a"), remember("0.7 b", utility=1.0)
    first = recall(memories, rollout_id=ROLLOUT, max_memory_count=1)
    assert ids(first) == [high]
    credit(memories, namespace="ns", memory_ids=(low,), reward=9.0)
    again = recall(memories, rollout_id=ROLLOUT, max_memory_count=1)
    assert again == first
    assert ids(recall(memories, max_memory_count=1)) == [low], "others see what was learned"
    assert again[0].memory.recall_count == 1
    assert credit(memories, "c2", rollout_id=ROLLOUT).keys() == {high}


def test_a_rollout_that_got_nothing_gets_nothing_again(memories: Memories, remember: Add) -> None:
    assert recall(memories, rollout_id=ROLLOUT) == ()
    one = remember("0.9 a")
    assert recall(memories, rollout_id=ROLLOUT) == ()
    assert credit(memories, rollout_id=ROLLOUT) == {}
    assert ids(recall(memories, rollout_id=OTHER)) == [one]
    memories.forget("ns", one)
    remember("0.9 b")
    assert recall(memories, rollout_id=OTHER) == (), "what it got is forgotten"


def test_rollouts_that_give_no_seed_explore_at_the_rate_and_each_alike_when_repeated(
    memories: Memories, remember: Add
) -> None:
    best, other = remember("0.9 a", utility=1.0), remember("0.8 b")
    asked = {"max_memory_count": 1, "exploration_rate": 0.4}
    drawn = [ids(recall(memories, query=f"q{number}", **asked)) for number in range(200)]
    assert drawn == [ids(recall(memories, query=f"q{number}", **asked)) for number in range(200)]
    assert drawn.count([best]) + drawn.count([other]) == 200
    # Half of the draws draw the best.
    assert 20 <= drawn.count([other]) <= 60


def test_several_recalls_of_a_rollout_are_credited_together_and_each_memory_once(
    memories: Memories, remember: Add
) -> None:
    made = {remember("0.9 a"), remember("0.8 b"), remember("0.9 c", namespace="ns2")}
    for query, namespace in itertools.product(("q", "r"), ("ns", "ns2")):
        recall(memories, query=query, namespace=namespace, rollout_id=ROLLOUT)
    recall(memories, rollout_id=OTHER, max_memory_count=1)
    assert credit(memories, rollout_id=ROLLOUT) == dict.fromkeys(made, 0.5)


def test_a_recall_without_rollout_is_not_recorded(memories: Memories, remember: Add) -> None:
    remember("a")
    assert recall(memories)[0].memory.recall_count == 0
    assert credit(memories, rollout_id=ROLLOUT) == {}


def test_a_repeated_credit_changes_nothing_and_says_what_the_first_did(
    memories: Memories, remember: Add, clock: Any
) -> None:
    one = remember("a", utility=0.2)
    first = credit(memories, namespace="ns", memory_ids=(one,))
    clock.now += 5
    credit(memories, "c2", namespace="ns", memory_ids=(one,))
    assert credit(memories, namespace="ns", memory_ids=(one,)) == first == {one: 0.6}
    memory = memories.get("ns", one, "")
    assert (memory.utility, memory.credit_count) == (0.8, 2)
    assert memory.update_time.timestamp() == 1005.0


def test_a_credit_is_the_same_when_the_default_learning_rate_has_changed(
    open_memories: Callable[..., Memories],
) -> None:
    memories = open_memories(learning_rate=0.25)
    one = memories.remember(Remember(namespace="ns", intent="a", experience="e"))
    named = {"namespace": "ns", "memory_ids": (one.memory.memory_id,)}
    first = credit(memories, learning_rate=None, **named)
    assert list(first.values()) == [0.25]
    memories.close()
    memories = open_memories(learning_rate=0.5)
    assert credit(memories, learning_rate=None, **named) == first
    memories.close()


def test_a_credit_id_stands_for_one_credit(memories: Memories, remember: Add) -> None:
    one = remember("a")
    credit(memories, namespace="ns", memory_ids=(one,))
    with pytest.raises(AlreadyExists, match="c1") as caught:
        credit(memories, namespace="ns", memory_ids=(one,), reward=0.5)
    assert caught.value.reason == "CREDIT_ID_TAKEN"
    assert utilities(memories) == {one: 0.5}


def test_a_credit_of_a_memory_that_is_not_there_credits_none_and_leaves_its_id_free(
    memories: Memories, remember: Add
) -> None:
    one = remember("a")
    with pytest.raises(NotFound, match="'mem_x' in namespace 'ns'"):
        credit(memories, namespace="ns", memory_ids=(one, "mem_x"))
    assert utilities(memories) == {one: 0.0}
    assert credit(memories, namespace="ns", memory_ids=(one,)) == {one: 0.5}


def test_what_is_forgotten_is_neither_recalled_nor_credited_and_can_be_learned_anew(
    memories: Memories, remember: Add
) -> None:
    one, two = remember("0.9 a", utility=0.5), remember("0.8 b")
    recall(memories, rollout_id=ROLLOUT)
    assert memories.forget("ns", one)
    assert not memories.forget("ns", one)
    assert ids(recall(memories)) == ids(recall(memories, rollout_id=ROLLOUT)) == [two]
    assert remember("0.9 a") == one
    assert ids(recall(memories)) == [one, two]
    assert credit(memories, rollout_id=ROLLOUT) == {two: 0.5}
    with pytest.raises(NotFound):
        memories.get("ns", "mem_x", "")


def test_a_snapshot_stays_as_it_was(memories: Memories, remember: Add) -> None:
    one = remember("0.9 a", utility=0.25)
    snapshot = memories.snapshot("ns", "before")
    assert (snapshot.memory_count, snapshot.created) == (1, True)
    two = remember("0.8 b", utility=9.0)
    credit(memories, namespace="ns", memory_ids=(one,))
    assert utilities(memories, "before") == {one: 0.25}
    assert ids(recall(memories, snapshot_name="before")) == [one]
    assert memories.get("ns", one, "before").utility == 0.25
    again = memories.snapshot("ns", "before")
    assert (again.memory_count, again.created) == (1, False)
    assert again.create_time == snapshot.create_time
    memories.forget("ns", one)
    assert ids(recall(memories, snapshot_name="before")) == [one]
    assert ids(recall(memories)) == [two]


def test_a_snapshot_that_is_not_there_is_named(memories: Memories) -> None:
    with pytest.raises(NotFound, match="'late' of namespace 'ns'"):
        recall(memories, snapshot_name="late")
    with pytest.raises(NotFound, match="'late'"):
        memories.page("ns", "late", 0, 10)


def test_a_namespace_that_holds_nothing_is_empty(memories: Memories) -> None:
    assert recall(memories) == ()
    assert memories.page("ns", "", 0, 10).memories == ()
    assert memories.snapshot("ns", "empty").memory_count == 0
    assert recall(memories, snapshot_name="empty") == ()


def test_pages_hold_every_memory_once_oldest_first(memories: Memories, remember: Add) -> None:
    made = []
    for number in range(7):
        made.append(remember(f"i{number}"))
        remember(f"i{number}", namespace="ns2")
    found, position = [], 0
    for _ in range(3):
        page = memories.page("ns", "", position, 3)
        found.append([memory.memory_id for memory in page.memories])
        position = page.next_position
    assert found == [made[:3], made[3:6], made[6:]]
    assert position == 0


def test_all_is_there_after_opening_again(open_memories: Callable[..., Memories]) -> None:
    memories = open_memories()
    request = Remember(namespace="ns", intent="0.9 a", experience="e", utility=0.2)
    one = memories.remember(request).memory.memory_id
    recall(memories, rollout_id=ROLLOUT)
    credit(memories, rollout_id=ROLLOUT)
    memories.snapshot("ns", "s")
    before = recall(memories), utilities(memories, "s")
    memories.close()
    memories = open_memories()
    assert (recall(memories), utilities(memories, "s")) == before
    assert credit(memories, rollout_id=ROLLOUT) == {one: 0.6}
    memories.close()


def test_namespaces_beyond_the_room_in_ram_are_searched_all_the_same(
    open_memories: Callable[..., Memories],
) -> None:
    memories = open_memories(max_loaded_memories=3)
    for number, namespace in itertools.product(range(2), ("a", "b", "c")):
        memories.remember(Remember(namespace=namespace, intent=f"i{number}", experience=namespace))
        for searched in ("a", "b", "c"):
            recall(memories, namespace=searched)
    for namespace in ("a", "b", "c"):
        found = recall(memories, namespace=namespace)
        assert [item.memory.experience for item in found] == [namespace] * 2
    memories.close()


def test_a_file_in_use_is_refused(memories: Memories, open_memories: Any, remember: Add) -> None:
    with pytest.raises(FailedPrecondition, match="another memory service"):
        open_memories()
    remember("the first goes on")


@pytest.mark.parametrize(
    "made", ["CREATE TABLE memories (a)", "CREATE TABLE a (b); PRAGMA user_version = 1"]
)
def test_a_file_of_another_program_is_refused_and_stays_as_it_is(
    file: Path, open_memories: Callable[..., Memories], made: str
) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(made)
    before = file.read_bytes()
    with pytest.raises(FailedPrecondition, match="of another program"):
        open_memories()
    assert file.read_bytes() == before


def test_a_file_whose_making_was_cut_short_is_made_whole(
    file: Path, open_memories: Callable[..., Memories]
) -> None:
    open_memories().close()
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("DROP TABLE credited; PRAGMA user_version = 0")
    memories = open_memories()
    assert credit(memories, rollout_id=ROLLOUT) == {}
    memories.close()


def test_a_damaged_file_is_named_as_such(
    file: Path, open_memories: Callable[..., Memories], damage: Callable[[str], None]
) -> None:
    memories = open_memories()
    memories.remember(Remember(namespace="ns", intent="a", experience="e"))
    memories.close()
    damage("memories")
    memories = open_memories()
    for use in (recall, utilities, lambda m: m.remember(Remember(**REMEMBER))):
        with pytest.raises(DataLoss, match=f"{file} is damaged"):
            use(memories)
    memories.close()
    file.write_bytes(b"no SQLite file" * 100)
    with pytest.raises(DataLoss, match="no SQLite file"):
        open_memories()


def test_a_folder_that_cannot_be_used_is_named(
    file: Path, open_memories: Callable[..., Memories]
) -> None:
    file.with_name(file.name + ".lock").mkdir()
    with pytest.raises(Unavailable, match=f"{file} cannot be opened"):
        open_memories()


def test_a_file_of_another_embedder_or_version_is_refused_and_let_go(
    file: Path, open_memories: Callable[..., Memories], clock: Any
) -> None:
    open_memories().close()
    with pytest.raises(FailedPrecondition, match=r"vectors of written.*those of other"):
        MemoryStore(file, embedder="other", dimension=2, clock=clock)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(FailedPrecondition, match="version 9"):
        open_memories()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 1")
    open_memories().close()
