"""The failed calls of a map, run again; the jobs are a fake cloud's."""

from __future__ import annotations

import time

import pytest

from farcall import BatchExecutor, FarcallError, NothingToRetryError, SettingsError
from farcall.engine.session import session_for
from tests.support.patience import until_async


@pytest.fixture
async def executor(cloud):
    async with BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0.02) as opened:
        yield opened


@pytest.fixture
def mended(tmp_path):
    return tmp_path / "fixed"


@pytest.fixture
def halve(executor, mended):
    """A task that fails for odd numbers until it is fixed."""

    @executor.task
    def halve(x):
        if x % 2 and not mended.exists():
            raise ArithmeticError(x)
        return x / 2

    return halve


HALVES = [x / 2 for x in range(7)]


@pytest.mark.parametrize("chunksize", [1, 3])
async def test_what_a_map_gave_is_completed(halve, mended, chunksize):
    sweep = halve.map(range(7), chunksize=chunksize, return_exceptions=True)
    values = await sweep
    again = sweep.retry(memory=2)
    assert [type(each) for each in await again] == [ArithmeticError] * 3
    assert again.indices == [1, 3, 5]
    mended.touch()
    third = again.retry()
    assert sorted([pair async for pair in third]) == [(1, 0.5), (3, 1.5), (5, 2.5)]
    assert await third.complete(values) == HALVES
    (job_id,) = third.job_ids
    session = await session_for(halve.executor.settings)
    assert (await session.describe(job_id)).memory_mib == 2048
    with pytest.raises(FarcallError, match=r"of 7 values are not here, such as that of call"):
        await third.complete()
    with pytest.raises(NothingToRetryError, match="each call of the map of halve has given"):
        await sweep.retry()


@pytest.mark.parametrize("chunksize", [1, 3])
async def test_a_map_whose_error_was_raised_is_completed_from_the_bucket(halve, mended, chunksize):
    sweep = halve.map(range(7), chunksize=chunksize)
    with pytest.raises(ArithmeticError):
        await sweep
    mended.touch()
    assert await sweep.retry().complete() == HALVES


async def test_an_error_ends_what_is_left_of_a_retry(executor, tmp_path):
    begun = tmp_path / "begun"

    def work(x):
        if begun.exists() and x == 0:
            time.sleep(600)  # until another call has raised
        raise ArithmeticError(x)

    sweep = executor.task(work).map(range(2))
    with pytest.raises(ArithmeticError):
        await sweep
    begun.touch()
    again = sweep.retry()
    with pytest.raises(ArithmeticError):
        await again
    session = await session_for(executor.settings)

    async def ended():
        return (await session.describe(again.job_ids[0])).status.is_final

    await until_async(ended)


async def test_wrong_uses_are_told(halve):
    sweep = halve.map(range(2))
    with pytest.raises(FarcallError, match="nothing of this sweep was submitted"):
        sweep.retry()
    with pytest.raises(ArithmeticError):
        await sweep
    with pytest.raises(FarcallError, match="nothing of this retry was submitted"):
        sweep.retry().retry()
    with pytest.raises(SettingsError, match="nodes cannot be changed for a retry"):
        await sweep.retry(nodes=2)


async def test_a_job_runs_again(executor, halve, mended):
    job = await halve.submit(3)
    with pytest.raises(ArithmeticError):
        await job.result()
    mended.touch()
    again = await job.retry(memory=2)
    assert await again.result() == 1.5
    with pytest.raises(NothingToRetryError):
        await job.retry()
    waiting = await executor.submit(time.sleep, 600)
    with pytest.raises(NothingToRetryError, match="have not ended"):
        await waiting.retry()
    await waiting.cancel()
    assert (await waiting.exception()) is not None
