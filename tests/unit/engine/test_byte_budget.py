"""Byte and count limits of fetched results, without deadlocks."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farcall.engine.byte_budget import ByteBudget


async def inside(window, *sizes):
    """Enter sizes in order; return the granted places and the tasks that wait."""
    made = [asyncio.ensure_future(window.enter(size)) for size in sizes]
    for _ in range(3):
        await asyncio.sleep(0)
    return [each.result() for each in made if each.done()], [m for m in made if not m.done()]


async def settled(waiting):
    for _ in range(3):
        await asyncio.sleep(0)
    return [each.done() for each in waiting]


async def test_byte_limit_blocks_entries():
    window = ByteBudget(100, 10)
    places, waiting = await inside(window, 40, 60, 1, 1)
    assert [place.size_bytes for place in places] == [40, 60]

    places[0].leave()
    assert await settled(waiting) == [True, True]


async def test_place_limit_blocks_entries():
    window = ByteBudget(100, 2)
    places, waiting = await inside(window, 0, 0, 0)
    assert len(places) == 2

    places[0].leave()
    places[0].leave()  # a second leave() has no effect
    assert await settled(waiting) == [True]
    _, waiting = await inside(window, 0)
    assert len(waiting) == 1


async def test_oversized_entry_is_admitted_alone():
    window = ByteBudget(100, 10)
    (large,), waiting = await inside(window, 1000, 1)
    assert await settled(waiting) == [False]

    large.leave()
    assert await settled(waiting) == [True]


async def test_large_entry_is_not_overtaken():
    window = ByteBudget(100, 10)
    (first,), waiting = await inside(window, 50, 100, 1)
    assert await settled(waiting) == [False, False]

    first.leave()
    assert await settled(waiting) == [True, False]


async def test_growing_places_do_not_deadlock():
    window = ByteBudget(100, 10)
    places, _ = await inside(window, *[10] * 10)
    growing = [asyncio.ensure_future(place.grow(80)) for place in places]
    for turn in range(10):
        assert await settled(growing) == [number <= turn for number in range(10)]
        places[turn].leave()


@pytest.mark.parametrize("granted", [False, True])
async def test_cancelled_waiter_leaves_no_trace(granted):
    window = ByteBudget(100, 10)
    (first,), waiting = await inside(window, 100, 60, 100)
    if granted:
        first.leave()  # grants the second its turn; it is cancelled before it notices
    waiting[0].cancel()
    assert await settled(waiting) == [True, granted]
    assert waiting[0].cancelled()

    first.leave()
    assert await settled(waiting) == [True, True]


@settings(suppress_health_check=[HealthCheck.too_slow])  # next to other processes
@given(
    sizes=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 150)), max_size=30),
    data=st.data(),
)
def test_all_entries_pass_within_limits(sizes, data):
    async def check():
        window = ByteBudget(100, 5)
        within = []

        async def fetch(size, more):
            place = await window.enter(size)
            within.append(place)
            if more:
                within.remove(place)
                await place.grow(more)
                within.append(place)

        tasks = [asyncio.ensure_future(fetch(*each)) for each in sizes]
        left = len(sizes)
        while left:
            for _ in range(len(tasks)):  # growing entries are admitted one after the other
                await settled(tasks)
            assert within, "a caller waits although the budget is free"
            held = sum(place.size_bytes for place in within)
            assert len(within) == 1 or (held <= 100 and len(within) <= 5)
            gone = within.pop(data.draw(st.integers(0, len(within) - 1)))
            gone.leave()
            left -= 1
        assert all(task.done() for task in tasks)

    asyncio.run(check())
