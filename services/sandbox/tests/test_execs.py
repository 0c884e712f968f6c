"""Results by exec_id: remembered within bounds, for each sandbox and for all together."""

from sandbox.fleet.execs import ExecBook, ExecMemory
from sandbox.types import ExecOutcome, Termination


class Counted:
    """Runs commands that write so many bytes, and counts them."""

    def __init__(self, num_bytes: int) -> None:
        self.runs = 0
        self._outcome = ExecOutcome(termination=Termination.EXITED, stdout=bytes(num_bytes))

    async def __call__(self) -> ExecOutcome:
        self.runs += 1
        return self._outcome


async def test_the_oldest_results_of_a_sandbox_are_forgotten_first():
    book, command = ExecBook(ExecMemory(book_bytes=10_000)), Counted(4000)
    for exec_id in ("a", "b", "c"):
        await book.run_once(exec_id, command)
    await book.run_once("c", command)
    await book.run_once("b", command)
    assert command.runs == 3
    await book.run_once("a", command)
    assert command.runs == 4


async def test_many_sandboxes_together_are_bounded_too():
    memory, command = ExecMemory(book_bytes=10_000, all_bytes=50_000), Counted(4000)
    books = [ExecBook(memory) for _ in range(100)]
    for book in books:
        for exec_id in ("a", "b"):
            await book.run_once(exec_id, command)
    assert sum(book.num_bytes for book in books) <= 50_000
    assert list(books[-1].finished) == ["a", "b"]  # the newest
    assert not books[0].finished


async def test_what_is_gone_leaves_room_for_others():
    memory, command = ExecMemory(book_bytes=10_000, all_bytes=10_000), Counted(4000)
    gone, other = ExecBook(memory), ExecBook(memory)
    await other.run_once("first", command)
    await gone.run_once("a", command)
    gone.forget()
    await other.run_once("second", command)
    assert list(other.finished) == ["first", "second"]
    assert not gone.finished


async def test_one_result_that_is_too_large_is_remembered_alone():
    memory = ExecMemory(book_bytes=10_000, all_bytes=20_000)
    book, large = ExecBook(memory), Counted(100_000)
    await book.run_once("small", Counted(1))
    await book.run_once("large", large)
    await book.run_once("large", large)
    assert large.runs == 1
    assert list(book.finished) == ["large"]
