"""Does much at once, but not too much; Ctrl-C takes nothing new and lets what is under way end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from hone_cli.watching import StopButton

T = TypeVar("T")
R = TypeVar("R")


async def pooled(
    items: AsyncIterator[T],
    do: Callable[[T], Awaitable[R]],
    done: Callable[[R], None],
    *,
    parallel: int,
    button: StopButton,
) -> bool:
    """Does every item, `parallel` at once; returns whether all were done.

    One press of the button takes no further items, a second one leaves what is under way.

    Args:
        items: taken one by one, in order.
        do: does one; what it raises ends everything.
        done: takes each result as it comes.
        parallel: how many at once.
        button: Ctrl-C.
    """
    taking = asyncio.Lock()
    complete = False

    async def work() -> None:
        nonlocal complete
        while not button.presses:
            async with taking:
                if complete:
                    return
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    complete = True
                    return
            done(await do(item))

    workers = [asyncio.ensure_future(work()) for _ in range(parallel)]
    leaving = asyncio.ensure_future(_second_press(button))
    try:
        await _first_end(workers, leaving)
    finally:
        for task in (*workers, leaving):
            task.cancel()
        await asyncio.gather(*workers, leaving, return_exceptions=True)
    left = leaving.done() and not leaving.cancelled()
    return complete and not left


async def _first_end(
    workers: Sequence["asyncio.Future[None]"], leaving: "asyncio.Future[None]"
) -> None:
    """Waits for all workers, the first that breaks, or the second press."""
    pending: set[asyncio.Future[None]] = {*workers}
    while pending and not leaving.done():
        ended, _ = await asyncio.wait({*pending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended - {leaving}:
            task.result()
        pending -= ended


async def _second_press(button: StopButton) -> None:
    button.pressed = asyncio.Event()
    while button.presses < 2:
        await button.pressed.wait()
        button.pressed.clear()
