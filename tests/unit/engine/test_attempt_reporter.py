"""Reports of failed attempts that are retried, and their API requests."""

import asyncio

import pytest

from farcall.backends.batch.describe import BatchJob
from farcall.engine import attempt_reporter
from farcall.model import errors
from farcall.model.jobs import Attempt, JobStatus
from farcall.model.submission import Submission
from farcall_runtime import envelope
from farcall_runtime.contract import CallStatus, ExitCode, Location, OutcomeStatus
from tests.unit.tracking import HOST_LOST, ROOT, Inbox

EXITED = "Essential container in task exited"
KEY = b"key"  # signs the submissions of `tests.unit.tracking`


def raised(kind="ValueError", message="no such file"):
    chain = [{"type": kind, "message": message, "relation": None, "part": None}]
    return {"status": CallStatus.RAISED, "chain": chain, "traceback": ""}


def stored(job_id, index, number, key=KEY, **meta):
    """Return the key and bytes that a container stored for an attempt."""
    where = Location("bucket", ROOT, f"bundle-of-{job_id}")
    name = where.attempt_key(index, number)
    meta = {"status": OutcomeStatus.DONE, "results": [raised()], "usage": {}, **meta}
    return name, bytearray(b"".join(envelope.seal_outcome(key, name, meta, b"", b"", [])))


def tried(*ends):
    """Return ended attempts as DescribeJobs lists them."""
    return [
        {"statusReason": reason, "container": {} if code is None else {"exitCode": code}}
        for reason, code in ends
    ]


def again(allowed=3):
    return {"retryStrategy": {"attempts": allowed}}


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


# --- plain jobs -------------------------------------------------------------------------------


async def test_failed_attempt_is_reported_with_error(world, caplog):
    world.jobs.set("j", "RUNNING", **again())
    world.watch("j")
    await asyncio.sleep(5)
    assert lines(caplog) == []
    name, data = stored("j", 0, 1)
    world.inbox.objects[name] = data
    world.jobs.set("j", "RUNNABLE", attempts=tried((EXITED, 1)), **again())
    await asyncio.sleep(10)
    expected_line = "job j (n): attempt 1 of 3 failed and is retried: ValueError: no such file"
    assert lines(caplog) == [expected_line]
    world.jobs.set("j", "RUNNING", attempts=tried((EXITED, 1), (HOST_LOST, None)), **again())
    await asyncio.sleep(60)
    assert len(lines(caplog)) == 2
    assert lines(caplog)[1] == (
        "job j (n): attempt 2 of 3 failed and is retried: HostLostError: the job's "
        f"instance was terminated, Batch reports {HOST_LOST!r}"
    )


@pytest.mark.parametrize("flag", ["isTerminated", "isCancelled"])
async def test_cancelled_job_reports_no_retry(flag, world, caplog):
    world.jobs.set("j", "RUNNING", attempts=tried((EXITED, 143)), **again(), **{flag: True})
    world.watch("j")
    await asyncio.sleep(60)
    assert lines(caplog) == []


async def test_last_attempt_is_not_reported(world, caplog):
    world.jobs.set("j", "FAILED", EXITED, attempts=tried((EXITED, 1), (EXITED, 1)), **again(2))
    world.watch("j")
    await world.until(1)
    assert lines(caplog) == []


async def test_failed_listing_is_not_reported(world, caplog):
    world.jobs.set("j", "RUNNABLE", attempts=tried((EXITED, 1)), **again())
    world.inbox.failures[f"{ROOT}/attempts/bundle-of-j/0/"] = errors.ServiceError("refused")
    world.watch("j")
    await asyncio.sleep(8)
    assert (lines(caplog), world.notified) == ([], [])
    world.store("j")
    await world.until(1)


# --- array tasks ------------------------------------------------------------------------------


async def test_failed_array_attempt_comes_from_bucket(world, caplog):
    world.jobs.set("a", "PENDING", summary={"RUNNING": 3}, **again())
    world.jobs.set("a:1", "RUNNABLE", attempts=tried((EXITED, 1)), **again())
    world.watch("a", 3)
    await asyncio.sleep(5)
    name, data = stored("a", 1, 1)
    world.inbox.objects[name] = data
    await asyncio.sleep(30)
    expected_line = "job a:1 (n): attempt 1 of 3 failed and is retried: ValueError: no such"
    assert [line[: len(expected_line)] for line in lines(caplog)] == [expected_line]
    asked = [ids for ids in world.jobs.asked("describe") if "a:1" in ids]
    assert asked == [["a:1"]]


async def test_unlisted_array_attempt_is_reported_later(world, caplog):
    """The container has stored its outcome, and its process is about to exit."""
    world.jobs.set("a", "PENDING", summary={"RUNNING": 2}, **again())
    world.jobs.set("a:0", "RUNNING", **again())
    name, data = stored("a", 0, 1)
    world.inbox.objects[name] = data
    world.watch("a", 2)
    await asyncio.sleep(20)
    assert lines(caplog) == []
    world.jobs.set("a:0", "RUNNABLE", attempts=tried((EXITED, 1)), **again())
    await asyncio.sleep(30)
    assert len(lines(caplog)) == 1


async def test_single_attempt_jobs_list_no_objects(world):
    world.jobs.set("a", "PENDING", summary={"RUNNING": 2}, **again(1))
    world.watch("a", 2)
    await asyncio.sleep(60)
    assert world.inbox.listed("keys") == []


async def test_bucket_listing_follows_batch_poll_rate(world):
    world.jobs.set("a", "PENDING", summary={"RUNNING": 10}, **again())
    world.watch("a", 10)
    await asyncio.sleep(600)
    assert 10 < len(world.inbox.listed("keys")) <= len(world.jobs.asked("describe"))


async def test_mass_failures_give_few_lines(world, caplog):
    size = 10_000
    world.jobs.set("a", "PENDING", summary={"RUNNING": size}, **again())
    world.watch("a", size)
    await asyncio.sleep(5)
    for number in (1, 2):
        for index in range(size):
            name, data = stored("a", index, number)
            world.inbox.objects[name] = data
            ends = tried(*[(EXITED, 1)] * number)
            world.jobs.set(f"a:{index}", "RUNNABLE", attempts=ends, **again())
        await asyncio.sleep(150)
    reported = lines(caplog)
    assert len(reported) <= 2 * 6
    counts = [int(line.split()[0]) for line in reported if "more attempts" in line]
    single = [line for line in reported if "is retried" in line]
    assert len(single) + sum(counts) == 2 * size
    assert len(world.jobs.asked("describe")) < 200
    # one page of 1000 keys for each second
    assert len(world.inbox.listed("keys")) <= 305 / 11 + 10


async def test_cancelled_array_tasks_report_no_retry(world, caplog):
    world.jobs.set("a", "PENDING", summary={"RUNNING": 100}, isTerminated=True, **again())
    for index in range(100):
        name, data = stored("a", index, 1, status=OutcomeStatus.TERMINATED)
        world.inbox.objects[name] = data
        world.jobs.set(f"a:{index}", "RUNNING", isTerminated=True, **again())
    world.watch("a", 100)
    await asyncio.sleep(300)
    assert lines(caplog) == []


async def test_foreign_objects_are_ignored(world, caplog):
    world.jobs.set("a", "PENDING", summary={"RUNNING": 2}, **again())
    prefix = f"{ROOT}/attempts/bundle-of-a/"
    for name in ("x/1", "1/x", "7/1", "0/1/2", "1", ""):
        world.inbox.objects[f"{prefix}{name}"] = b""
    world.watch("a", 2)
    await asyncio.sleep(60)
    assert lines(caplog) == []
    assert {job_id for ids in world.jobs.asked("describe") for job_id in ids} == {"a"}


async def test_closing_counts_unreported_attempts(world, caplog):
    for number in range(8):
        world.jobs.set(f"j{number}", "RUNNABLE", attempts=tried((HOST_LOST, None)), **again())
        world.watch(f"j{number}")
    await asyncio.sleep(10)
    assert len(lines(caplog)) == 5
    await world.tracker.close()
    (last,) = lines(caplog)[5:]
    assert last.startswith("3 more attempts failed and were retried; ")


# --- descriptions of attempts -----------------------------------------------------------------


def submission():
    return Submission("j", "n", Location("bucket", ROOT, "bundle-of-j"), KEY, 1)


async def test_earlier_attempts_are_explained(clock):
    """The explanation comes from the stored result or from Batch."""
    bucket = Inbox()
    bucket.objects = dict([stored("j", 0, 1), stored("j", 0, 3, key=b"another")])
    detail = BatchJob("j", "n", JobStatus.FAILED, tried=(Attempt(), Attempt(HOST_LOST)))
    first, second, third, fourth = await attempt_reporter.explain(
        bucket, submission(), 0, detail, [1, 2, 3, 4]
    )
    assert first == "ValueError: no such file"
    assert second.startswith("HostLostError: the job's instance was terminated")
    assert third.startswith("its stored result is not what the job wrote")
    assert fourth == "no stored result"


async def test_oversized_attempt_is_explained_by_batch(clock):
    bucket = Inbox()
    name, data = stored("j", 0, 1)
    bucket.objects = {name: data.ljust(1024 * 1024 + 1)}
    detail = BatchJob("j", "n", JobStatus.FAILED, tried=(Attempt(EXITED, exit_code=71),))
    (line,) = await attempt_reporter.explain(bucket, submission(), 0, detail, [1])
    assert line.startswith("ChildKilledError: ")


@pytest.mark.parametrize(
    ("expected", "meta"),
    [
        ("KeyError: 'a'", {"results": [raised("KeyError", "'a'")]}),
        ("lab.OddError", {"results": [raised("lab.OddError", "")]}),
        ("ValueError: first", {"results": [raised(message="first\nsecond")]}),
        (
            "ValueError: second call",
            {"results": [{"status": CallStatus.RETURNED}, raised(message="second call")]},
        ),
        (
            "ChildKilledError: the task's process was killed by SIGSEGV",
            {"status": OutcomeStatus.KILLED, "child_status": -11},
        ),
        (
            "OutOfMemoryError: the task ran out of memory",
            {"status": OutcomeStatus.OUT_OF_MEMORY, "child_status": -9},
        ),
        (
            "OutcomeMissingError: the job could not reach the bucket (no route)",
            {
                "status": OutcomeStatus.REFUSED,
                "code": ExitCode.STORAGE_UNREACHABLE,
                "detail": "no route",
            },
        ),
        (
            "HostLostError: the job's instance was terminated",
            {"status": OutcomeStatus.TERMINATED},
        ),
    ],
)
def test_attempt_is_described_in_one_line(expected, meta):
    meta = {"status": OutcomeStatus.DONE, "child_status": 0, "usage": {}, "results": [], **meta}
    line = attempt_reporter.of_attempt(meta, BatchJob("j", "n", JobStatus.FAILED, HOST_LOST))
    assert line.startswith(expected)
    assert len(line.splitlines()) == 1


def test_line_is_printable_and_short():
    text = "\x1b[2J" + "x" * 5000
    line = attempt_reporter.of_attempt({"status": "done", "results": [raised(message=text)]}, None)
    assert line.isprintable()
    assert len(line) < 400
