"""Retries of the failed tasks of a map, on the fake cloud."""

import time

import pytest

from farcall import (
    FarcallError,
    NothingToRetryError,
    ServiceError,
)
from farcall.engine import retry
from farcall.engine.session import session_for
from tests.support.patience import until_async


@pytest.fixture
def fixed_file(tmp_path):
    return tmp_path / "fixed"


@pytest.fixture
def halve(executor, fixed_file):
    """Task that fails for odd numbers until the file `fixed` exists."""

    @executor.task
    def halve(x):
        if x % 2 and not fixed_file.exists():
            raise ArithmeticError(x)
        return x / 2

    return halve


HALVES = [x / 2 for x in range(7)]


@pytest.mark.parametrize("chunksize", [1, 3])
async def test_retry_completes_results_of_map(halve, fixed_file, chunksize):
    sweep = halve.map(range(7), chunksize=chunksize, return_exceptions=True)
    values = await sweep
    again = sweep.retry(memory=2)
    errors = [type(each) for each in await again if isinstance(each, Exception)]
    assert errors == [ArithmeticError] * 3
    whole = [1, 3, 5] if chunksize == 1 else [0, 1, 2, 3, 4, 5]
    assert again.indices == whole
    fixed_file.touch()
    third = again.retry()
    assert sorted([pair async for pair in third]) == [(n, n / 2) for n in whole]
    assert await third.complete(values) == HALVES
    (job_id,) = third.job_ids
    session = await session_for(halve.executor.settings)
    assert (await session.describe(job_id)).memory_mib == 2048
    with pytest.raises(FarcallError, match="of 7 results are not available"):
        await third.complete()
    with pytest.raises(NothingToRetryError, match="the map of halve has no task to retry"):
        await sweep.retry()


async def test_newest_result_of_each_call_counts(executor, tmp_path):
    fails = {0: [2], 1: [1, 3], 2: [1]}  # runs of each call that raise

    def work(x):
        with (tmp_path / str(x)).open("a+") as file:
            file.write("x")
            run = file.tell()
        if run in fails.get(x, ()):
            raise ArithmeticError(x)
        return x, run

    sweep = executor.task(work).map(range(4), chunksize=2, return_exceptions=True)
    values = await sweep
    again = sweep.retry()
    assert await again.complete(values) == [(0, 1), (1, 2), (2, 2), (3, 2)]
    third = again.retry()
    assert await third.complete(values) == [(0, 3), (1, 2), (2, 2), (3, 2)]
    assert third.indices == [0, 1]


async def test_interrupted_submission_can_be_continued(halve, fixed_file, monkeypatch):
    session = await session_for(halve.executor.settings)
    submitter = await session.submitter(halve.executor.settings)
    monkeypatch.setattr(submitter, "_most", 4)  # tasks per job
    sweep = halve.map(range(7), return_exceptions=True)
    values = await sweep
    submit, submitted = retry.submit, []

    async def submit_once(*arguments):
        if submitted:
            raise ServiceError("S3 refused")
        submitted.extend(await submit(*arguments))
        return submitted

    fixed_file.touch()
    again = sweep.retry()
    monkeypatch.setattr(retry, "submit", submit_once)
    with pytest.raises(ServiceError):
        await again
    assert again.indices == [1, 3]
    monkeypatch.setattr(retry, "submit", submit)
    assert await again.retry().complete(values) == HALVES


@pytest.mark.parametrize("chunksize", [1, 3])
async def test_results_are_completed_from_bucket(halve, fixed_file, chunksize):
    sweep = halve.map(range(7), chunksize=chunksize)
    with pytest.raises(ArithmeticError):
        await sweep
    fixed_file.touch()
    assert await sweep.retry().complete() == HALVES


async def test_error_cancels_rest_of_retry(executor, tmp_path):
    begun = tmp_path / "begun"

    def work(x):
        if begun.exists() and x == 0:
            time.sleep(600)  # until the other call has raised
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


async def test_wrong_uses_are_rejected(halve):
    sweep = halve.map(range(2))
    with pytest.raises(FarcallError, match="this sweep has not submitted"):
        sweep.retry()
    with pytest.raises(ArithmeticError):
        await sweep
    with pytest.raises(FarcallError, match="this retry has not submitted"):
        sweep.retry().retry()


async def test_job_retry_returns_result(executor, halve, fixed_file):
    job = await halve.submit(3)
    with pytest.raises(ArithmeticError):
        await job.result()
    fixed_file.touch()
    again = await job.retry(memory=2)
    assert await again.result() == 1.5
    with pytest.raises(NothingToRetryError):
        await job.retry()
    waiting = await executor.submit(time.sleep, 600)
    with pytest.raises(NothingToRetryError, match="can be retried yet"):
        await waiting.retry()
    await waiting.cancel()
    assert (await waiting.exception()) is not None
