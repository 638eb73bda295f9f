"""All of it in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from farcall.limiter import Limiter


async def turns(limiter, clock, count):
    """Let callers come all at once; return when each had its turn."""
    begin, moments = clock.now(), []

    async def one():
        await limiter.turn()
        moments.append(clock.now() - begin)

    await asyncio.gather(*(one() for _ in range(count)))
    return moments


async def pace(limiter, clock, count=21):
    """Measure the calls a second of a long queue."""
    moments = await turns(limiter, clock, count)
    return (count - 1) / (moments[-1] - moments[0])


async def test_turns_are_evenly_spaced_and_in_order(clock):
    assert await turns(Limiter(10), clock, 5) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


async def test_a_rest_saves_up_no_burst(clock):
    limiter = Limiter(10)
    await turns(limiter, clock, 3)
    await asyncio.sleep(60)
    assert await turns(limiter, clock, 3) == pytest.approx([0, 0.1, 0.2])


async def test_a_429_halves_the_pace(clock):
    limiter = Limiter(40)
    limiter.throttled()
    assert await pace(limiter, clock) == pytest.approx(20)


async def test_of_several_429_together_only_the_first_counts(clock):
    limiter = Limiter(40)
    for _ in range(10):
        limiter.throttled()
    assert await pace(limiter, clock) == pytest.approx(20)


async def test_the_pace_has_a_floor(clock):
    limiter = Limiter(40)
    for _ in range(20):
        limiter.throttled()
        await asyncio.sleep(60)
    assert await pace(limiter, clock) == pytest.approx(0.2)


async def test_each_success_adds_a_little_up_to_the_most(clock):
    limiter = Limiter(40)
    limiter.throttled()
    limiter.passed()
    assert await pace(limiter, clock) == pytest.approx(20.5)
    for _ in range(100):
        limiter.passed()
    assert await pace(limiter, clock) == pytest.approx(40)


async def test_a_429_is_followed_by_a_rest(clock):
    limiter = Limiter(10)
    limiter.throttled()
    (moment,) = await turns(limiter, clock, 1)
    assert 0.1 <= moment <= 0.2  # half to one interval of the new pace, 5 a second


async def test_a_429_slows_down_those_who_wait_already(clock):
    limiter = Limiter(10)
    waiting = asyncio.ensure_future(turns(limiter, clock, 21))
    await asyncio.sleep(0.05)  # one had its turn, twenty wait
    limiter.throttled()
    moments = await waiting
    assert 19 / (moments[-1] - moments[1]) == pytest.approx(5, rel=0.1)


async def test_a_429_lets_nobody_pass_those_who_wait_already(clock):
    limiter = Limiter(10)
    order = []

    async def one(name):
        await limiter.turn()
        order.append(name)

    tasks = [asyncio.ensure_future(one(n)) for n in range(10)]
    await asyncio.sleep(0.05)
    limiter.throttled()
    tasks.append(asyncio.ensure_future(one("late")))
    await asyncio.gather(*tasks)
    assert order == [*range(10), "late"]


async def test_who_stops_waiting_leaves_the_others_their_turns(clock):
    limiter = Limiter(10)
    tasks = [asyncio.ensure_future(limiter.turn()) for _ in range(5)]
    await asyncio.sleep(0.05)
    tasks[2].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(item, asyncio.CancelledError) for item in done] == [0, 0, 1, 0, 0]
