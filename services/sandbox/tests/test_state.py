"""The backend `state`: what a statement gives back, what it may not reach, and that rollouts share nothing."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.backends.protocol import BoxLost
from sandbox.backends.state.backend import StateBackend
from sandbox.backends.state.box import StateBox
from sandbox.settings import StateOptions
from sandbox.types import MIB, BoxFile, BoxSpec, Chunk, Command, ExecOutcome, Limits, Template
from sandbox.types import Termination as End
from servicekit.errors import FailedPrecondition, InvalidArgument, Unavailable

SEED = """
CREATE TABLE accounts(name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
INSERT INTO accounts VALUES ('ada', 500), ('bob', 20);
"""
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
ENDLESS_ROWS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    path = tmp_path / "seed.sql"
    path.write_text(SEED)
    return path


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[StateBackend]:
    made = StateBackend(tmp_path / "data", StateOptions(parallel_statements=4))
    await made.start()
    yield made
    await made.close()


async def _make(
    backend: StateBackend, name: str, seed: Path | str = "host", **changes: object
) -> StateBox:
    spec: dict[str, object] = {"sandbox_id": name, "template": Template(rootfs=str(seed))}
    return await backend.create(BoxSpec(**(spec | changes)), lambda _: None)  # type: ignore[arg-type]


async def _sql(box: StateBox, *arguments: str, **changes: object) -> ExecOutcome:
    fields: dict[str, object] = {"exec_id": "e", "argv": ("sql", *arguments)}
    return await box.run(Command(**(fields | changes)), {}, None)  # type: ignore[arg-type]


def _rows(outcome: ExecOutcome) -> list[dict[str, object]]:
    assert (outcome.termination, outcome.exit_code, outcome.stderr) == (End.EXITED, 0, b"")
    return [json.loads(line) for line in outcome.stdout.splitlines()]


async def test_rows_are_json_lines_and_parameters_are_bound(backend, seed):
    box = await _make(backend, "a", seed)
    rows = _rows(await _sql(box, "SELECT name, cents FROM accounts WHERE cents > ?", "[100]"))
    assert rows == [{"name": "ada", "cents": 500}]
    rows = _rows(await _sql(box, "SELECT :n AS n, x'00ff' AS b, 9e999 AS big", '{"n": "O\'Hara"}'))
    assert rows == [{"n": "O'Hara", "b": {"base64": "AP8="}, "big": "inf"}]
    assert _rows(await _sql(box, "SELECT 1 AS a, 2 AS a")) == [{"a": 1, "a_2": 2}]
    assert _rows(await _sql(box, "UPDATE accounts SET cents = 1")) == [{"changes": 2}]


async def test_each_rollout_has_its_own_clone_and_the_seed_stays(backend, seed):
    boxes = [await _make(backend, f"box{number}", seed) for number in range(20)]
    assert len({box.rootfs_digest for box in boxes}) == 1
    await asyncio.gather(
        *(
            _sql(box, "UPDATE accounts SET cents = ? WHERE name = 'ada'", f"[{number}]")
            for number, box in enumerate(boxes)
        )
    )
    for number, box in enumerate(boxes):
        rows = _rows(await _sql(box, "SELECT cents FROM accounts WHERE name = 'ada'"))
        assert rows == [{"cents": number}]
    fresh = await _make(backend, "fresh", seed)
    assert _rows(await _sql(fresh, "SELECT sum(cents) AS s FROM accounts")) == [{"s": 520}]
    assert backend.live_count() == 21
    await asyncio.gather(*(box.destroy() for box in boxes))
    assert backend.live_count() == 1


async def test_a_changed_seed_has_another_digest(backend, seed):
    first = await _make(backend, "a", seed)
    seed.write_text(SEED + "INSERT INTO accounts VALUES ('eve', 1);")
    second = await _make(backend, "b", seed)
    assert first.rootfs_digest != second.rootfs_digest
    assert _rows(await _sql(second, "SELECT count(*) AS n FROM accounts")) == [{"n": 3}]


async def test_a_seed_may_be_a_database_file_in_use(backend, tmp_path):
    path = tmp_path / "seed.db"
    with closing(sqlite3.connect(path)) as source:
        source.execute("PRAGMA journal_mode=WAL")
        source.executescript(SEED)
        box = await _make(backend, "a", path)
    assert _rows(await _sql(box, "SELECT count(*) AS n FROM accounts")) == [{"n": 2}]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("not a database", "neither an SQLite file"), ("", "neither")],
)
async def test_a_seed_that_is_none_is_refused(backend, tmp_path, content, said):
    path = tmp_path / "seed.bin"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FailedPrecondition, match=said):
        await _make(backend, "a", path)
    assert backend.live_count() == 0


async def test_a_script_that_fails_is_refused(backend, tmp_path):
    path = tmp_path / "seed.sql"
    path.write_text("CREATE TABLE")
    with pytest.raises(FailedPrecondition, match=r"template\.rootfs .*incomplete input"):
        await _make(backend, "a", path)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("SELEC 1",), 1, "syntax error"),
        (("SELECT 1; SELECT 2",), 1, "one statement"),
        (("SELECT ?", "[1, 2]"), 1, "bindings"),
        (("SELECT ?", "1"), 1, "must be a JSON array or object"),
        (("SELECT ?", "[[1]]"), 1, "each must be text"),
        (("SELECT ?", "["), 1, "parameters:"),
        (("SELECT ?", f"[{1 << 70}]"), 1, "too large"),
        (("INSERT INTO accounts VALUES ('ada', 1)",), 1, "UNIQUE constraint failed"),
        (("UPDATE accounts SET cents = -1",), 1, "CHECK constraint failed"),
        ((), 2, "sql STATEMENT"),
        (("a", "b", "c"), 2, "found 3 arguments"),
    ],
)
async def test_a_wrong_statement_is_data(backend, seed, arguments, code, said):
    box = await _make(backend, "a", seed)
    outcome = await _sql(box, *arguments)
    assert (outcome.termination, outcome.exit_code) == (End.EXITED, code)
    assert said in outcome.stderr.decode()
    assert outcome.stdout == b""


async def test_another_program_is_not_found(backend):
    box = await _make(backend, "a")
    outcome = await _sql(box, argv=("sh", "-c", "true"))
    assert (outcome.exit_code, outcome.stderr.startswith(b"sh: not found")) == (127, True)


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH '{outside}' AS other",
        "VACUUM INTO '{outside}'",
        "VACUUM",
        "SELECT load_extension('/usr/lib/x.so')",
        "SELECT fts3_tokenizer('simple')",
        "PRAGMA database_list",
        "SELECT * FROM pragma_database_list",
        "PRAGMA max_page_count = 1000000000",
        "PRAGMA hard_heap_limit = 1",
        "PRAGMA temp_store_directory = '{folder}'",
        "PRAGMA temp_store = 2",
        "PRAGMA cache_size = -4000000",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = MEMORY",
        "PRAGMA mmap_size = 100000000",
        "CREATE VIRTUAL TABLE s USING dbstat",
        "SELECT * FROM sqlite_stmt",
    ],
)
async def test_what_reaches_beyond_the_database_is_refused(backend, tmp_path, seed, statement):
    outside = tmp_path / "outside.db"
    before = sorted(path for path in tmp_path.rglob("*") if "data" not in path.parts)
    box = await _make(backend, "a", seed)
    outcome = await _sql(box, statement.format(outside=outside, folder=tmp_path))
    assert (outcome.termination, outcome.exit_code) == (End.EXITED, 1)
    words = (b"not authorized", b"prohibited", b"authorization denied")
    assert any(word in outcome.stderr for word in words)
    assert sorted(path for path in tmp_path.rglob("*") if "data" not in path.parts) == before
    assert _rows(await _sql(box, "SELECT count(*) AS n FROM accounts")) == [{"n": 2}]


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA table_info(accounts)",
        "SELECT * FROM pragma_table_info('accounts')",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "CREATE TEMP TABLE t(x)",
        "CREATE TRIGGER tr AFTER INSERT ON accounts BEGIN SELECT 1; END",
        "ALTER TABLE accounts ADD COLUMN note TEXT",
        "CREATE INDEX i ON accounts(cents)",
        "EXPLAIN QUERY PLAN SELECT * FROM accounts",
    ],
)
async def test_what_stays_inside_is_allowed(backend, seed, statement):
    box = await _make(backend, "a", seed)
    outcome = await _sql(box, statement)
    assert (outcome.exit_code, outcome.stderr) == (0, b"")


async def test_a_transaction_lasts_over_statements_and_can_be_undone(backend, seed):
    box = await _make(backend, "a", seed)
    for statement in ("BEGIN", "DELETE FROM accounts", "ROLLBACK"):
        assert (await _sql(box, statement)).exit_code == 0
    assert _rows(await _sql(box, "SELECT count(*) AS n FROM accounts")) == [{"n": 2}]


@pytest.mark.parametrize("statement", [ENDLESS, f"{ENDLESS_ROWS} WHERE i < 0"])
async def test_an_endless_statement_times_out_and_the_next_one_works(backend, statement):
    box = await _make(backend, "a")
    outcome = await _sql(box, statement, timeout_seconds=0.2)
    assert outcome.termination is End.TIMED_OUT
    assert outcome.duration_seconds >= 0.2
    assert _rows(await _sql(box, "SELECT 1 AS x")) == [{"x": 1}]


async def test_an_interrupted_change_is_undone(backend, seed):
    box = await _make(backend, "a", seed)
    assert (await _sql(box, "CREATE TABLE big(i)")).exit_code == 0
    outcome = await _sql(box, f"INSERT INTO big {ENDLESS_ROWS}", timeout_seconds=0.2)
    assert outcome.termination is End.TIMED_OUT
    assert _rows(await _sql(box, "SELECT count(*) AS n FROM big")) == [{"n": 0}]


async def test_killing_ends_a_statement_that_runs_and_leaves_the_next(backend):
    box = await _make(backend, "a")
    started = asyncio.Event()
    command = Command(exec_id="k", argv=("sql", ENDLESS_ROWS), max_output_bytes=1000)
    running = asyncio.ensure_future(box.run(command, {}, lambda _: started.set()))
    async with asyncio.timeout(10):
        await started.wait()
        await box.kill("k")
        outcome = await running
    assert outcome.termination is End.KILLED
    await box.kill("never")
    assert _rows(await _sql(box, "SELECT 1 AS x")) == [{"x": 1}]


async def test_a_caller_that_gives_up_stops_its_statement(backend):
    box = await _make(backend, "a")
    started = asyncio.Event()
    command = Command(exec_id="k", argv=("sql", ENDLESS_ROWS), max_output_bytes=1000)
    running = asyncio.ensure_future(box.run(command, {}, lambda _: started.set()))
    async with asyncio.timeout(10):
        await started.wait()
        running.cancel()
        assert _rows(await _sql(box, "SELECT 1 AS x")) == [{"x": 1}]
    assert running.cancelled()


async def test_output_is_capped_and_streamed(backend):
    box = await _make(backend, "a")
    many = ENDLESS_ROWS + " LIMIT 20000"
    outcome = await _sql(box, many, max_output_bytes=1000)
    assert outcome.stdout_truncated
    assert len(outcome.stdout) == 1000
    assert outcome.stdout.startswith(b'{"i": 1}\n')
    assert outcome.stdout.endswith(b'{"i": 20000}\n')
    chunks: list[Chunk] = []
    command = Command(exec_id="s", argv=("sql", many), max_output_bytes=1000)
    await box.run(command, {}, chunks.append)
    assert sum(len(chunk.data) for chunk in chunks) == 1000


async def test_a_flood_of_rows_ends_at_the_output_limit(backend):
    box = await _make(backend, "a")
    wide = ENDLESS_ROWS.replace("SELECT i FROM n", "SELECT hex(zeroblob(500000)) AS h FROM n")
    outcome = await _sql(box, wide)
    assert outcome.termination is End.OUTPUT_LIMIT
    assert len(outcome.stdout) <= MIB


async def test_a_database_cannot_outgrow_its_disk(backend):
    limits = Limits(disk_bytes=MIB)
    box = await _make(backend, "a", limits=limits)
    await _sql(box, "CREATE TABLE t(x)")
    fill = (
        "INSERT INTO t SELECT zeroblob(100000) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
        "SELECT i + 1 FROM n LIMIT 100) SELECT i FROM n)"
    )
    outcome = await _sql(box, fill)
    assert (outcome.termination, outcome.exit_code) == (End.EXITED, 1)
    assert b"full" in outcome.stderr
    temporary = await _sql(box, fill.replace("INSERT INTO t", "CREATE TEMP TABLE u AS"))
    assert b"full" in temporary.stderr
    assert _rows(await _sql(box, "SELECT count(*) AS n FROM t")) == [{"n": 0}]


async def test_a_value_cannot_be_huge(backend):
    box = await _make(backend, "a")
    outcome = await _sql(box, "SELECT length(hex(zeroblob(900000000)))")
    assert (outcome.exit_code, b"too big" in outcome.stderr) == (1, True)


async def test_a_seed_larger_than_the_limit_is_refused(backend, seed):
    with pytest.raises(InvalidArgument, match=r"limits\.disk_bytes"):
        await _make(backend, "a", seed, limits=Limits(disk_bytes=4096))
    assert backend.live_count() == 0


async def test_a_statement_without_room_on_our_disk_is_no_result(tmp_path):
    greedy = StateBackend(tmp_path, StateOptions(reserve_mib=1 << 40))
    await greedy.start()
    box = await _make(greedy, "a")
    with pytest.raises(Unavailable) as caught:
        await _sql(box, ENDLESS)
    assert (caught.value.reason, caught.value.retryable) == ("MANAGER_FULL", True)
    await greedy.close()


async def test_a_snapshot_starts_another_from_the_same_state(backend, seed, tmp_path):
    box = await _make(backend, "a", seed)
    await _sql(box, "DELETE FROM accounts WHERE name = 'bob'")
    target = tmp_path / "saved"
    await box.snapshot(target)
    await _sql(box, "DELETE FROM accounts")
    other = await _make(backend, "b", seed, snapshot=target)
    assert _rows(await _sql(other, "SELECT name FROM accounts")) == [{"name": "ada"}]


@pytest.mark.slow
async def test_a_snapshot_is_refused_while_a_transaction_shuts_everybody_out(
    backend, seed, tmp_path
):
    box = await _make(backend, "a", seed)
    await _sql(box, "BEGIN EXCLUSIVE")
    async with asyncio.timeout(10):
        with pytest.raises(FailedPrecondition, match="COMMIT") as caught:
            await box.snapshot(tmp_path / "snapshot")
    assert caught.value.attributable == "workload"
    await _sql(box, "COMMIT")
    await box.snapshot(tmp_path / "snapshot")


async def test_a_snapshot_of_a_dropped_database_is_no_empty_one(backend, seed, tmp_path):
    box = await _make(backend, "a", seed)
    await box.destroy()
    with pytest.raises(BoxLost):
        await box.snapshot(tmp_path / "snapshot")
    assert backend.live_count() == 0


async def test_a_snapshot_that_our_disk_has_no_place_for_is_our_fault(backend, seed, tmp_path):
    box = await _make(backend, "a", seed)
    with pytest.raises(Unavailable):
        await box.snapshot(tmp_path / "no such folder" / "snapshot")


async def test_a_database_that_is_gone_is_no_result(backend, seed, tmp_path):
    box = await _make(backend, "a", seed)
    (tmp_path / "data" / "state" / "boxes" / "a.sqlite").unlink()
    with pytest.raises(BoxLost):
        await _sql(box, "SELECT * FROM accounts")


async def test_a_damaged_database_is_no_result(backend, tmp_path):
    box = await _make(backend, "a", limits=Limits(disk_bytes=16 * MIB))
    await _sql(box, "CREATE TABLE t(x)")
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 40)"
    await _sql(box, f"{rows} INSERT INTO t SELECT zeroblob(100000) FROM n")
    with (tmp_path / "data" / "state" / "boxes" / "a.sqlite").open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 3 * MIB)
    with pytest.raises(BoxLost):
        await _sql(box, "SELECT sum(length(hex(x))) FROM t")


async def test_files_are_refused(backend):
    box = await _make(backend, "a")
    with pytest.raises(FailedPrecondition) as caught:
        await box.write_file(BoxFile(path="/work/x", content=b""))
    assert caught.value.reason == "UNSUPPORTED"


async def test_destroying_stops_what_runs_and_leaves_no_file(backend, tmp_path):
    box = await _make(backend, "a")
    started = asyncio.Event()
    command = Command(exec_id="k", argv=("sql", ENDLESS_ROWS), max_output_bytes=1000)
    running = asyncio.ensure_future(box.run(command, {}, lambda _: started.set()))
    async with asyncio.timeout(10):
        await started.wait()
        await asyncio.gather(box.destroy(), box.destroy())
        await running
    assert list((tmp_path / "data/state/boxes").iterdir()) == []


async def test_what_a_dead_manager_left_is_removed_and_counted(tmp_path):
    first = StateBackend(tmp_path, StateOptions())
    await first.start()
    for name in ("a", "b"):
        await _sql(await _make(first, name), "CREATE TABLE t(x)")
    second = StateBackend(tmp_path, StateOptions())
    with pytest.raises(FailedPrecondition, match="another sandbox manager"):
        await second.start()
    first._folder.release()  # as the kernel does when the process dies
    await second.start()
    assert second.live_count() == 0
    assert await second.reap(frozenset()) == 2
    assert await second.reap(frozenset()) == 0
    await second.close()


async def test_hundreds_at_once(backend, seed):
    boxes = await asyncio.gather(*(_make(backend, f"b{n}", seed) for n in range(300)))
    outcomes = await asyncio.gather(
        *(_sql(box, "SELECT sum(cents) AS s FROM accounts") for box in boxes)
    )
    assert all(_rows(outcome) == [{"s": 520}] for outcome in outcomes)
    await asyncio.gather(*(box.destroy() for box in boxes))
    assert backend.live_count() == 0
