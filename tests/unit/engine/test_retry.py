"""Tasks of a job that are retried, and their options; on the fake cloud."""

import asyncio
import time
from collections import Counter
from dataclasses import replace

import pytest

from farcall import (
    FarcallError,
    IntegrityError,
    JobLostError,
    NothingToRetryError,
    SettingsError,
    UnknownError,
)
from farcall.engine import failed_tasks, retry, retry_notes
from farcall.engine.calls import submit as submit_call
from farcall.engine.delivered import Wanted
from farcall.engine.packer import FunctionCall
from farcall.engine.retry import submit
from farcall.engine.retry_notes import Note, Retry, retries_of
from farcall.engine.retry_plan import plan_for
from farcall.model.jobs import JobStatus
from farcall.model.workflows import Workflow
from tests.support.patience import until_async

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def work(tmp_path):
    """Function that fails for some numbers until it is fixed, and records each of its calls."""
    ledger, fixed_file = tmp_path / "ledger", tmp_path / "fixed"

    class Work:
        def __init__(self):
            def work(x, *, by=10):
                with ledger.open("a") as file:
                    file.write(f"{x}\n")
                if x % 3 == 1 and not fixed_file.exists():
                    raise ValueError(x)
                return by * x

            self.function = work

        def fix(self):
            fixed_file.touch()

        def ran(self):
            """Return how often each of its calls has started."""
            return Counter(map(int, ledger.read_text().split()))

    return Work()


@pytest.fixture
def swept(executor, session, work):
    """Return a function that runs a map whose calls 1, 4 and 7 fail; it returns the job ID."""

    async def run(chunksize=1, inputs=range(8), **fixed):
        sweep = executor.task(work.function).map(
            inputs, chunksize=chunksize, return_exceptions=True, **fixed
        )
        await sweep
        (job_id,) = sweep.job_ids
        await ended(session, job_id)
        return job_id

    return run


async def ended(session, job_id):
    """Wait until the backend, too, reports that a job has ended."""

    async def plan_for():
        detail = await session.describe(job_id)
        return detail if detail.status.is_final else None

    return await until_async(plan_for)


async def values(executor, retried):
    jobs = [executor.attach(retried.submission.id_of(n)) for n in range(retried.submission.size)]
    found = [await job.results() for job in jobs]
    return [[each.error or each.value for each in results] for results in found]


async def test_failed_tasks_run_with_new_options(executor, session, work, swept):
    job_id = await swept(by=100)
    plan = await plan_for(session, executor.settings, job_id)
    settings = plan.with_options({"memory": 2})
    assert plan.summary(settings) == "3 of 8 tasks of work: memory 1 -> 2"
    assert plan.summary(plan.with_options({"queue": "big"})).count("queue") == 1
    assert (plan.unfinished, plan.ended) == (0, 0)
    work.fix()

    (retried,) = await submit(session, plan, settings)

    assert retried.origin == (1, 4, 7)
    assert await values(executor, retried) == [[100], [400], [700]]
    assert work.ran() == Counter({**dict.fromkeys(range(8), 1), 1: 2, 4: 2, 7: 2})
    detail = await session.describe(retried.submission.job_id)
    assert (detail.memory_mib, detail.environment["FARCALL_RETRY_OF"]) == (2048, job_id)
    assert await retries_of(session, plan.submission) == [
        Retry(retried.submission.job_id, (1, 4, 7), retried.submission.where)
    ]


async def test_failed_chunk_runs_again_whole(executor, session, work, swept):
    """Only chunk (9, 9, 9) has no failing call."""
    job_id = await swept(3, inputs=[0, 1, 2, 3, 4, 5, 9, 9, 9, 7])
    plan = await plan_for(session, executor.settings, job_id)
    plan_text = plan.summary(plan.settings)
    assert plan_text == "3 of 4 tasks of work, with vcpu 1 and memory 1 as before"
    (first,) = await submit(session, plan, plan.settings)
    jobs = [executor.attach(first.submission.id_of(n)) for n in range(3)]
    assert [await job.calls() for job in jobs] == [
        [((x,), {}) for x in chunk] for chunk in ([0, 1, 2], [3, 4, 5], [7])
    ]
    found = await values(executor, first)
    assert [each if isinstance(each, int) else each.args for chunk in found for each in chunk] == [
        *(0, (1,), 20),
        *(30, (4,), 50),
        (7,),
    ]
    assert work.ran() == Counter({**dict.fromkeys([*range(6), 7], 2), 9: 3})


async def test_only_newest_retry_can_repeat(executor, session, work, swept):
    job_id = await swept()
    plan = await plan_for(session, executor.settings, job_id)
    (first,) = await submit(session, plan, plan.settings)
    assert [each.args for (each,) in await values(executor, first)] == [(1,), (4,), (7,)]
    await ended(session, first.submission.job_id)
    work.fix()

    again = await plan_for(session, executor.settings, first.submission.job_id)
    assert (len(again.tasks), again.total) == (3, 3)
    (second,) = await submit(session, again, again.settings)

    assert await values(executor, second) == [[10], [40], [70]]
    await ended(session, second.submission.job_id)
    detail = await session.describe(second.submission.job_id)
    assert detail.environment["FARCALL_RETRY_OF"] == first.submission.job_id
    for old, new in ((plan, first), (again, second)):
        done = await plan_for(session, executor.settings, old.submission.job_id)
        assert [each.job_id for each in done.retries] == [new.submission.job_id]
        with pytest.raises(NothingToRetryError, match=new.submission.job_id):
            await submit(session, done, done.settings)
    done = await plan_for(session, executor.settings, second.submission.job_id)
    with pytest.raises(NothingToRetryError, match="none of its tasks has failed"):
        await submit(session, done, done.settings)
    assert work.ran() == Counter({**dict.fromkeys(range(8), 1), 1: 3, 4: 3, 7: 3})


async def test_withdrawn_retry_does_not_count(executor, session, swept):
    """Its client gave up the submission, deleted the bundle, and stored no job ID."""
    plan = await plan_for(session, executor.settings, await swept())
    (retried,) = await submit(session, plan, plan.settings)
    await ended(session, retried.submission.job_id)
    where = retried.submission.where
    store = session.stores.of(where.bucket)
    await retry_notes.write(
        store, plan.submission, Note(where, plan.settings.queue, retried.origin)
    )
    again = await plan_for(session, executor.settings, plan.submission.job_id)
    assert (again.tasks, [each.origin for each in again.retries]) == ([], [(1, 4, 7)])
    await store.delete([where.bundle_key])
    again = await plan_for(session, executor.settings, plan.submission.job_id)
    assert (again.tasks, again.retries) == (plan.tasks, [])


async def test_concurrent_retries_run_tasks_once(executor, session, work, swept):
    """Both were planned before either was submitted."""
    job_id = await swept()
    plans = [await plan_for(session, executor.settings, job_id) for _ in range(2)]
    work.fix()
    (retried,) = await submit(session, plans[0], plans[0].settings)
    with pytest.raises(NothingToRetryError, match="is being retried by another client"):
        await submit(session, plans[1], plans[1].settings)
    assert await values(executor, retried) == [[10], [40], [70]]
    assert work.ran() == Counter({**dict.fromkeys(range(8), 1), 1: 2, 4: 2, 7: 2})


async def test_retry_waits_for_unsubmitted_note(executor, session, swept):
    """The other client has stored its note, but has not submitted its job yet."""
    first = await plan_for(session, executor.settings, await swept())
    where = first.submission.where._replace(bundle="work-other")
    store = session.stores.of(where.bucket)
    await retry_notes.write(store, first.submission, Note(where, first.settings.queue, (4,)))
    plan = await plan_for(session, executor.settings, first.submission.job_id)
    assert plan.tasks == first.tasks
    with pytest.raises(NothingToRetryError, match="another client"):
        await submit(session, plan, plan.settings)
    notes = await retry_notes.read(store, plan.submission)
    assert [note.where for note in notes] == [where]
    later = replace(plan, tasks=[task for task in plan.tasks if task.number != 4])
    (retried,) = await submit(session, later, later.settings)
    assert retried.origin == (1, 7)


async def test_one_array_task_is_retried_alone(executor, session, work, swept):
    job_id = await swept()
    work.fix()
    plan = await plan_for(session, executor.settings, f"{job_id}:4")
    assert plan.summary(plan.settings).startswith("1 of 1 task of work")
    (retried,) = await submit(session, plan, plan.settings)
    assert await values(executor, retried) == [[40]]
    detail = await session.describe(retried.submission.job_id)
    assert (detail.array_size, detail.environment["FARCALL_RETRY_OF"]) == (0, f"{job_id}:4")
    await ended(session, retried.submission.job_id)
    plan = await plan_for(session, executor.settings, job_id)
    assert [task.number for task in plan.tasks] == [1, 7]
    with pytest.raises(UnknownError, match="it has 8 tasks, 0 to 7"):
        await plan_for(session, executor.settings, f"{job_id}:8")


async def test_unfinished_job_cannot_be_retried(executor, session):
    job = await executor.submit(time.sleep, 600)  # sleeps until the test cancels it
    plan = await plan_for(session, executor.settings, job.id)
    assert (plan.tasks, plan.unfinished) == ([], 1)
    with pytest.raises(NothingToRetryError, match="can be retried yet: 1 unfinished task"):
        plan.refuse()
    await session.terminations.end([job.id], "enough")
    await ended(session, job.id)
    plan = await plan_for(session, executor.settings, job.id)
    assert [task.was_ended for task in plan.tasks] == [True]
    assert plan.failed_alone().tasks == []


async def test_cancelled_tasks_can_be_excluded(executor, session):
    def work(x):
        if x == 0:
            raise ZeroDivisionError
        time.sleep(600)  # until the other call has raised

    sweep = executor.task(work).map(range(3))
    with pytest.raises(ZeroDivisionError):
        await sweep
    await ended(session, sweep.job_ids[0])

    plan = await plan_for(session, executor.settings, sweep.job_ids[0])

    assert (len(plan.tasks), plan.ended, len(plan.failed_alone().tasks)) == (3, 2, 1)
    assert plan.summary(plan.settings).endswith("; 2 of them did not fail, but were cancelled")


async def test_missing_or_changed_bundle_is_rejected(executor, session, swept):
    plan = await plan_for(session, executor.settings, await swept())
    where = plan.submission.where
    store = session.stores.of(where.bucket)
    whole = bytearray(await store.get(where.bundle_key))
    whole[len(whole) // 3] ^= 1  # in an entry or in its digest
    await store.put(where.bundle_key, [whole])
    with pytest.raises(IntegrityError, match="differs from what was submitted"):
        await submit(session, plan, plan.settings)
    assert await retries_of(session, plan.submission) == []
    whole[len(whole) // 3] ^= 1
    whole[-20] ^= 1  # in the root of the index
    await store.put(where.bundle_key, [whole])
    with pytest.raises(IntegrityError, match="differs from what was submitted"):
        await plan_for(session, executor.settings, plan.submission.job_id)
    await store.delete([where.bundle_key])
    with pytest.raises(NothingToRetryError, match="no longer exists"):
        await plan_for(session, executor.settings, plan.submission.job_id)


async def test_large_arguments_are_copied_and_checked(executor, session, monkeypatch):
    monkeypatch.setattr(retry, "LARGE_BYTES", 1000)
    job = await executor.submit(lambda data: 1 / (len(data) - 100_000), bytes(100_000))
    assert isinstance(await job.exception(), ZeroDivisionError)
    await ended(session, job.id)
    plan = await plan_for(session, executor.settings, job.id)
    (retried,) = await submit(session, plan, plan.settings)
    ((error,),) = await values(executor, retried)
    assert isinstance(error, ZeroDivisionError)
    where = retried.submission.where
    store = session.stores.of(where.bucket)
    whole = bytearray(await store.get(where.bundle_key))
    whole[50_000] ^= 1
    await store.put(where.bundle_key, [whole])
    await ended(session, retried.submission.job_id)
    again = await plan_for(session, executor.settings, retried.submission.job_id)
    with pytest.raises(IntegrityError, match="differs from what was submitted"):
        await submit(session, again, again.settings)


async def test_retry_uses_original_shared_values(executor, session):
    big = bytes(2**20)
    job = await executor.submit(lambda data: 1 / (len(data) - 2**20), big)
    assert isinstance(await job.exception(), ZeroDivisionError)
    await ended(session, job.id)
    plan = await plan_for(session, executor.settings, job.id)
    (named,) = plan.facts["shared"].items()
    (retried,) = await submit(session, plan, plan.settings)
    ((error,),) = await values(executor, retried)
    assert isinstance(error, ZeroDivisionError)
    await ended(session, retried.submission.job_id)
    again = await plan_for(session, executor.settings, retried.submission.job_id)
    assert again.facts["shared"] == dict([named])
    store = session.stores.of(plan.submission.where.bucket)
    await store.delete([plan.submission.where.shared_key(named[0], named[1][0])])
    with pytest.raises(FarcallError, match=named[0]):
        await submit(session, again, again.settings)


async def test_note_of_other_map_is_ignored(executor, session, swept):
    plan = await plan_for(session, executor.settings, await swept())
    other = await plan_for(session, executor.settings, await swept())
    (retried,) = await submit(session, other, other.settings)
    note = Note(retried.submission.where, "queue", (1, 4, 7), job_id=retried.submission.job_id)
    await retry_notes.write(session.stores.of("bucket"), plan.submission, note)
    again = await plan_for(session, executor.settings, plan.submission.job_id)
    assert (again.tasks, again.unfinished) == (plan.tasks, 0)
    assert await retries_of(session, plan.submission) == []


async def test_options_of_definition_are_rejected(executor, session, swept):
    plan = await plan_for(session, executor.settings, await swept())
    for name in ("image", "nodes", "no_such"):
        with pytest.raises(SettingsError, match=f"{name} cannot be changed for a retry"):
            plan.with_options({name: 1})
    with pytest.raises(SettingsError, match="memory is"):
        plan.with_options({"memory": -1})


async def test_job_without_calls_is_rejected(executor, session):
    call = FunctionCall(pow, [((2, "x"), {})], executor.settings)
    workflow = Workflow("lattice", "dispatch")
    electron = await submit_call(call, executor.settings, Wanted(), workflow=workflow)
    await ended(session, electron.id)
    with pytest.raises(FarcallError, match=r"ct\.redispatch\('dispatch'"):
        await plan_for(session, executor.settings, electron.id)
    with pytest.raises(FarcallError, match="is one node of job"):
        await plan_for(session, executor.settings, f"{electron.id}#1")
    with pytest.raises(JobLostError):
        await plan_for(session, executor.settings, UNKNOWN_ID)


async def test_success_lost_with_host_stays_delivered(executor, session, monkeypatch):
    """The host was lost after it had stored the result, so Batch reports FAILED."""
    job = await executor.submit(pow, 2, 3)
    await job.wait()
    await ended(session, job.id)
    describe = session.backend.describe

    async def lost(job_ids):
        found = await describe(job_ids)
        return {
            job_id: replace(detail, status=JobStatus.FAILED, exit_code=None)
            for job_id, detail in found.items()
        }

    monkeypatch.setattr(session.backend, "describe", lost)
    plan = await plan_for(session, executor.settings, job.id)
    assert plan.tasks == []

    where = plan.submission.where
    store = session.stores.of(where.bucket)
    await store.put(where.outcome_key(0), [b"not what the job wrote"])
    plan = await plan_for(session, executor.settings, job.id)
    assert [task.number for task in plan.tasks] == [0]


async def test_delivered_calls_survive_host_loss(executor, session, swept, monkeypatch):
    """If a host is lost after the outcome was stored, the platform reports a failed task."""
    job_id = await swept()
    children = failed_tasks._children

    async def failed(session, detail, status):
        succeeded = await children(session, detail, JobStatus.SUCCEEDED)
        lost = [replace(child, status=JobStatus.FAILED, exit_code=None) for child in succeeded]
        return [*lost, *await children(session, detail, JobStatus.FAILED)]

    monkeypatch.setattr(failed_tasks, "_children", failed)

    async def numbers():
        plan = await plan_for(session, executor.settings, job_id)
        return [task.number for task in plan.tasks]

    await until_async(lambda: _is(numbers, [1, 4, 7]))  # wait until the receipts are written


async def _is(ask, wanted):
    return await ask() == wanted


async def test_concurrent_copies_are_all_submitted(executor, session, swept):
    plan = await plan_for(session, executor.settings, await swept(inputs=[1] * 8))
    plans = [replace(plan, tasks=[task]) for task in plan.tasks]
    done = await asyncio.gather(*(submit(session, each, plan.settings) for each in plans))
    assert len({retried.submission.job_id for (retried,) in done}) == 8
