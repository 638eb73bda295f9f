"""Job references: the prefix of an ID, a name, or none.

Starts the local AWS emulator, because references are looked up in the queue.
"""

from __future__ import annotations

import json
import re
import secrets

import pytest

from farcall import BatchExecutor
from farcall.operations.finding import MOST_PAGES
from tests.support.proxy import Proxy


def named(stem, function):
    """Give a function a job name that no other test uses."""
    function.__name__ = f"{stem}_{secrets.token_hex(4)}x"
    return function


@pytest.fixture
async def jobs(executor: BatchExecutor):
    """Return a job name and two finished jobs with that name, the older one first."""
    say = named("say", lambda text: print(text) or text)
    found = []
    for text in ("older", "newer"):
        job = await executor.submit(say, text)
        await job.wait()
        found.append(job)
    return say.__name__, *found


async def test_name_or_id_prefix_finds_job(jobs, farcall_command, aws, executor):
    name, older, newer = jobs
    with Proxy(aws.endpoint_url) as proxy:
        for reference, job, is_named in (
            (name, newer, True),
            (name[:-1], newer, True),
            (older.id[:8], older, False),
            (older.name, older, True),
        ):
            proxy.counts.clear()
            done = await farcall_command("logs", reference, FARCALL_ENDPOINT_URL=proxy.url)
            assert done.returncode == 0
            assert done.stdout == ("newer\n" if job is newer else "older\n")
            # The result can arrive before the job finishes.
            told = re.escape(f"{reference}: job {job.id} ({job.name}), ")
            told += "(Running|Succeeded), submitted "
            assert re.match(told, done.stderr) if is_named else not done.stderr
            # The queue also has jobs of other tests.
            assert proxy.counts["batch listjobs"] <= (1 if is_named else MOST_PAGES + 1)

    done = await farcall_command("describe", older.id[:8], "--json")
    assert older.id == json.loads(done.stdout)["job"]["id"]
    assert (done.returncode, done.stderr) == (0, "")
    done = await farcall_command("result", name)
    assert (done.returncode, done.stdout) == (0, "'newer'\n")
    assert f"job {newer.id}" in done.stderr
    done = await farcall_command("wait", f"{name}-nothing", older.id[:8], name)
    assert done.returncode == 3
    assert [line.split()[0] for line in done.stdout.splitlines()] == [older.id, newer.id]
    assert f"'{name}-nothing' does not match a job" in done.stderr

    sweep = named("sweep", lambda value: value)
    values = await executor.task(sweep).map(range(3))
    assert values == [0, 1, 2]
    done = await farcall_command("list", sweep.__name__, "--json")
    assert [job["index"] for job in json.loads(done.stdout)] == [0, 1, 2]
    done = await farcall_command("describe", f"{sweep.__name__}:2", "--json")
    assert json.loads(done.stdout)["job"]["index"] == 2
