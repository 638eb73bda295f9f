"""Functions on several nodes: values, failures, retries, and what is kept of each node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

import farcall.local
import farcall_runtime
from farcall import (
    BatchExecutor,
    FarcallError,
    IntegrityError,
    Job,
    JobCancelledError,
    NothingToRetryError,
)
from farcall.engine.logs.reader import lines
from farcall.engine.session import session_for
from farcall.operations import explain
from farcall_runtime.contract import ExitCode, OutcomeStatus
from tests.service.attempt import value_of
from tests.support.commands import run_installed
from tests.support.patience import PATIENCE_S, until, until_async

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture
async def gang(make_executor: Callable[..., BatchExecutor]) -> AsyncIterator[BatchExecutor]:
    """An executor of tasks on three nodes."""
    async with make_executor(nodes=3) as opened:
        yield opened


class Bucket:
    """What lies in the bucket of one job."""

    def __init__(self, aws: farcall.local.LocalAWS, job: Job[Any]) -> None:
        self._s3 = boto3.client("s3")
        self._bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]
        self._job = job

    def keys(self) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket)
        found = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return [key for key in found if f"/{self._job.name}" in key]

    def of_nodes(self) -> dict[str, str]:
        """Return the keys of other nodes' outcomes, by attempt and index."""
        found = [key for key in self.keys() if "/outcomes/" in key and not key.endswith("/0")]
        return {"/".join(key.split("/")[-2:]): key for key in found}

    def copy(self, source: str, to: str) -> None:
        self._s3.copy_object(
            Bucket=self._bucket, Key=to, CopySource={"Bucket": self._bucket, "Key": source}
        )


def notes(error: BaseException) -> str:
    """Return what is noted of an error; Python 3.10 has it in the causes."""
    told = list(getattr(error, "__notes__", ()))
    behind = error.__cause__
    while behind is not None:
        told.append(str(behind))
        behind = behind.__cause__
    return "\n".join(told)


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)


# --- values -------------------------------------------------------------------------------------


def who(x: int) -> tuple[int, int, int]:
    node = farcall_runtime.node()
    print(f"node {node.index} says {x}")
    return node.index, node.count, x


async def test_the_value_is_the_list_of_the_nodes_values(
    gang: BatchExecutor, aws: farcall.local.LocalAWS
) -> None:
    job = await gang.submit(who, 7)
    assert await job.result() == [(0, 3, 7), (1, 3, 7), (2, 3, 7)]
    assert await job.stdout() == "node 0 says 7\n"
    assert await job.stdout(node=2) == "node 2 says 7\n"
    with pytest.raises(ValueError, match="node is 3; the job has nodes 0 to 2"):
        await job.stdout(node=3)
    detail = await job.detail()
    assert (detail.nodes, detail.environment["FARCALL_BUNDLE"].startswith("s3://")) == (3, True)


def meet(folder: str) -> list[int]:
    """The main node takes a message of each other one, on the address that all are told."""
    node = farcall_runtime.node()
    said, renamed = Path(folder, "port.new"), Path(folder, "port")
    if not node.is_main:
        wait_for(str(renamed))
        with socket.create_connection((node.main_address, int(renamed.read_text()))) as peer:
            peer.sendall(bytes([node.index]))
        return []
    found = []
    with socket.create_server((node.main_address, 0)) as server:
        said.write_text(str(server.getsockname()[1]))
        said.rename(renamed)
        for _ in range(node.count - 1):
            peer, _ = server.accept()
            with peer:
                found.append(peer.recv(1)[0])
    return sorted(found)


async def test_the_nodes_reach_the_main_one_by_the_address_they_are_told(
    gang: BatchExecutor, tmp_path: Path
) -> None:
    assert await gang.task(meet)(str(tmp_path)) == [[1, 2], [], []]


def program() -> str:
    """What the function starts is told the same."""
    names = ("NODE_INDEX", "NUM_NODES", "MAIN_NODE_PRIVATE_IPV4_ADDRESS")
    command = "echo " + " ".join(f"$AWS_BATCH_JOB_{name}" for name in names)
    return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout


async def test_programs_of_the_function_find_the_main_node_on_each_of_them(
    gang: BatchExecutor,
) -> None:
    told = await gang.task(program)()
    assert told == [f"{index} 3 127.0.0.1\n" for index in range(3)]


def large(size: int) -> bytes:
    return bytes([farcall_runtime.node().index]) * size


async def test_large_values_come_from_each_node_and_nothing_is_left(
    make_executor: Callable[..., BatchExecutor], aws: farcall.local.LocalAWS
) -> None:
    size = 3_000_000
    async with make_executor(nodes=3) as gang:
        job = await gang.submit(large, size)
        await job.wait()
        bucket = Bucket(aws, job)
        values = [key for key in bucket.keys() if "/values/" in key]  # noqa: SIM118
        assert {key.split("/")[-3] for key in values} == {"1", "2"}
        assert await job.result() == [bytes([index]) * size for index in range(3)]
    assert bucket.keys() == []


async def test_a_map_gives_lists_and_submits_a_job_for_each(gang: BatchExecutor) -> None:
    sweep = gang.with_options(nodes=2).task(who).map([1, 2, 3], chunksize=2)
    assert await sweep == [[(0, 2, x), (1, 2, x)] for x in (1, 2, 3)]
    assert len(sweep.job_ids) == 2


async def test_tasks_gathered_at_once_are_jobs_of_their_own(gang: BatchExecutor) -> None:
    task = gang.with_options(nodes=2).task(who)
    jobs = await asyncio.gather(task.submit(1), task.submit(2))
    assert len({job.id for job in jobs}) == 2
    assert [await job.result() for job in jobs] == [[(0, 2, x), (1, 2, x)] for x in (1, 2)]


async def test_one_node_with_an_instance_type_gives_its_value(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    async with make_executor(instance_type="c5.large") as one:
        assert await one.task(who)(5) == (0, 1, 5)
        assert await one.task(who).map([5, 6]) == [(0, 1, 5), (0, 1, 6)]


async def test_a_local_call_gives_a_list_of_one_value(gang: BatchExecutor) -> None:
    async def later(x: int) -> int:
        return x

    assert gang.task(who).local(3) == [(0, 1, 3)]
    assert await gang.task(later).local(3) == [3]  # type: ignore[misc]


# --- failures -----------------------------------------------------------------------------------


def fail_on(nodes: tuple[int, ...], folder: str) -> str:
    """Fail on some nodes; on the others stay, and say why that came to an end."""
    node = farcall_runtime.node()
    Path(folder, f"pid-{node.index}").write_text(str(os.getppid()))
    if node.index in nodes:
        raise LookupError(f"on node {node.index}")
    try:
        time.sleep(PATIENCE_S)
    except KeyboardInterrupt as error:
        Path(folder, f"told-{node.index}").write_text(str(error))
        raise
    return "slept"


async def test_the_main_node_s_failure_ends_the_job(gang: BatchExecutor, tmp_path: Path) -> None:
    job = await gang.submit(fail_on, (0,), str(tmp_path))
    with pytest.raises(LookupError, match="on node 0") as caught:
        await job.result()
    assert "node 0 of 3" in notes(caught.value)
    await until_async(lambda: _has_ended(job))
    assert (await job.detail()).exit_code == ExitCode.RAISED


async def _has_ended(job: Job[Any]) -> bool:
    return (await job.status()).is_final


async def test_another_node_s_failure_stops_the_main_one_and_is_raised(
    gang: BatchExecutor, tmp_path: Path
) -> None:
    job = await gang.submit(fail_on, (2,), str(tmp_path))
    with pytest.raises(LookupError, match="on node 2") as caught:
        await job.result()
    assert f"{job.id}#2" in notes(caught.value)
    assert (tmp_path / "told-0").read_text().startswith("node 2 of this job has failed; its ")
    await until_async(lambda: _has_ended(job))
    detail = await job.detail()
    assert detail.exit_code == ExitCode.RAISED
    session = await session_for(gang.settings)
    why = await explain.explain(session, detail)
    assert why.sentence == "node 2 failed: the function raised LookupError: on node 2"
    assert "in fail_on" in why.traceback
    of_node = await explain.explain(session, await session.describe(f"{job.id}#2"))
    assert of_node.sentence == "the function raised LookupError: on node 2"


def fail_one_after_the_other(folder: str) -> None:
    """Node 2 fails, then node 1; the main one leaves when that one's supervisor has."""
    node = farcall_runtime.node()
    pid = Path(folder, "pid")
    if node.index == 2:
        raise LookupError("the first one")
    if node.index == 1:
        (Path(folder) / "pid.new").write_text(str(os.getppid()))
        (Path(folder) / "pid.new").rename(pid)
        wait_for(f"{folder}/told")
        raise KeyError("the second one")
    try:
        time.sleep(PATIENCE_S)
    except KeyboardInterrupt:
        wait_for(str(pid))
        Path(folder, "told").touch()
        while Path("/proc", pid.read_text()).exists():
            time.sleep(0.02)
        raise


async def test_the_first_failure_decides_and_the_others_are_in_its_notes(
    gang: BatchExecutor, tmp_path: Path
) -> None:
    with pytest.raises(LookupError, match="the first one") as caught:
        await gang.task(fail_one_after_the_other)(str(tmp_path))
    assert "node 1 failed: the function raised KeyError: 'the second one'" in notes(caught.value)


def die(folder: str) -> None:
    if farcall_runtime.node().index == 1:
        os._exit(3)
    time.sleep(PATIENCE_S)


async def test_a_node_whose_process_is_gone_is_told_as_one(
    gang: BatchExecutor, tmp_path: Path
) -> None:
    job = await gang.submit(die, str(tmp_path))
    error = await job.exception()
    assert type(error).__name__ == "ChildKilledError"
    assert "left with exit code 3" in str(error)
    assert f"job {job.id}#1" in str(error)
    assert "node 1 of 3" in str(error)


# --- retries, cancel, time limit ----------------------------------------------------------------


def fail_at_first(folder: str) -> tuple[int, str]:
    index = farcall_runtime.node().index
    attempt = os.environ["AWS_BATCH_JOB_ATTEMPT"]
    if index == 1 and attempt == "1":
        raise LookupError("the first attempt")
    if attempt == "1" and index == 2:
        return index, attempt
    if attempt == "1":
        time.sleep(PATIENCE_S)
    return index, attempt


async def test_all_nodes_are_tried_again_and_give_their_last_values(
    make_executor: Callable[..., BatchExecutor], aws: farcall.local.LocalAWS, tmp_path: Path
) -> None:
    async with make_executor(nodes=3, retry_attempts=2, retry_on="failure") as gang:
        job = await gang.submit(fail_at_first, str(tmp_path))
        assert await job.result() == [(0, "2"), (1, "2"), (2, "2")]
        bucket = Bucket(aws, job)
    assert bucket.keys() == []


async def test_a_cancelled_job_is_ended_on_all_nodes(gang: BatchExecutor, tmp_path: Path) -> None:
    job = await gang.submit(fail_on, (), str(tmp_path))
    pids = [tmp_path / f"pid-{index}" for index in range(3)]
    await until_async(lambda: all(pid.exists() and pid.read_text() for pid in pids))
    await job.cancel("no more")
    with pytest.raises(JobCancelledError, match="no more"):
        await job.result()
    await until_async(lambda: not any(Path("/proc", pid.read_text()).exists() for pid in pids))


def node_of(made: Any, index: int, nodes: int = 2) -> Any:
    """Start a node as Batch does."""
    names = {
        "AWS_BATCH_JOB_NODE_INDEX": str(index),
        "AWS_BATCH_JOB_NUM_NODES": str(nodes),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    }
    return made.start(environment=names)


def test_a_node_that_leaves_nothing_is_waited_for_until_the_time_limit(attempt: Any) -> None:
    made = attempt(lambda: 7, time_limit=8)
    code, _ = node_of(made, 0).end()
    outcome = made.outcome()
    assert code == ExitCode.TIMED_OUT
    assert outcome.meta["status"] == OutcomeStatus.TIMED_OUT
    assert outcome.meta["missing"] == [1]
    assert value_of(outcome)


def test_a_main_node_that_is_told_to_stop_waits_no_longer(attempt: Any) -> None:
    made = attempt(lambda: print("here", flush=True))
    node_of(made, 0)
    until(
        lambda: any(made.objects(made.where.streams_prefix(0))) or made.process.poll() is not None
    )
    made.process.send_signal(signal.SIGTERM)
    code, _ = made.end()
    assert code == ExitCode.TERMINATED
    assert made.stopped_outcome().meta["status"] == OutcomeStatus.TERMINATED


def fail_beside() -> None:
    if farcall_runtime.node().index == 1:
        raise LookupError("on node 1")
    print("here", flush=True)
    time.sleep(PATIENCE_S)


def test_a_main_node_that_is_stopped_for_another_s_failure_tells_of_that_one(attempt: Any) -> None:
    """As Kubernetes does, which ends all pods of a Job when one fails."""
    made = attempt(fail_beside)
    main = node_of(made, 0)
    until(lambda: any(made.objects(made.where.streams_prefix(0))))
    process = main.process
    code, _ = node_of(made, 1).end()
    assert code == ExitCode.RAISED
    process.send_signal(signal.SIGTERM)
    made.process = process
    assert made.end()[0] == ExitCode.RAISED
    outcome = made.outcome() or made.stopped_outcome()
    assert outcome.meta["status"] == OutcomeStatus.PEER_FAILED
    assert outcome.meta["peer"]["node"] == 1


def test_a_task_on_one_node_asks_for_nothing_of_others(attempt: Any, proxy: Any) -> None:
    """What it costs is what it has always cost: its bundle, and its outcome."""
    code, _ = attempt(lambda: 7).start().end()
    assert code == ExitCode.RETURNED
    assert [request.operation for request in proxy.seen] == ["s3 GET bundles", "s3 PUT outcomes"]


def test_another_node_stores_where_no_client_looks_for_values(attempt: Any) -> None:
    made = attempt(lambda: 7)
    code, _ = node_of(made, 1).end()
    assert code == ExitCode.RETURNED
    assert made.outcome() is None
    assert made.outcome(made.where.node_key(1, 1)).meta["node"] == 1


# --- from elsewhere -----------------------------------------------------------------------------


async def test_another_process_joins_the_job_reads_it_and_ends_it(
    gang: BatchExecutor, aws: farcall.local.LocalAWS, tmp_path: Path
) -> None:
    job = await gang.submit(who, 9)
    await job.wait()
    script = """
import asyncio, json, sys
from farcall import BatchExecutor
async def main():
    async with BatchExecutor() as executor:
        found = await executor.recover(sys.argv[2])
        value = await executor.attach(sys.argv[1]).result()
        print(json.dumps([[each.id for each in found.jobs], value]))
asyncio.run(main())
"""
    run = await gang.run_name()
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, job.id, run],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [job.id],
        [[0, 3, 9], [1, 3, 9], [2, 3, 9]],
    ]


async def test_a_single_node_shows_its_output_and_has_no_value_of_its_own(
    gang: BatchExecutor,
) -> None:
    job = await gang.with_options(keep_artifacts=True).submit(who, 4)
    assert await job.result() == [(0, 3, 4), (1, 3, 4), (2, 3, 4)]
    session = await session_for(gang.settings)
    found = [line.text async for batch in lines(session, f"{job.id}#1") for line in batch]
    assert found == ["node 1 says 4"]
    one = gang.attach(f"{job.id}#2")
    assert [line async for line in one.logs()] == ["node 2 says 4"]
    with pytest.raises(FarcallError, match=f"is one node of job {job.id}: that one gives"):
        await one.result()
    assert await gang.attach(f"{job.id}#0").result() == [(0, 3, 4), (1, 3, 4), (2, 3, 4)]


# --- strangers ----------------------------------------------------------------------------------


def wait_on_main(path: str) -> int:
    index = farcall_runtime.node().index
    if index == 0:
        wait_for(path)
    return index


async def test_one_node_s_outcome_does_not_pass_for_another_s(
    gang: BatchExecutor, aws: farcall.local.LocalAWS, tmp_path: Path
) -> None:
    job = await gang.submit(wait_on_main, str(tmp_path / "go"))
    bucket = Bucket(aws, job)
    await until_async(lambda: set(bucket.of_nodes()) == {"1/1", "1/2"})
    there = bucket.of_nodes()
    bucket.copy(there["1/1"], there["1/2"])
    (tmp_path / "go").touch()
    error = await job.exception()
    assert isinstance(error, IntegrityError)
    assert f"{job.id}#2" in str(error)
    assert "was not unpickled" in str(error)


def test_the_main_node_fails_where_another_one_s_place_is_taken(attempt: Any) -> None:
    made = attempt(lambda: 7)
    made.put(made.where.node_key(1, 1), b"somebody else's")
    code, _ = node_of(made, 0).end()
    assert code == ExitCode.OUTCOME_OCCUPIED
    assert made.outcome().meta["peer"]["node"] == 1


# --- run again ----------------------------------------------------------------------------------


def until_mended(x: int, breaks: int, folder: str) -> tuple[int, int]:
    """Fail on a node for odd numbers until a file is there; each node notes that it ran."""
    node = farcall_runtime.node()
    with Path(folder, f"ran-{x}-{node.index}").open("a") as ledger:
        ledger.write("x")
    if x % 2 and node.index == breaks and not Path(folder, "mended").exists():
        raise LookupError(f"{x} on node {node.index}")
    return node.index, x


def times(folder: Path, x: int) -> list[int]:
    """Return how often each node has run a call."""
    return [len(path.read_text()) for path in sorted(folder.glob(f"ran-{x}-*"))]


@pytest.mark.parametrize("breaks", [0, 1])
async def test_a_task_runs_again_on_all_of_its_nodes(
    make_executor: Callable[..., BatchExecutor], tmp_path: Path, breaks: int
) -> None:
    async with make_executor(nodes=2, memory=0.5) as gang:
        job = await gang.submit(until_mended, 1, breaks, str(tmp_path))
        with pytest.raises(LookupError, match=f"1 on node {breaks}"):
            await job.result()
        again = await job.retry()
        with pytest.raises(LookupError, match=f"1 on node {breaks}"):
            await again.result()
        with pytest.raises(FarcallError, match="nodes cannot be changed for a retry"):
            await again.retry(nodes=3)
        (tmp_path / "mended").touch()
        third = await again.retry(memory=1)
        assert await third.result() == [(0, 1), (1, 1)]
        detail = await third.detail()
        assert (detail.nodes, detail.groups[0].memory_mib) == (2, 1024)
        with pytest.raises(NothingToRetryError):
            await job.retry()


@pytest.mark.parametrize("chunksize", [1, 2])
async def test_the_tasks_of_a_map_that_failed_run_again_on_all_of_their_nodes(
    make_executor: Callable[..., BatchExecutor], tmp_path: Path, chunksize: int
) -> None:
    """All calls of a task do: no node keeps values of one that another one has failed in."""
    numbers = [0, 2, 1, 4]
    async with make_executor(nodes=2) as gang:
        sweep = gang.task(until_mended).map(
            numbers, breaks=1, folder=str(tmp_path), chunksize=chunksize, return_exceptions=True
        )
        values = await sweep
        assert [type(value) for value in values].count(LookupError) >= 1
        assert isinstance(values[2], LookupError)
        (tmp_path / "mended").touch()
        again = sweep.retry()
        assert await again.complete(values) == [[(0, x), (1, x)] for x in numbers]
    assert times(tmp_path, 0) == [1, 1]
    assert times(tmp_path, 1) == [2, 2]
    assert again.indices == ([2] if chunksize == 1 else [2, 3])


async def test_the_command_runs_a_task_again_on_all_of_its_nodes(
    make_executor: Callable[..., BatchExecutor], tmp_path: Path
) -> None:
    async with make_executor(nodes=2) as gang:
        job = await gang.submit(until_mended, 1, 1, str(tmp_path))
        await job.exception()
        await until_async(lambda: _has_ended(job))
        (tmp_path / "mended").touch()

        of_node = await asyncio.to_thread(run_installed, "retry", f"{job.id}#1")
        done = await asyncio.to_thread(run_installed, "retry", job.id)

        assert of_node.returncode == 1
        assert f"a retry runs all nodes, so name {job.id}" in of_node.stderr
        assert done.returncode == 0, done.stderr
        assert "1 of 1 call of until_mended" in done.stderr
        assert await gang.attach(done.stdout.strip()).result() == [(0, 1), (1, 1)]
