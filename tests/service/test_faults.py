"""Exactly one job per submission and one outcome per task under request faults.

Starts the local AWS emulator and a fault proxy, because only Batch knows how many jobs it
accepted.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

import farcall_local
from farcall_runtime.contract import ExitCode
from tests.service.attempt import Attempt, value_of, without_usage
from tests.support.patience import PATIENCE_S, until
from tests.support.proxy import FAULTS, Fault, Request

SUBMIT, LIST = "batch submitjob", "batch listjobs"


class Ledger:
    """A function with a unique name that records each of its runs."""

    def __init__(self, aws: farcall_local.LocalAWS, folder: Path) -> None:
        self._aws = aws
        self._path = folder / "ledger"
        self._path.touch()
        self._name = f"work-{uuid.uuid4().hex}"

    @property
    def function(self) -> Callable[[int], int]:
        return self.until(None)

    def until(self, gate: Path | None) -> Callable[[int], int]:
        """Return a function that returns when a file exists."""
        path = str(self._path)

        def work(number: int) -> int:
            with open(path, "a") as file:  # noqa: PTH123  # one write, because tasks share the file
                file.write(f"{number}\n")
            while gate is not None and not gate.exists():
                time.sleep(0.02)
            return number * number

        work.__name__ = self._name
        return work

    def runs(self) -> list[int]:
        return sorted(map(int, self._path.read_text().split()))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that Batch has accepted, without the proxy."""
        batch = boto3.client("batch", endpoint_url=self._aws.endpoint_url)
        try:
            return batch.list_jobs(
                jobQueue=self._aws.environment["FARCALL_QUEUE"],
                filters=[{"name": "JOB_NAME", "values": [f"{self._name}*"]}],
            )["jobSummaryList"]
        finally:
            batch.close()


@pytest.fixture
def ledger(aws, tmp_path):
    return Ledger(aws, tmp_path)


SCRIPTS: list[dict[str, list[Fault]]] = [
    *({SUBMIT: [fault]} for fault in FAULTS),
    {SUBMIT: ["page"]},
    {SUBMIT: ["throttled"] * 12},
    {SUBMIT: ["lost"], LIST: ["empty"] * 3},
    {SUBMIT: ["truncated"], LIST: ["error", "empty", "reset", "page", "truncated"]},
    {"batch *": ["reset", "error", "throttled", "lost", "truncated", "slow down"]},
]


def _id(script: dict[str, list[Fault]]) -> str:
    said = []
    for operation, faults in script.items():
        counted = Counter(map(str, faults)).items()
        met = "+".join(f"{fault}*{n}" if n > 1 else fault for fault, n in counted)
        said.append(f"{operation.partition(' ')[2]} {met}")
    return ", ".join(said)


def _slow(scripts: list[dict[str, list[Fault]]]) -> list[Any]:
    return [pytest.param(script, marks=pytest.mark.slow) for script in scripts]


@pytest.mark.timing(submit_polls_s=(0.1, 0.2, 0.4, 0.8))
@pytest.mark.parametrize("script", [*SCRIPTS[:2], *_slow(SCRIPTS[2:])], ids=_id)
async def test_submission_creates_one_job(proxy, ledger, make_executor, script):
    image = f"farcall-local-process:{uuid.uuid4().hex}"  # so that a definition is registered
    async with make_executor(endpoint_url=proxy.url, image=image) as executor:
        for operation, faults in script.items():
            proxy.faults[operation] += faults
        value = await asyncio.wait_for(executor.task(ledger.function)(7), PATIENCE_S)

    assert value == 49
    assert not any(proxy.faults.values())
    assert len(await asyncio.to_thread(ledger.jobs)) == 1
    assert ledger.runs() == [7]


@pytest.mark.core
async def test_map_creates_one_job(proxy, ledger, make_executor):
    proxy.faults[SUBMIT] += ["lost"]
    proxy.faults["s3 *"] += ["", "reset", "slow down", "lost", "error", "truncated"] * 4
    async with make_executor(endpoint_url=proxy.url) as executor:
        sweep = executor.task(ledger.function).map(range(20))
        values = await asyncio.wait_for(sweep, PATIENCE_S)

    assert values == [n * n for n in range(20)]
    (job,) = await asyncio.to_thread(ledger.jobs)
    assert job["arrayProperties"]["size"] == 20
    assert ledger.runs() == [*range(20)]


@pytest.mark.timing(read_timeout_s=2.0)
async def test_delayed_submission_runs_nothing(proxy, ledger, make_executor, tmp_path):
    """It takes effect after the job was not found and another job has started."""
    proxy.faults[SUBMIT] += ["held"]
    retried = {"retry_attempts": 3, "retry_on": "failure"}
    async with make_executor(endpoint_url=proxy.url, **retried) as executor:
        gate = tmp_path / "gate"
        job = await asyncio.wait_for(executor.submit(ledger.until(gate), 7), PATIENCE_S)
        await asyncio.to_thread(until, ledger.runs)
        proxy.release()

        def late() -> list[dict[str, Any]]:
            others = (each for each in ledger.jobs() if each["jobId"] != job.id)
            return [each for each in others if each["status"] in ("SUCCEEDED", "FAILED")]

        (ended,) = await asyncio.to_thread(until, late)
        gate.touch()
        assert await job.result() == 49
    assert ended["container"]["exitCode"] == ExitCode.BUNDLE_MISSING
    assert ledger.runs() == [7]


# --- a container that runs twice --------------------------------------------------------------


def number_of_run(folder: str) -> int:
    """Return the number of this run, from 1, when a file "go" exists."""
    path = Path(folder)
    number = sum(1 for _ in path.iterdir()) + 1
    (path / str(number)).touch(exist_ok=False)
    deadline = time.monotonic() + 60
    while not (path / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return number


async def test_duplicate_container_stores_one_outcome(attempt, proxy, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    made = attempt(number_of_run, str(folder))
    first = made.start().process
    await asyncio.to_thread(until, (folder / "1").exists)
    second = made.start().process
    await asyncio.to_thread(until, (folder / "2").exists)
    (folder / "go").touch()

    for process in (first, second):
        _, stderr = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
        assert (process.returncode, without_usage(stderr.decode())) == (ExitCode.RETURNED, "")

    answered = {name: n for name, n in proxy.answers.items() if "PUT outcomes" in name}
    assert answered == {"s3 PUT outcomes 200": 1, "s3 PUT outcomes 412": 1}
    assert value_of(made.outcome()) in (1, 2)


async def test_stored_outcome_prevents_second_run(attempt, proxy, tmp_path):
    """The host was lost after the upload and before the container's exit."""
    folder = tmp_path / "runs"
    folder.mkdir()
    made = attempt(number_of_run, str(folder))
    (folder / "go").touch()
    for number in ("1", "2"):
        made.start(environment={"AWS_BATCH_JOB_ATTEMPT": number}, stdout=subprocess.DEVNULL)
        assert await asyncio.to_thread(made.end) == (ExitCode.RETURNED, "")

    assert not (folder / "3").exists()
    assert proxy.answers["s3 PUT outcomes 200"] == 1
    assert value_of(made.outcome()) == 2  # "go" is counted


# --- delivered outcomes -----------------------------------------------------------------------


def _deliver_by_receipt(made: Attempt) -> None:
    made.receipt(1)  # of another client
    made.receipt(0, number=1)
    made.delete(made.where.outcome_key(0))


def _deliver_as_a_whole(made: Attempt) -> None:
    made.delete(made.where.bundle_key)
    made.delete(made.where.outcome_key(0))


_WAYS = pytest.mark.parametrize("deliver", [_deliver_by_receipt, _deliver_as_a_whole])


@_WAYS
@pytest.mark.parametrize("times", [1, 2])
async def test_delivered_outcome_is_not_restored(attempt, proxy, times, deliver):
    """PUT responses are lost, and a client collects the outcome before the second PUT."""
    made = attempt(abs, -7)
    puts = []

    def rule(request: Request) -> Fault:
        if request.operation != "s3 PUT outcomes":
            return ""
        puts.append(request)
        if len(puts) == 2:
            deliver(made)
        return "lost" if len(puts) <= times else ""

    proxy.rule = rule
    assert await asyncio.to_thread(made.start().end) == (ExitCode.RETURNED, "")
    assert proxy.answers["s3 PUT outcomes 200"] == 2
    assert made.outcome() is None


@_WAYS
async def test_next_attempt_deletes_restored_outcome(attempt, deliver):
    """The first attempt was killed after it had restored the outcome."""
    made = attempt(abs, -7)
    key = made.where.outcome_key(0)
    assert await asyncio.to_thread(made.start().end) == (ExitCode.RETURNED, "")
    data = made.data(key)
    deliver(made)
    made.put(key, data)
    made.start(environment={"AWS_BATCH_JOB_ATTEMPT": "2"})
    assert await asyncio.to_thread(made.end) == (ExitCode.RETURNED, "")
    assert made.outcome() is None


@pytest.mark.parametrize("fault", ["reset", "lost"])
async def test_uncollected_outcome_is_kept(attempt, proxy, fault):
    made = attempt(abs, -7)
    made.receipt(1, 8)  # other tasks of the bundle
    proxy.faults["s3 PUT outcomes"] += [fault]
    assert await asyncio.to_thread(made.start().end) == (ExitCode.RETURNED, "")
    assert value_of(made.outcome()) == 7


@pytest.mark.parametrize(
    ("deliver", "code"),
    [
        (_deliver_by_receipt, ExitCode.RETURNED),
        (_deliver_as_a_whole, ExitCode.BUNDLE_MISSING),
    ],
)
async def test_delivered_task_is_not_run_again(attempt, tmp_path, deliver, code):
    """A client collected the result, and the host was lost before the container's exit."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "go").touch()
    made = attempt(number_of_run, str(folder))
    assert await asyncio.to_thread(made.start().end) == (ExitCode.RETURNED, "")
    deliver(made)

    made.start(environment={"AWS_BATCH_JOB_ATTEMPT": "2"})
    assert (await asyncio.to_thread(made.end))[0] == code
    assert len(list(folder.iterdir())) == 2  # "go" is counted
    assert made.outcome() is None


async def test_forged_receipt_is_ignored(attempt):
    made = attempt(abs, -7)
    made.put(made.where.receipt_key(0), b"rubbish")
    made.receipt(0, number=1, key=b"x" * 32)
    made.receipt(1, number=2)
    made.start(environment={"AWS_BATCH_JOB_ATTEMPT": "2"})
    assert await asyncio.to_thread(made.end) == (ExitCode.RETURNED, "")
    assert value_of(made.outcome()) == 7
