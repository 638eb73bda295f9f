"""What jobs write, read in lines: while they run, afterwards, and where S3 does not have it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import boto3
import pytest

from farcall import JobCancelledError, JobLostError
from farcall.engine.logs import reader
from farcall.engine.session import session_for
from farcall.model.errors import FarcallError, UnknownError
from tests.support.timing import STREAM_S

MANY = 3000


@pytest.fixture
def _stored_as_on_aws(embedded):
    """Two seconds after it was written."""
    embedded.configure(stream_s=None)
    yield
    embedded.configure(stream_s=STREAM_S)


async def read(executor, job_id, **options):
    """Return the lines of a job."""
    session = await session_for(executor.settings)
    return [line async for batch in reader.lines(session, job_id, **options) for line in batch]


def texts(lines, *streams):
    return [line.text for line in lines if not streams or line.stream in streams]


def talk(go, lines=MANY):
    """A task that waits to be let go, and writes most of what it writes in its last moment."""
    print("first", flush=True)
    while not Path(go).exists():
        time.sleep(0.02)
    for number in range(lines):
        print(f"out {number}")
        print(f"err {number}", file=sys.stderr)
    print("no end", end="")


def count(go):
    print("first", flush=True)
    while not Path(go).exists():
        time.sleep(0.02)
    for number in range(500):
        print(number)


def stubborn():
    print("attempt", os.environ["AWS_BATCH_JOB_ATTEMPT"], flush=True)
    if os.environ["AWS_BATCH_JOB_ATTEMPT"] == "1":
        raise LookupError("on purpose")


def die_with_the_container(go):
    """Ends the supervisor, which then stores nothing more."""
    print("stored", flush=True)
    while not Path(go).exists():
        time.sleep(0.02)
    print("last words", flush=True)
    print("stored", flush=True)  # once more: the same text is another line
    time.sleep(0.3)  # in which they are passed on
    os.kill(os.getppid(), signal.SIGKILL)


def draw(go):
    """Two bars, as tqdm writes them; the first ends, and the second wipes itself."""
    for number in range(100):
        sys.stderr.write(f"\r{number + 1}%|{'#' * number}|")
        sys.stderr.flush()
    while not Path(go).exists():
        time.sleep(0.02)
    sys.stderr.write("\r100%|done|\n\r 50%")
    print("returned\r", flush=True)
    sys.stderr.write("\r    \r")
    sys.stderr.flush()


def crash():
    print("before", flush=True)
    sys.stdout.write("in the middle of a li")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)


# --- followed -----------------------------------------------------------------------------------


async def test_what_is_written_right_before_the_end_is_not_lost(executor, tmp_path):
    job = await executor.submit(talk, str(tmp_path / "go"))
    session = await session_for(executor.settings)
    found = []
    async for batch in reader.lines(session, job.id, follow=True):
        found += batch
        (tmp_path / "go").touch()  # once the first line was seen

    assert texts(found, "stdout") == ["first", *(f"out {n}" for n in range(MANY)), "no end"]
    assert texts(found, "stderr") == [f"err {n}" for n in range(MANY)]
    assert {line.attempt for line in found} == {1}
    assert found[0].at <= found[-1].at


async def test_a_progress_bar_is_seen_while_it_runs_and_kept_as_it_is_at_last(executor, tmp_path):
    job = await executor.submit(draw, str(tmp_path / "go"))
    session = await session_for(executor.settings)
    found = []
    async for batch in reader.lines(session, job.id, follow=True):
        found += batch
        if any(line.text.startswith("100%") for line in found):
            (tmp_path / "go").touch()

    states = [line for line in found if line.goes_on]
    assert f"100%|{'#' * 99}|" in texts(states, "stderr")
    assert len(states) < 100
    lines = [line for line in found if not line.goes_on]
    assert texts(lines, "stderr") == ["100%|done|"]
    assert texts(lines, "stdout") == ["returned"]
    assert texts(await read(executor, job.id), "stderr") == ["100%|done|"]
    assert [line async for line in job.logs(stream="stderr")] == ["100%|done|"]
    assert (await job.stderr()).count("\r") == 104  # not a byte is lost


async def test_each_attempt_is_followed_in_its_turn(executor, tmp_path):
    patient = executor.with_options(retry_attempts=2, retry_on="failure")
    job = await patient.submit(stubborn)
    followed = await read(executor, job.id, follow=True, streams=["stdout"])

    assert [line[:3] for line in followed] == [
        ("attempt 1", "stdout", 1),
        ("attempt 2", "stdout", 2),
    ]
    assert await read(executor, job.id, streams=["stdout"]) == followed
    assert await read(executor, job.id, attempt=1, streams=["stdout"]) == followed[:1]
    assert await read(executor, job.id, tail=1, streams=["stdout"]) == followed[1:]
    assert texts(await read(executor, job.id, tail=2, streams=["stdout"])) == texts(followed)
    with pytest.raises(FarcallError, match="attempt is 3, and job .* has had 2 attempts"):
        await read(executor, job.id, attempt=3)


async def test_a_job_that_is_cancelled_while_it_is_followed(executor, tmp_path):
    job = await executor.submit(talk, str(tmp_path / "never"))
    session = await session_for(executor.settings)
    found = []
    async for batch in reader.lines(session, job.id, follow=True):
        found += batch
        if len(found) == 1:
            await job.cancel()

    assert texts(found, "stdout") == ["first"]
    with pytest.raises(JobCancelledError):
        await job.result()


async def test_a_job_whose_result_another_client_takes_is_followed_in_cloudwatch(
    executor, tmp_path
):
    """Once it was let go, nothing is read before its objects are gone."""
    job = await executor.submit(count, str(tmp_path / "go"))
    session = await session_for(executor.settings)
    found = []
    async for batch in reader.lines(session, job.id, follow=True):
        found += batch
        if not (tmp_path / "go").exists():
            (tmp_path / "go").touch()
            await executor.attach(job.id).result()
            await session.stores.of(executor.settings.s3_bucket_name).flush()

    assert texts(found) == ["first", *map(str, range(500))]
    assert [line.stream for line in found] == ["stdout", *["log"] * 500]


async def test_a_job_whose_result_is_waited_for_beside_is_followed_to_its_last_line(
    executor, tmp_path
):
    """This process itself deletes what it follows, and keeps what it took."""
    (tmp_path / "go").touch()
    job = await executor.submit(talk, str(tmp_path / "go"))

    async def follow(stream):
        return [line async for line in job.logs(follow=True, stream=stream)]

    out, err, _ = await asyncio.gather(follow("stdout"), follow("stderr"), job.result())
    assert out == ["first", *(f"out {n}" for n in range(MANY)), "no end"]
    assert err == [f"err {n}" for n in range(MANY)]


@pytest.mark.usefixtures("_stored_as_on_aws")
async def test_cloudwatch_has_what_a_killed_container_did_not_store(executor, tmp_path):
    job = await executor.submit(die_with_the_container, str(tmp_path / "go"))
    session = await session_for(executor.settings)
    followed = []
    async for batch in reader.lines(session, job.id, follow=True):
        followed += batch
        (tmp_path / "go").touch()

    assert [line[:3] for line in followed] == [
        ("stored", "stdout", 1),
        ("last words", "log", 1),
        ("stored", "log", 1),
    ]
    assert await read(executor, job.id) == followed
    assert texts(await read(executor, job.id, tail=2)) == ["last words", "stored"]


# --- afterwards ---------------------------------------------------------------------------------


async def test_a_crash_leaves_the_line_it_was_in(executor):
    job = await executor.submit(crash)
    found = await read(executor, job.id, follow=True)

    assert texts(found, "stdout") == ["before", "in the middle of a li"]
    assert any("Segmentation fault" in text for text in texts(found, "stderr"))


async def test_more_than_travels_in_an_outcome_is_read_and_its_end_alone(executor):
    def work():
        for number in range(40_000):
            print(f"{number:099d}")
        print("to stderr", file=sys.stderr)

    job = await executor.submit(work)
    found = await read(executor, job.id, follow=True)
    assert texts(found, "stdout") == [f"{n:099d}" for n in range(40_000)]

    end = await read(executor, job.id, tail=3, streams=["stdout"])
    assert texts(end) == [f"{n:099d}" for n in range(39_997, 40_000)]
    assert await read(executor, job.id, since=found[-1].at) == [
        line for line in found if line.at >= found[-1].at
    ]


async def test_what_was_delivered_and_deleted_is_in_cloudwatch(executor):
    job = await executor.submit(print, "early\n\nlate")
    await job.result()
    session = await session_for(executor.settings)
    await session.stores.of(executor.settings.s3_bucket_name).flush()

    found = await read(executor, job.id)
    assert [line[:3] for line in found] == [("early", "log", 1), ("late", "log", 1)]
    assert [line async for line in job.logs()] == ["early", "", "late"]  # it was delivered here


async def test_it_is_said_that_output_may_be_missing(executor):
    job = await executor.submit(print, "gone")
    await job.result()
    session = await session_for(executor.settings)
    await session.stores.of(executor.settings.s3_bucket_name).flush()
    detail = await job.detail()
    boto3.client("logs", region_name="us-east-1").delete_log_stream(
        logGroupName=detail.log_group, logStreamName=detail.log_stream
    )

    (line,) = await read(executor, job.id)
    assert line.text == (
        "[farcall: attempt 1: what it wrote last was not stored, and there is no CloudWatch log]"
    )


async def test_a_child_of_an_array_is_read_and_the_array_is_not(executor):
    jobs = [job async for job in _children(executor)]
    assert texts(await read(executor, jobs[1].id, follow=True)) == ["1"]

    parent = jobs[0].id.partition(":")[0]
    with pytest.raises(FarcallError, match=f"is an array of 2; name one of .* {parent}:0 to"):
        await read(executor, parent)


async def _children(executor):
    patient = executor.with_options(linger_s=0.5)
    for job in await asyncio.gather(*(patient.submit(print, n) for n in range(2))):
        yield job


async def test_jobs_that_are_unknown_or_not_farcalls(executor):
    with pytest.raises(JobLostError, match="Batch does not know job"):
        await read(executor, "00000000-0000-0000-0000-000000000000")
    batch = boto3.client("batch", region_name="us-east-1")
    known = await (await executor.submit(print)).detail()
    foreign = batch.submit_job(
        jobName="foreign", jobQueue=known.queue, jobDefinition=known.definition
    )
    with pytest.raises(UnknownError, match="was not submitted by farcall"):
        await read(executor, foreign["jobId"])
