"""`Job`: results, deletion of its objects, and API requests."""

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


def run_of(on_discarded=None, **options):
    place = SUBMISSION, INDEX
    return TaskRun(SUBMISSION.id_of(INDEX), Settings(**options), place, on_discarded=on_discarded)


@pytest.fixture
def arrive(store):
    """Return a function that stores results and makes their job: `await arrive(42)`."""

    async def put(*values, on_discarded=None, **options):
        records = [
            (raised if isinstance(value, Exception) else returned)(number)
            for number, value in enumerate(values)
        ]
        meta = {**golden.RETURNED, "results": records, "begun": len(records)}
        data = golden.outcome(meta, INDEX, [pickle.dumps(value) for value in values])
        await store.put(golden.WHERE.outcome_key(INDEX), [data])
        run = run_of(on_discarded, **options)
        run.record_outcome(Arrived(golden.WHERE.bundle, INDEX, len(data)))
        return Job(run)

    return put


@pytest.fixture
def fetched(session, monkeypatch):
    """Indexes of the outcomes that were fetched."""
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


async def test_result_is_fetched_once_then_deleted(arrive, store, fetched):
    assert not Job(run_of()).done()
    job = await arrive(42)
    assert (job.done(), repr(job), job.name) == (True, "<Job 6f1c:7 done>", SUBMISSION.name)
    assert [await job.result(), await job.result()] == [42, 42]
    assert fetched == [INDEX]
    assert not await is_there(store)


async def test_error_is_raised_repeatedly_and_kept(arrive, store, fetched):
    job = await arrive(ValueError("wrong"))
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            await job.result()
    assert str(await job.exception()) == "wrong"
    assert fetched == [INDEX]
    assert await is_there(store)


async def test_kept_artifacts_stay_until_deleted(arrive, store):
    job = await arrive(42, keep_artifacts=True)
    assert await job.result() == 42
    assert await is_there(store)
    await job._delete_outcome()
    assert not await is_there(store)


async def test_usage_and_exception_delete_nothing(arrive, store):
    job = await arrive(42)
    assert (await job.usage()).cpu_s == golden.USAGE["cpu_s"]
    assert await job.exception() is None
    assert await is_there(store)


async def test_failed_job_keeps_results_of_calls(arrive):
    job = await arrive(1, ValueError("first"), 3, ValueError("second"))
    assert str(await job.exception()) == "first"
    found = await job.results()
    assert [each.value for each in found] == [1, None, 3, None]
    assert [str(each.error or "") for each in found] == ["", "first", "", "second"]
    assert [each.index for each in found] == [0, 1, 2, 3]


async def test_on_discarded_is_called_once(arrive):
    deletable = []
    job = await arrive(42, on_discarded=lambda: deletable.append(True))
    await job.result()
    await job.result()
    assert deletable == [True]


# --- jobs on Batch ----------------------------------------------------------------------------


def described(jobs, **environment):
    variables = [{"name": name, "value": value} for name, value in environment.items()]
    jobs.set("6f1c", "RUNNING", container={"environment": variables})
    return Job(TaskRun("6f1c", Settings()))


async def test_attached_job_reads_location_from_batch(session, jobs):
    job = described(
        jobs,
        FARCALL_BUNDLE=golden.WHERE.url,
        FARCALL_OUTCOME_KEY=golden.KEY.hex(),
        FARCALL_DIGEST="cd" * 32,
    )
    assert job.name == ""
    assert await job.stdout() == ""
    assert job.name == "n"


async def test_foreign_job_has_no_output(session, jobs):
    with pytest.raises(FarcallError, match="was not submitted by farcall"):
        await described(jobs, PATH="/bin").stdout()


async def test_unknown_job_is_lost(session):
    with pytest.raises(JobLostError):
        await Job(run_of()).status()


async def test_unknown_stream_is_rejected():
    with pytest.raises(ValueError, match="stream is 'out'; use stdout or stderr"):
        await anext(Job(run_of()).logs(stream="out"))
