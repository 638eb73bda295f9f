"""Delays of tasks that wait for others, in virtual time."""

import asyncio

import pytest

from farcall.covalent.task_groups import Debouncer


class Tasks:
    """Tasks that pass through a debouncer, with their times."""

    def __init__(self, clock):
        self.debouncer = Debouncer()
        self.through = []
        self._begin = clock.now()
        self._now = clock.now
        self.waits = []

    def come(self):
        async def one():
            came = self.now()
            await self.debouncer.passing()
            self.through.append((came, self.now()))

        self.waits.append(asyncio.ensure_future(one()))
        return self.waits[-1]

    async def stream(self, count, apart_s):
        """Send tasks one after the other; wait until all have passed."""
        for _ in range(count):
            self.come()
            await asyncio.sleep(apart_s)
        await asyncio.gather(*self.waits)

    def now(self):
        return round(self._now() - self._begin, 6)

    @property
    def moments(self):
        """Times at which a task passed, in order."""
        return sorted({passed for _, passed in self.through})


@pytest.fixture
async def tasks(clock):
    return Tasks(clock)


async def test_single_task_passes_at_once(tasks):
    await tasks.come()
    assert [(0, 0)] == tasks.through


async def test_announcement_alone_delays_nothing(tasks):
    tasks.debouncer.announce()
    await tasks.come()
    assert [(0, 0)] == tasks.through


async def test_spaced_tasks_pass_at_once(tasks):
    await tasks.stream(5, apart_s=1.5)
    assert all(came == passed for came, passed in tasks.through)


async def test_second_of_two_is_delayed_briefly(tasks):
    await tasks.stream(2, apart_s=0.1)
    assert [(0, 0), (0.1, pytest.approx(0.3))] == tasks.through


async def test_simultaneous_tasks_pass_together(tasks):
    """The first task does not wait, and the others pass together."""
    await asyncio.gather(*(tasks.come() for _ in range(50)))
    assert [0, pytest.approx(0.2)] == tasks.moments
    assert 49 == [passed for _, passed in tasks.through].count(tasks.moments[1])


async def test_delays_grow_to_two_seconds(tasks):
    await tasks.stream(120, apart_s=0.1)
    gaps = [
        after - before for before, after in zip(tasks.moments, tasks.moments[1:], strict=False)
    ]
    # A delay begins with the first task after the last delay.
    assert [0.3, 0.5, 0.9, 1.7] == pytest.approx(gaps[:4], abs=0.11)
    assert all(gap <= 2.2 for gap in gaps)
    assert max(passed - came for came, passed in tasks.through) <= 2.001
    assert len(tasks.moments) <= 10


async def test_delay_ends_soon_after_last_task(tasks):
    await tasks.stream(30, apart_s=0.1)
    last, passed = tasks.through[-1]
    assert passed - last <= 0.301


async def test_announced_task_is_awaited(tasks):
    await tasks.stream(8, apart_s=0.1)  # the next delay may exceed 0.3 s
    await asyncio.sleep(0.2)
    held = tasks.come()
    for _ in range(4):
        await asyncio.sleep(0.2)
        tasks.debouncer.announce()
    announced = tasks.come()
    await asyncio.gather(held, announced)
    assert tasks.through[-1][1] == tasks.through[-2][1]


async def test_pause_resets_the_delay(tasks):
    await tasks.stream(60, apart_s=0.1)
    await asyncio.sleep(5)
    tasks.through.clear()
    await tasks.stream(2, apart_s=0.1)
    (came, passed), (second, after) = tasks.through
    assert came == passed
    assert pytest.approx(0.2) == after - second


async def test_cancelled_task_delays_nothing(tasks):
    await tasks.come()
    first, second = tasks.come(), tasks.come()
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    await tasks.come()
    assert 3 == len(tasks.through)
