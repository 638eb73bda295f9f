"""Array tasks that are retried together, on the fake cloud."""

import asyncio

import pytest

from farcall import NothingToRetryError
from farcall.engine import retry
from farcall.engine.run import TaskRun


def fail_for_even(number, gate):
    if number % 2 == 0 and not gate.exists():
        raise ValueError(number)
    return number * 10


@pytest.fixture
async def runs(executor, gate):
    """The tasks of an array job, of which those with even numbers fail until the gate exists."""
    sweep = executor.task(fail_for_even).map(range(6), gate=gate, return_exceptions=True)
    await sweep
    gate.touch()
    (job_id,) = sweep.job_ids
    return [TaskRun(f"{job_id}:{number}", executor.settings) for number in range(6)]


async def test_tasks_retried_together_share_job(runs, cloud):
    again = await asyncio.gather(*(run.retry({"memory": 2}) for run in runs[::2]))
    assert [(await run.results())[0].value for run in again] == [0, 20, 40]
    assert len({run.id.partition(":")[0] for run in again}) == 1
    assert [job.memory_mib for job in cloud.jobs[1:]] == [2048]


async def test_other_options_get_own_job(runs):
    again = await asyncio.gather(runs[0].retry({"memory": 2}), runs[2].retry({"memory": 3}))
    assert ":" not in "".join(run.id for run in again)


async def test_success_does_not_stop_others(runs):
    success, again = await asyncio.gather(
        runs[1].retry({}), runs[2].retry({}), return_exceptions=True
    )
    assert isinstance(success, NothingToRetryError)
    assert [result.value for result in await again.results()] == [20]


async def test_task_is_not_retried_twice_at_once(runs):
    first, second = await asyncio.gather(
        runs[0].retry({}), runs[0].retry({}), return_exceptions=True
    )
    assert [result.value for result in await first.results()] == [0]
    with pytest.raises(NothingToRetryError, match="is being retried already"):
        raise second


async def test_cancelled_caller_withdraws_retry(runs, cloud):
    waiting = asyncio.ensure_future(runs[0].retry({}))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await (await runs[0].retry({})).results())[0].value == 0
    assert len(cloud.jobs) == 2


async def test_task_cancelled_during_submission_is_terminated(runs, session, monkeypatch):
    submit, terminated = retry.submit, []

    async def submit_slowly(*args):
        done = await submit(*args)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return done

    async def end(job_ids, _reason):
        terminated.extend(job_ids)
        return {}

    monkeypatch.setattr(retry, "submit", submit_slowly)
    monkeypatch.setattr(session.terminations, "end", end)
    waiting = asyncio.ensure_future(runs[0].retry({}))
    again = await runs[2].retry({})
    assert terminated == [again.id.replace(":1", ":0")]
