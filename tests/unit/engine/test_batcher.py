"""Batches of requests that many coroutines make within a moment."""

import asyncio

import pytest

from farcall.engine.batcher import Batcher

pytestmark = pytest.mark.usefixtures("clock")


class Service:
    """Answers each number with its double, and records the batches."""

    def __init__(self):
        self.batches = []
        self.at_once = 0

    async def answer(self, numbers):
        self.batches.append(numbers)
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(1)
        self.at_once -= 1
        if 99 in numbers:
            raise LookupError("99")
        return [ValueError(n) if n < 0 else 2 * n for n in numbers]


@pytest.fixture
def service():
    return Service()


async def test_concurrent_requests_share_a_batch(service):
    batcher = Batcher(service.answer, wait_s=0.095)

    async def add(number):
        await asyncio.sleep(number / 100)
        return await batcher.add(number)

    assert await asyncio.gather(*map(add, range(20))) == list(range(0, 40, 2))
    assert [len(batch) for batch in service.batches] == [10, 10]


async def test_batches_have_maximum_and_run_sequentially(service):
    batcher = Batcher(service.answer, 4)
    assert await asyncio.gather(*map(batcher.add, range(10))) == list(range(0, 20, 2))
    assert service.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert await batcher.add(0) == 0
    assert len(service.batches) == 4


async def test_equal_keys_share_an_answer(service):
    batcher = Batcher(service.answer)
    assert await asyncio.gather(*(asyncio.shield(batcher.add(3)) for _ in range(5))) == [6] * 5
    assert service.batches == [[3]]


async def test_error_reaches_only_affected_callers(service):
    batcher = Batcher(service.answer, 2)
    numbers = (1, -1, 99, 2, 3)
    found = await asyncio.gather(*map(batcher.add, numbers), return_exceptions=True)
    assert [type(each) for each in found] == [int, ValueError, LookupError, LookupError, int]


async def test_cancelled_request_is_not_sent(service):
    batcher = Batcher(service.answer)
    first, second, third = map(batcher.add, range(3))
    second.cancel()
    assert await asyncio.gather(first, third) == [0, 4]
    assert service.batches == [[0, 2]]


async def test_request_after_cancelled_one_is_sent(service):
    batcher = Batcher(service.answer)
    batcher.add(3).cancel()
    assert await batcher.add(3) == 6
    assert service.batches == [[3]]
