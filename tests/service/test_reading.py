"""Lines of job output, live and afterward.

Starts the local AWS emulator, because lines come from S3 while a job runs and from CloudWatch
later.
"""

import sys
import time
from pathlib import Path

from farcall.engine.delivered import Usage
from farcall.engine.session import session_for

MANY = 3000


async def read(executor, job_id, **options):
    """Return the lines of a job."""
    session = await session_for(executor.settings)
    return [line async for batch in session.logs.lines(job_id, **options) for line in batch]


def texts(lines, *streams):
    return [line.text for line in lines if not streams or line.stream in streams]


def talk(go, lines=MANY):
    """A task that waits for a file, and prints most of its output right before its end."""
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


# --- followed -----------------------------------------------------------------------------------


async def test_last_lines_are_not_lost(executor, tmp_path):
    job = await executor.submit(talk, str(tmp_path / "go"))
    session = await session_for(executor.settings)
    found = []
    async for batch in session.logs.lines(job.id, follow=True):
        found += batch
        (tmp_path / "go").touch()  # after the first line

    assert texts(found, "stdout") == ["first", *(f"out {n}" for n in range(MANY)), "no end"]
    assert texts(found, "stderr") == [f"err {n}" for n in range(MANY)]
    assert {line.attempt for line in found} == {1}
    assert found[0].at <= found[-1].at


async def test_collected_job_is_followed_in_cloudwatch(executor, tmp_path):
    """Another client collects the result, which deletes the job's objects."""
    job = await executor.submit(count, str(tmp_path / "go"))
    session = await session_for(executor.settings)
    found = []
    async for batch in session.logs.lines(job.id, follow=True):
        found += batch
        if not (tmp_path / "go").exists():
            (tmp_path / "go").touch()
            await executor.attach(job.id).result()
            await session.stores.of(executor.settings.s3_bucket_name).flush()

    assert texts(found)[:-1] == ["first", *map(str, range(500))]
    assert Usage.logged(texts(found)) is not None
    assert [line.stream for line in found] == ["stdout", *["log"] * 501]
