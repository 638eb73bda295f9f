"""Failed tasks that run again with more memory or in the next queue, on the fake cloud."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from farcall import BatchExecutor, HostLostError, OutOfMemoryError, SettingsError
from farcall.engine import retry, retry_notes
from farcall.engine.calls import submit
from farcall.engine.delivered import Delivered, Usage, Wanted
from farcall.engine.packer import FunctionCall
from farcall.engine.retry_notes import Note
from farcall.engine.second_chances import describe_attempt
from farcall.engine.session import session_for
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.model.workflows import NodeOf, Workflow
from farcall.payload.results import Result
from farcall.testing import HostLost, OutOfMemory, Stuck
from farcall_runtime.contract import OutcomeStatus, run_root


def double(x):
    return 2 * x


def shout(x):
    print("a loud", x)


def run_out(_):
    raise MemoryError("own code")


@pytest.fixture
async def ladder(cloud):
    """Executor whose tasks have three sizes of memory."""
    options = {"vcpu": 1, "memory": [1, 2, 4], "retry_attempts": 1, "linger_s": 0.02}
    async with BatchExecutor(**options) as executor:
        yield executor


def sizes(cloud):
    """Return the memory and number of tasks of each job."""
    return [(job.memory_mib, max(1, job.array_size)) for job in cloud.jobs]


async def test_call_gets_more_memory(ladder, cloud):
    cloud.next_job(OutOfMemory())
    cloud.next_job(OutOfMemory())
    job = await ladder.submit(double, 3)
    first = job.id
    assert await job.result() == 6
    assert sizes(cloud) == [(1024, 1), (2048, 1), (4096, 1)]
    rungs = [job.environment["FARCALL_RUNGS"] for job in cloud.jobs]
    assert rungs == ["memory=1/3", "memory=2/3", "memory=3/3"]
    assert job.id != first
    assert (await job.detail()).memory_mib == 4096


async def test_tasks_that_fail_together_share_job(ladder, cloud):
    cloud.next_job(OutOfMemory())
    assert await ladder.task(double).map(range(5)) == [0, 2, 4, 6, 8]
    assert sizes(cloud) == [(1024, 5), (2048, 5)]


async def test_only_failed_tasks_run_again(ladder, cloud):
    cloud.next_job(OutOfMemory(), task=[3, 17])
    cloud.next_job(OutOfMemory())
    assert await ladder.task(double).map(range(20)) == [2 * n for n in range(20)]
    assert sizes(cloud) == [(1024, 20), (2048, 2), (4096, 2)]


async def test_objects_of_failed_attempts_are_deleted(ladder, cloud):
    for _ in range(2):
        cloud.next_job(OutOfMemory(), task=0)
        cloud.next_job()
    assert await ladder.task(double).map(range(3)) == [0, 2, 4]
    assert await ladder.task(double)(3) == 6
    session = await session_for(ladder.settings)
    store = session.stores.of(ladder.settings.s3_bucket_name)
    await store.flush()
    assert await store.list_keys(f"{run_root(ladder.settings.prefix, session.run)}/") == []


async def test_objects_of_failed_task_are_kept(ladder, cloud):
    for _ in range(3):
        cloud.next_job(OutOfMemory(), task=0)
    with pytest.raises(OutOfMemoryError):
        await ladder.task(double)(3)
    session = await session_for(ladder.settings)
    store = session.stores.of(ladder.settings.s3_bucket_name)
    await store.flush()
    root = run_root(ladder.settings.prefix, session.run)
    bundles = await store.list_keys(f"{root}/bundles/")
    assert sum(".retried/" not in key for key, _ in bundles) == 3


async def test_last_error_names_each_attempt(ladder, cloud):
    for _ in range(3):
        cloud.next_job(OutOfMemory())
    job = await ladder.submit(double, 3)
    with pytest.raises(OutOfMemoryError) as caught:
        await job.result()
    (note,) = (note for note in caught.value.__notes__ if note.startswith("Earlier attempts"))
    queue = ladder.settings.queue
    assert note == (
        f"Earlier attempts: memory=1 GiB in queue {queue}, killed at a peak of 1 GiB; "
        f"memory=2 GiB in queue {queue}, killed at a peak of 2 GiB. "
        f"Last attempt: memory=4 GiB in queue {queue}, killed at a peak of 4 GiB"
    )
    assert len(cloud.jobs) == 3


def test_measured_peak_of_container_is_described():
    detail = JobDetail("6f1c", "f-0", JobStatus.FAILED, memory_mib=2048, queue="spot")
    usage = Usage(peak_memory_bytes=2**29)
    lost = Delivered([Result(error=HostLostError("gone"))], usage=usage)
    assert describe_attempt(detail, lost) == "memory=2 GiB in queue spot, peak 0.5 GiB"
    meta = {"memory_peak_bytes": 2**31, "status": OutcomeStatus.DONE}
    whole = replace(lost, meta=meta)
    assert describe_attempt(detail, whole) == "memory=2 GiB in queue spot, peak 2 GiB"


async def test_own_memory_error_is_final(ladder, cloud):
    with pytest.raises(MemoryError, match="own code"):
        await ladder.task(run_out)(1)
    assert len(cloud.jobs) == 1


async def test_recovered_job_continues_on_the_ladder(ladder, cloud, executor):
    cloud.next_job(OutOfMemory())
    cloud.next_job(OutOfMemory())
    job = await executor.submit(double, 3)  # without a ladder
    with pytest.raises(OutOfMemoryError):
        await job.result()
    again = await job.retry(memory=2)
    with pytest.raises(OutOfMemoryError):
        await again.result()
    assert await ladder.attach(job.id).result() == 6  # follows the existing retry
    assert sizes(cloud) == [(1024, 1), (2048, 1), (4096, 1)]


async def test_recovered_job_waits_for_another_client(ladder, cloud, executor, monkeypatch):
    """That client was killed after it had stored its note, and before it submitted the job."""
    cloud.next_job(OutOfMemory())
    job = await executor.submit(double, 3)
    with pytest.raises(OutOfMemoryError):
        await job.result()
    session = await session_for(executor.settings)
    submission = Submission.whole(await job.detail())
    note = Note(submission.where._replace(bundle="other"), executor.settings.queue, (0,))
    await retry_notes.write(session.stores.of(submission.where.bucket), submission, note)

    def expire(*_):
        monkeypatch.setattr(retry, "_IN_FLIGHT", timedelta())
        return 0

    monkeypatch.setattr(random, "uniform", expire)
    assert await ladder.attach(job.id).result() == 6
    assert sizes(cloud) == [(1024, 1), (2048, 1)]


async def test_retry_continues_on_the_ladder(ladder, cloud, executor):
    for _ in range(2):
        cloud.next_job(OutOfMemory())
    job = await executor.submit(double, 3)
    with pytest.raises(OutOfMemoryError):
        await job.result()
    again = await ladder.attach(job.id).retry()
    assert await again.result() == 6
    assert sizes(cloud) == [(1024, 1), (1024, 1), (2048, 1)]


@pytest.mark.parametrize("is_map", [True, False])
async def test_output_of_second_chance_is_printed(ladder, cloud, capsys, is_map):
    cloud.next_job(OutOfMemory())
    task = ladder.with_options(output=True).task(shout)
    if is_map:
        await task.map([3])
    else:
        await task(3)
    assert "a loud 3" in capsys.readouterr().out


async def test_cancelled_job_gets_no_second_chance(ladder, cloud):
    cloud.next_job(OutOfMemory())
    job = await ladder.submit(double, 3)
    while job._run._arrival is None:
        await asyncio.sleep(0)
    await job.cancel()
    with pytest.raises(OutOfMemoryError):
        await job.result()
    assert len(cloud.jobs) == 1


async def test_lost_host_moves_to_next_queue(cloud):
    cloud.next_job(HostLost())
    async with BatchExecutor(queue=["spot", "on-demand"], retry_attempts=1) as executor:
        assert await executor.task(double)(4) == 8
    assert [job.queue for job in cloud.jobs] == ["spot", "on-demand"]


async def test_only_tasks_of_lost_hosts_move(cloud):
    cloud.next_job(HostLost(), HostLost(), task=[3, 17])
    async with BatchExecutor(queue=["spot", "on-demand"], retry_attempts=2) as executor:
        values = await executor.task(double).map(range(20))
    assert values == [2 * n for n in range(20)]
    jobs = [(job.queue, job.array_size) for job in cloud.jobs]
    assert jobs == [("spot", 20), ("on-demand", 2)]


@pytest.fixture
async def impatient(cloud):
    """Executor whose waiting tasks move to the next queue at once."""
    options = {"queue": ["spot", "on-demand"], "queue_patience": 0, "linger_s": 0.02}
    async with BatchExecutor(**options) as executor:
        yield executor


async def test_waiting_tasks_move_to_next_queue(impatient, cloud):
    cloud.next_job(Stuck(), task=1)
    assert await impatient.task(double).map(range(3)) == [0, 2, 4]
    spot, on_demand = cloud.jobs
    assert (spot.queue, spot.array_size) == ("spot", 3)
    assert (on_demand.queue, on_demand.array_size) == ("on-demand", 0)
    assert spot.status_summary["SUCCEEDED"] == 2


async def test_task_waits_in_last_queue(impatient, cloud):
    cloud.next_job(Stuck())
    cloud.next_job(Stuck(for_s=0.5))
    assert await impatient.task(double)(4) == 8
    assert [job.queue for job in cloud.jobs] == ["spot", "on-demand"]


async def test_last_queue_is_final(cloud):
    cloud.next_job(HostLost())
    cloud.next_job(HostLost())
    async with BatchExecutor(queue=["spot", "on-demand"], retry_attempts=1) as executor:
        with pytest.raises(HostLostError):
            await executor.task(double)(4)
    assert len(cloud.jobs) == 2


async def test_electron_keeps_its_workflow(ladder, cloud, session):
    cloud.next_job(OutOfMemory())
    settings = ladder.settings
    workflow, node = Workflow("fit", "dispatch-1"), NodeOf("dispatch-1", 3)
    call = FunctionCall(double, [((3,), {})], settings)
    run = await submit(call, settings, Wanted(), workflow=workflow, node=node)
    assert [result.value for result in await run.results()] == [6]
    assert sizes(cloud) == [(1024, 1), (2048, 1)]
    detail = await run.detail()
    assert detail.environment["FARCALL_DISPATCH"] == "dispatch-1"
    assert detail.environment["FARCALL_WORKFLOW"] == "fit"


async def test_wrong_later_size_is_rejected_at_once(cloud):
    fargate = {"platformCapabilities": ["FARGATE"]}
    options = {"vcpu": [0.25, 1], "memory": [1, 30], "job_definition_extra": fargate}
    async with BatchExecutor(**options) as executor:
        with pytest.raises(SettingsError, match="memory=30 GiB is not supported on Fargate"):
            await executor.submit(double, 1)
    assert len(cloud.jobs) == 0
