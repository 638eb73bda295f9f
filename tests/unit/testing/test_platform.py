"""The fake cloud, as users use it: tasks, maps, jobs, and scripted failures."""

import asyncio
import hashlib
import os
import tempfile
import threading
from pathlib import Path

import pytest
from obstore.exceptions import GenericError
from obstore.store import LocalStore

import farcall
import farcall_runtime
from farcall import BatchExecutor, JobStatus, Settings
from farcall.backends.base import JobSpec
from farcall.engine.session import session_for
from farcall.model.pacing import Ticket
from farcall.model.submission import Submission
from farcall.testing import (
    Cancelled,
    HostLost,
    ImageFailed,
    OutcomeMissing,
    OutOfMemory,
    Refused,
    ScriptedFailure,
    Stuck,
    TimedOut,
    fake_cloud,
)
from farcall.testing.bucket import StoreOperations
from farcall_local.runners import process
from tests.support.patience import PATIENCE_S, until, until_async

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Folder in which a fake cloud creates its own folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def cloud(folder):
    with fake_cloud() as opened:
        yield opened


@pytest.fixture
def executor():
    return BatchExecutor(retry_attempts=1, linger_s=0.02)


def double(x):
    print("doubling", x)
    if x < 0:
        raise ValueError(f"{x} is negative")
    return 2 * x


def sleep_on(path):
    Path(path).touch()
    threading.Event().wait(PATIENCE_S)


def shell(script):
    return ["sh", "-c", script]


# --- tasks ------------------------------------------------------------------------------------


async def test_function_runs_in_own_process(cloud, executor):
    assert await executor.task(os.getpid)() != os.getpid()
    assert await executor.task(double)(4) == 8


async def test_function_does_not_see_client_environment(cloud, executor, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("FARCALL_PREFIX", "mine")
    there = await executor.task(dict)(await executor.task(lambda: dict(os.environ))())
    assert "AWS_ACCESS_KEY_ID" not in there
    assert "mine" not in there.values()


def report_node(x):
    print(f"on {farcall_runtime.node().index}")
    return farcall_runtime.node(), x


async def test_function_runs_on_several_nodes(cloud, executor):
    job = await executor.with_options(nodes=3).submit(report_node, 7)
    assert await job.result() == [((index, 3, "127.0.0.1"), 7) for index in range(3)]
    assert [await job.stdout(node=index) for index in range(3)] == ["on 0\n", "on 1\n", "on 2\n"]
    (detail,) = cloud.jobs
    assert (detail.nodes, detail.status) == (3, JobStatus.SUCCEEDED)
    # The end of the main node, 0, stops the others, even if their processes have yet to exit.
    assert await executor.attach(f"{job.id}#0").status() is JobStatus.SUCCEEDED
    with pytest.raises(farcall.JobLostError):
        await executor.attach(f"{job.id}#3").status()


async def test_result_implies_ended_job(cloud, executor, monkeypatch):
    """The process exits a moment after it stored the outcome; in this test, long after."""
    ended = threading.Event()
    wait = process._Attempt.wait

    async def wait_long(self):
        found = await wait(self)
        await asyncio.to_thread(ended.wait)
        return found

    monkeypatch.setattr(process._Attempt, "wait", wait_long)
    job = await executor.submit(double, 4)
    session = await session_for(executor.settings)
    submission, _ = Submission.of(await session.describe(job.id))
    store = session.stores.of(submission.where.bucket)
    key = submission.where.outcome_key(0)
    try:
        await until_async(lambda: store.get(key))
        assert await store.list_outcomes(submission.where.root) == ([], "")
    finally:
        ended.set()
    assert await job.result() == 8
    assert cloud.jobs[0].status is JobStatus.SUCCEEDED


async def test_image_without_command_is_rejected(cloud, executor):
    job = await executor.command("an/image:1")
    with pytest.raises(farcall.ImageError, match="the fake cloud has no images"):
        await job.wait()


async def test_delivered_results_are_deleted(cloud, executor, folder):
    async with executor:
        cloud.next_job(HostLost())
        await executor.task(double).with_options(retry_attempts=2)(1)
        await asyncio.gather(*map(executor.task(double), range(3)))
    assert [path for path in folder.rglob("*") if path.is_file()] == []


# --- failures ---------------------------------------------------------------------------------

ENDINGS = [
    (HostLost(), farcall.HostLostError),
    (OutOfMemory(), farcall.OutOfMemoryError),
    (ImageFailed(), farcall.ImageError),
    (TimedOut(), farcall.JobTimeoutError),
    (Cancelled(), farcall.JobCancelledError),
    (OutcomeMissing(), farcall.OutcomeMissingError),
    (ScriptedFailure(exit_code=126), farcall.ImageError),
    (ScriptedFailure(exit_code=1), farcall.JobError),
]


@pytest.mark.parametrize(
    ("ending", "error"),
    ENDINGS,
    ids=[error.__name__ + repr(ending.exit_code) for ending, error in ENDINGS],
)
async def test_attempt_fails_as_scripted(ending, error, cloud, executor, tmp_path):
    cloud.next_job(ending)
    job = await executor.submit(sleep_on, str(tmp_path / "runs"))
    with pytest.raises(error) as caught:
        await job.result()
    assert type(caught.value) is error
    assert caught.value.job_id == cloud.jobs[0].job_id
    assert not (tmp_path / "runs").exists()


async def test_options_decide_retries(cloud, executor):
    task = executor.task(double).with_options(retry_attempts=3)
    cloud.next_job(HostLost(), ScriptedFailure(exit_code=1))
    with pytest.raises(farcall.JobError, match="Attempt 1 failed with HostLostError"):
        await task(1)
    task = task.with_options(retry_on="failure")
    cloud.next_job(HostLost(), ScriptedFailure(exit_code=1))
    assert await task(1) == 2
    cloud.next_job(TimedOut())
    with pytest.raises(farcall.JobTimeoutError):
        await task(1)
    assert [job.attempts for job in cloud.jobs] == [2, 3, 1]


async def test_each_script_is_for_one_job(cloud, executor):
    cloud.next_job(HostLost())
    cloud.next_job(OutOfMemory())
    task = executor.task(double)
    for error in (farcall.HostLostError, farcall.OutOfMemoryError):
        with pytest.raises(error):
            await task(1)
    assert await task(1) == 2


async def test_script_may_name_array_task(cloud, executor):
    cloud.next_job(HostLost(), task=1)
    found = {}
    async for result in executor.task(double).map(range(3)).results():
        found[result.index] = result.error or result.value
    assert (found[0], found[2]) == (0, 4)
    assert isinstance(found[1], farcall.HostLostError)


async def test_stuck_timeout_ends_stuck_job(cloud, executor):
    cloud.next_job(Stuck("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too large"))
    with pytest.raises(farcall.JobStuckError, match="too large") as caught:
        await executor.task(double).with_options(stuck_timeout_s=0)(1)
    assert "larger instances" in str(caught.value)


async def test_stuck_job_waits_without_timeout(cloud, executor, caplog):
    cloud.next_job(Stuck())
    job = await executor.submit(double, 1)
    waiting = asyncio.ensure_future(job.result())
    await until_async(lambda: "INSUFFICIENT_INSTANCE_CAPACITY" in caplog.text)
    assert cloud.jobs[0].status is JobStatus.RUNNABLE
    await job.cancel()
    with pytest.raises(farcall.JobCancelledError):
        await waiting


async def test_job_may_be_placed_later(cloud, executor):
    cloud.next_job(Stuck(for_s=0.05))
    assert await executor.task(double)(4) == 8


async def test_submission_is_rejected_as_scripted(cloud, executor):
    cloud.next_job(Refused("Tag keys may not start with aws:"))
    with pytest.raises(farcall.SubmissionError, match="Tag keys may not"):
        await executor.task(double)(1)
    cloud.next_job(Refused("not authorized to perform SubmitJob", "AccessDeniedException"))
    with pytest.raises(farcall.ServiceError) as caught:
        await executor.task(double)(1)
    assert caught.value.code == "AccessDeniedException"
    assert cloud.jobs == []
    assert await executor.task(double)(1) == 2


@pytest.mark.parametrize("given", [HostLost, farcall.HostLostError, "lost"])
def test_invalid_script_is_rejected(given, cloud):
    with pytest.raises(TypeError, match=r"HostLost\(\)"):
        cloud.next_job(given)


# --- blocks -----------------------------------------------------------------------------------


async def test_innermost_cloud_is_used(cloud, executor):
    with fake_cloud() as inner:
        await executor.task(double)(1)
        assert len(inner.jobs) == 1
        assert (await session_for(executor.settings)).backend.name == "fake"
    assert cloud.jobs == []
    await executor.task(double)(1)
    assert len(cloud.jobs) == 1


async def test_no_cloud_is_left_after_block(executor):
    with fake_cloud():
        await executor.task(double)(1)
    with pytest.raises(farcall.ServiceError, match="no AWS credentials"):
        await executor.task(double)(1)


def test_block_end_leaves_nothing(executor, tmp_path, folder):
    mark = tmp_path / "pid"

    def stay(path):
        Path(path).write_text(str(os.getpid()))
        threading.Event().wait()

    async def submit():
        await executor.submit(stay, str(mark))
        await until_async(lambda: mark.exists() and mark.read_text())

    with fake_cloud() as cloud:
        asyncio.run(submit())
        assert list(folder.iterdir()) != []
    assert list(folder.iterdir()) == []
    assert "farcall-fake" not in [thread.name for thread in threading.enumerate()]
    until(lambda: not Path("/proc", mark.read_text()).exists())
    (job,) = cloud.jobs
    assert job.status is JobStatus.FAILED


async def test_block_end_cancels_waiting_calls(executor, tmp_path):
    with fake_cloud():
        job = await executor.submit(sleep_on, str(tmp_path / "runs"))
        waiting = asyncio.ensure_future(job.result())
        await until_async(lambda: (tmp_path / "runs").exists())
    with pytest.raises(farcall.JobCancelledError, match="closed"):
        await waiting


async def test_closed_cloud_rejects_jobs(executor):
    with fake_cloud():
        session = await session_for(Settings())
    with pytest.raises(farcall.ServiceError, match="closed"):
        await session.backend.submit(JobSpec("job", 1, {}, Settings()), Ticket())


# --- a folder as a bucket ---------------------------------------------------------------------


@pytest.fixture
def operations(folder):
    return StoreOperations(LocalStore(folder))


async def test_damaged_part_is_rejected(operations):
    upload = await operations.begin_upload("key")
    with pytest.raises(GenericError, match="Mismatch"):
        await operations.upload_part("key", upload, 1, b"data", hashlib.sha256().hexdigest())


async def test_folders_are_listed_by_name(operations, folder):
    for name in ("a/1", "a/b/2", "c"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert [each.key for each in (await operations.page("")).objects] == ["a/1", "a/b/2", "c"]
    assert [each.key for each in (await operations.page("a/", after="a/1")).objects] == ["a/b/2"]
    assert (await operations.page("", delimiter="/")).folders == ["a/"]
