"""Calls on warm workers, on the fake cloud, whose workers are real processes."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from farcall import (
    BatchExecutor,
    ChildKilledError,
    HostLostError,
    JobCancelledError,
    JobError,
    Settings,
)
from farcall.engine.session import session_for
from farcall_runtime import envelope


def worker():
    """Return the worker's process, which has forked the task runner, which has forked this one."""
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def double(x):
    return 2 * x


def environment():
    return dict(os.environ)


def die(code):
    os._exit(code)


def wait_for(path):
    Path(path).with_suffix(".begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return True


def run_until(path):
    """Wait for a file, after writing down the worker's process."""
    Path(path).with_suffix(".new").write_text(str(worker()))
    Path(path).with_suffix(".new").rename(Path(path).with_suffix(".begun"))
    while not Path(path).exists():
        time.sleep(0.01)
    return True


@pytest.fixture
async def warm(cloud):
    """Executor with two warm workers."""
    options = {"vcpu": 1, "memory": 1, "workers": 2, "linger_s": 0.01, "retry_attempts": 2}
    async with BatchExecutor(**options) as executor:
        yield executor


@pytest.fixture
def begun(tmp_path):
    """Return a function that waits until `wait_for` has begun."""

    async def wait(name):
        while not (tmp_path / name).with_suffix(".begun").exists():
            await asyncio.sleep(0.01)

    return wait


async def test_calls_share_workers(warm, cloud):
    assert await warm.task(double).map(range(10)) == [2 * n for n in range(10)]
    job = await warm.submit(double, 4)
    assert await job.result() == 8
    detail = await job.detail()
    assert (detail.status.value, detail.memory_mib) == ("SUCCEEDED", 1024)
    assert [each.array_size for each in cloud.jobs] == [2]


async def test_each_call_has_process_of_its_own(warm):
    variables = await warm.task(environment)()
    assert "FARCALL_WORKER_IDLE_S" not in variables
    assert not await warm.task(os.environ.get)("ADDED")
    with pytest.raises(ChildKilledError, match="exited with code 7"):
        await warm.task(die)(7)
    workers = [await warm.task(worker)() for _ in range(4)]
    assert len(set(workers)) <= 2


async def test_cancelled_call_leaves_its_worker_alive(warm, tmp_path, begun):
    before = {await warm.task(worker)() for _ in range(4)}
    job = await warm.submit(wait_for, str(tmp_path / "gate"))
    await begun("gate")
    await job.cancel()
    with pytest.raises(JobCancelledError):
        await job.result()
    assert {await warm.task(worker)() for _ in range(4)} <= before | {None}


async def test_waiting_call_is_cancelled_at_once(warm, tmp_path, begun):
    gate = tmp_path / "gate"
    jobs = [await warm.submit(wait_for, str(gate)) for _ in range(5)]
    await jobs[-1].cancel()
    with pytest.raises(JobCancelledError):
        await jobs[-1].result()
    gate.touch()
    assert [await job.result() for job in jobs[:-1]] == [True] * 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_call_of_lost_worker_runs_on_another(warm, tmp_path, begun, number):
    """A reclaimed host ends its containers with SIGTERM first."""
    gate = tmp_path / "gate"
    job = await warm.submit(run_until, str(gate))
    await begun("gate")
    process = int(gate.with_suffix(".begun").read_text())
    gate.with_suffix(".begun").unlink()
    os.kill(process, number)
    await begun("gate")  # a second time
    gate.touch()
    assert await job.result()


async def test_call_out_of_attempts_is_lost(cloud, tmp_path, begun):
    options = {"vcpu": 1, "memory": 1, "workers": 1, "linger_s": 0.01, "retry_attempts": 1}
    async with BatchExecutor(**options) as executor:
        process = await executor.task(worker)()
        job = await executor.submit(wait_for, str(tmp_path / "gate"))
        await begun("gate")
        os.kill(process, signal.SIGKILL)
        with pytest.raises(HostLostError, match="the worker of the call was lost"):
            await job.result()
        assert await executor.task(double)(2) == 4  # on new workers


async def test_idle_workers_end_and_new_ones_start(cloud):
    settings = Settings(vcpu=1, memory=1, workers=1, linger_s=0.01, retry_attempts=1)
    executor = BatchExecutor(settings)
    executor._settings = settings.with_options(workers_idle=0.2)
    async with executor:
        assert await executor.task(double)(1) == 2
        while not cloud.jobs[0].status.is_final:
            await asyncio.sleep(0.05)
        assert cloud.jobs[0].status.value == "SUCCEEDED"
        assert await executor.task(double)(2) == 4
    assert len(cloud.jobs) == 2


async def test_workers_that_run_no_call_are_not_started_forever(cloud):
    settings = Settings(vcpu=1, memory=1, workers=1, linger_s=0.01)
    executor = BatchExecutor(settings)
    executor._settings = settings.with_options(workers_idle=0)
    async with executor:
        with pytest.raises(JobError, match="its workers ended 3 times"):
            await executor.task(double)(1)
    assert len(cloud.jobs) == 3


async def test_workers_end_with_the_block(cloud):
    """Also those that start later: the fake cloud runs eight jobs at a time."""
    async with BatchExecutor(vcpu=1, memory=1, workers=20, linger_s=0.01) as executor:
        await executor.task(double)(1)
    while not cloud.jobs[0].status.is_final:
        await asyncio.sleep(0.05)


async def test_old_and_foreign_inboxes_are_ignored(warm, tmp_path, monkeypatch):
    """Replay an inbox, swap those of two workers, forge one, and cut one."""
    marks = tmp_path / "marks"
    session = await session_for(warm.settings)
    store = session.stores.of(warm.settings.s3_bucket_name)
    inboxes = []
    put = store.put

    async def note(key, pieces, **options):
        pieces = list(pieces)
        if "/inbox/" in key:
            inboxes.append((key, b"".join(pieces)))
        await put(key, pieces, **options)

    monkeypatch.setattr(store, "put", note)
    for _ in range(4):
        await warm.task(append)(str(marks))
    monkeypatch.setattr(store, "put", put)
    key, data = inboxes[0]
    other = key[:-1] + ("0" if key[-1] == "1" else "1")
    content = {"nonce": "", "number": 10**6, "jobs": {}, "calls": [], "stop": True}
    forged = b"".join(envelope.seal_worker(b"x" * 32, key, content))
    for attack in (data, forged, data[:-1], b""):
        for place in (key, other):
            await put(place, [attack], quick=True)
        await asyncio.sleep(0.4)  # two polls, because nothing shows that an inbox was ignored
    assert await warm.task(double)(5) == 10
    assert marks.read_text() == 4 * "x"


def append(path):
    with Path(path).open("a") as file:
        file.write("x")


async def test_results_of_an_ended_client_are_recovered(cloud, tmp_path, begun):
    gate = tmp_path / "gate"
    options = {"vcpu": 1, "memory": 1, "linger_s": 0.01}
    async with BatchExecutor(workers=2, **options) as executor:
        jobs = [await executor.submit(wait_for, str(gate)) for _ in range(5)]
        await begun("gate")
        run = await executor.run_name()
    gate.touch()
    async with BatchExecutor(**options) as executor:
        recovered = await executor.recover(run)
        assert sorted(job.id for job in recovered.jobs) == sorted(job.id for job in jobs)
        assert [await job.result() for job in recovered.jobs] == [True] * 5
