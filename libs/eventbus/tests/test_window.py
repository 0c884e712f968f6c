"""The bound on publishes under way."""

import asyncio

from eventbus.jetstream.window import Window


async def test_window_admits_in_order_up_to_its_size():
    window, inside, most, order = Window(3), 0, 0, []

    async def enter(number):
        nonlocal inside, most
        async with window:
            order.append(number)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(enter(number) for number in range(20)))
    assert most == 3
    assert order == list(range(20))


async def test_window_loses_no_place_to_a_cancelled_waiter():
    window = Window(1)
    async with asyncio.timeout(5):
        await window.__aenter__()
        waiting = [asyncio.create_task(window.__aenter__()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        # The second is handed the place and cancelled before it runs.
        await asyncio.wait([waiting[0]])
        await window.__aexit__(None, None, None)
        waiting[1].cancel()
        await waiting[2]
        await window.__aexit__(None, None, None)
        async with window:
            pass
