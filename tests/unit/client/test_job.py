"""`Job`: results, deletion of its objects, and requests to Batch."""

from __future__ import annotations

import pickle

import pytest

from farcall import Settings
from farcall.client.job import Job
from farcall.engine.run import TaskRun
from farcall.model.errors import FarcallError, JobLostError
from farcall.model.submission import Submission
from farcall.storage.store import Arrived
from tests.contract import make_golden as golden

SUBMISSION = Submission("6f1c", "work-0011223344556677", golden.WHERE, golden.KEY, 10)
INDEX = 7


def returned(number=0):
    return {"status": "returned", "wall_s": 1.0, "cpu_s": 0.2, "first": number, "count": 1}


def raised(number=0):
    return {**golden.RAISED["results"][0], "first": number}


@pytest.fixture
def store(session):
    return session.stores.of(golden.WHERE.bucket)


def run_of(on_spent=None, **options):
    place = SUBMISSION, INDEX
    return TaskRun(SUBMISSION.id_of(INDEX), Settings(**options), place, on_spent=on_spent)


@pytest.fixture
def arrive(store):
    """Make a job of the outcome of some calls: ``await arrive(42, keep_artifacts=True)``."""

    async def put(*values, on_spent=None, **options):
        records = [
            (raised if isinstance(value, Exception) else returned)(number)
            for number, value in enumerate(values)
        ]
        meta = {**golden.RETURNED, "results": records, "begun": len(records)}
        data = golden.outcome(meta, INDEX, [pickle.dumps(value) for value in values])
        await store.put(golden.WHERE.outcome_key(INDEX), [data])
        run = run_of(on_spent, **options)
        run.note_outcome(Arrived(golden.WHERE.bundle, INDEX, len(data)))
        return Job(run)

    return put


@pytest.fixture
def fetched(session, monkeypatch):
    """Which outcomes were fetched."""
    deliver, found = session.fetcher.deliver, []

    async def note(submission, index, *args, **options):
        found.append(index)
        return await deliver(submission, index, *args, **options)

    monkeypatch.setattr(session.fetcher, "deliver", note)
    return found


async def is_there(store):
    await store.flush()
    return await store.get(golden.WHERE.outcome_key(INDEX)) is not None


# --- results ----------------------------------------------------------------------------------


async def test_a_value_is_fetched_once_and_its_objects_go(arrive, store, fetched):
    assert not Job(run_of()).done()
    job = await arrive(42)
    assert (job.done(), repr(job), job.name) == (True, "<Job 6f1c:7 done>", SUBMISSION.name)
    assert [await job.result(), await job.result()] == [42, 42]
    assert fetched == [INDEX]
    assert not await is_there(store)


async def test_what_was_raised_is_raised_each_time_and_stays_in_the_bucket(arrive, store, fetched):
    job = await arrive(ValueError("wrong"))
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            await job.result()
    assert str(await job.exception()) == "wrong"
    assert fetched == [INDEX]
    assert await is_there(store)


async def test_what_is_to_be_kept_stays_until_it_is_deleted(arrive, store):
    job = await arrive(42, keep_artifacts=True)
    assert await job.result() == 42
    assert await is_there(store)
    await job.delete_outcome()
    assert not await is_there(store)


async def test_looking_at_what_was_used_takes_nothing(arrive, store):
    job = await arrive(42)
    assert (await job.usage()).cpu_s == golden.USAGE["cpu_s"]
    assert await job.exception() is None
    assert await is_there(store)


async def test_the_calls_of_one_that_raised_keep_their_values(arrive):
    job = await arrive(1, ValueError("first"), 3, ValueError("second"))
    assert str(await job.exception()) == "first"
    found = await job.results()
    assert [each.value for each in found] == [1, None, 3, None]
    assert [str(each.error or "") for each in found] == ["", "first", "", "second"]
    assert [each.index for each in found] == [0, 1, 2, 3]


async def test_whoever_spent_the_objects_is_told_once(arrive):
    spent = []
    job = await arrive(42, on_spent=lambda: spent.append(True))
    await job.result()
    await job.result()
    assert spent == [True]


# --- what Batch says --------------------------------------------------------------------------


def described(jobs, **environment):
    said = [{"name": name, "value": value} for name, value in environment.items()]
    jobs.set("6f1c", "RUNNING", container={"environment": said})
    return Job(TaskRun("6f1c", Settings()))


async def test_an_attached_job_learns_its_place_from_batch(session, jobs):
    job = described(
        jobs,
        FARCALL_BUNDLE=golden.WHERE.url,
        FARCALL_OUTCOME_KEY=golden.KEY.hex(),
        FARCALL_DIGEST="cd" * 32,
    )
    assert job.name == ""
    assert await job.stdout() == ""
    assert job.name == "n"


async def test_a_job_of_others_has_no_output(session, jobs):
    with pytest.raises(FarcallError, match="was not submitted by farcall"):
        await described(jobs, PATH="/bin").stdout()


async def test_a_job_that_batch_does_not_know_is_lost(session):
    with pytest.raises(JobLostError):
        await Job(run_of()).status()


async def test_lines_are_of_one_of_two_streams():
    with pytest.raises(ValueError, match="stream is 'out'; use stdout or stderr"):
        await anext(Job(run_of()).logs(stream="out"))
