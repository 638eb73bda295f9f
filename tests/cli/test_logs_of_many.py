"""``farcall logs`` of arrays and workflows.

Starts the local AWS emulator, because lines of several tasks are merged.
"""

import asyncio
import json
import secrets
import sys
import time
from pathlib import Path

import pytest

from tests.cli.started import end, line_of, start
from tests.support import command_jobs
from tests.support.patience import until_async
from tests.support.proxy import Proxy


def talk(number):
    print(f"out {number}")
    print(f"err {number}", file=sys.stderr)


def print_and_hold(gate, number):
    print(f"begins {number}", flush=True)
    while not Path(gate).exists():
        time.sleep(0.02)
    print(f"ends {number}")


@pytest.fixture
def logs(farcall_command):
    async def run(*arguments, **environment):
        done = await farcall_command("logs", *arguments, **environment)
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()

    return run


@pytest.fixture
def workflow():
    return f"many-{secrets.token_hex(4)}"


@pytest.fixture
async def swept(make_executor, workflow):
    """The run name of a finished array of three tasks, whose output is kept."""
    async with make_executor(workflow=workflow, keep_artifacts=True) as executor:
        await executor.task(talk).map(range(3))
        yield await executor.run_name()


async def test_array_output_is_prefixed_and_ordered(swept, workflow, logs, aws):
    out = [f"talk[{n}] | out {n}" for n in range(3)]
    err = [f"talk[{n}] | err {n}" for n in range(3)]
    with Proxy(aws.endpoint_url) as proxy:
        told = await logs("--workflow", workflow, FARCALL_ENDPOINT_URL=proxy.url)
        assert told == (0, out, err)
        # One ListJobs and one DescribeJobs request per 100 jobs, and one for the array tasks.
        asked = proxy.of("batch")
        assert asked["describejobs"] <= asked["listjobs"] + 1
        assert asked.keys() == {"listjobs", "describejobs"}
    assert await logs("--run", swept, "--stdout", "--grep", "2$", "--tail", 1) == (0, out[2:], [])
    _, lines, _ = await logs("--run", swept, "--stdout", "--timestamps")
    assert [line[25:] for line in lines] == out
    _, lines, _ = await logs("--workflow", workflow, "--stdout", "--json")
    said = [json.loads(line) for line in lines]
    parent = said[0]["job"].partition(":")[0]
    assert [line["job"] for line in said] == [f"{parent}:{n}" for n in range(3)]
    assert [line["text"] for line in said] == [f"out {n}" for n in range(3)]

    quiet = [[f"{stream} {n}" for n in range(3)] for stream in ("out", "err")]
    assert await logs(parent, "-q") == (0, *quiet)
    assert await logs(f"{parent}:1") == (0, ["out 1"], ["err 1"])
    code, lines, errors = await logs(parent, "--attempt", 2)
    assert (code, lines, len(errors)) == (3, [], 3)
    assert errors[0].startswith("talk[0] | farcall: job ")


def fail_silently(number):
    return 1 // number


async def test_failed_task_ends_with_its_traceback(make_executor, workflow, logs):
    async with make_executor(workflow=workflow, retry_attempts=1) as executor:
        sweep = executor.task(fail_silently).map([1, 0])
        await asyncio.gather(sweep, return_exceptions=True)
        (array,) = sweep.job_ids
    code, out, err = await logs(array)
    assert (code, out, err[0]) == (0, [], "fail_silently[1] | Traceback (most recent call last):")
    assert err[-1].startswith("fail_silently[1] | ZeroDivisionError: ")
    assert (await logs(array, "--stdout"))[2] == []


async def test_job_without_output_is_reported(executor, logs):
    job = await executor.submit(fail_silently, 1)
    await job.wait()
    assert await logs(job.id) == (0, [], ["farcall: the job has no output"])


async def test_workflow_lines_have_distinct_prefixes(
    make_executor, workflow, session, logs, tmp_path
):
    async with make_executor(workflow=workflow, keep_artifacts=True) as executor:
        first = await executor.submit(talk, 1)
        await first.wait()
        second = await executor.submit(talk, 2)
        await second.wait()
        # Node 1 is stopped as soon as node 0 has ended.
        both = " && ".join(f"[ -e {tmp_path}/{n} ]" for n in range(2))
        text = f"i=$AWS_BATCH_JOB_NODE_INDEX; echo from $i; touch {tmp_path}/$i; until {both}"
        gang = command_jobs.shell(f"{text}; do sleep 0.05; done", 2)
        nodes = await command_jobs.submit(session, gang, workflow=workflow, name="gang")
        await command_jobs.described(session, nodes)
        await command_jobs.described(session, f"{nodes}#1")
    code, out, err = await logs("--workflow", workflow)
    assert code == 0
    assert out[:2] == [f"talk {job.id[:8]} | out {n}" for n, job in enumerate((first, second), 1)]
    assert sorted(out[2:]) == [f"{'gang':13}#{n} | from {n}" for n in range(2)]
    assert err == [line.replace("out", "err") for line in out[:2]]


async def values_of(sweep):
    return await sweep


async def test_running_array_is_followed(executor, tmp_path):
    gate = tmp_path / "gate"
    sweep = executor.task(print_and_hold).starmap([(str(gate), n) for n in range(2)])
    swept = asyncio.ensure_future(values_of(sweep))
    (array,) = await until_async(lambda: sweep.job_ids)
    started = start("logs", "-f", array)
    begun = {await line_of(started) for _ in range(2)}
    assert begun == {f"print_and_hold[{n}] | begins {n}\n" for n in range(2)}
    gate.touch()
    code, out, err = await end(started)
    ends = {line for line in out.splitlines() if "farcall: the task took" not in line}
    assert ends == {f"print_and_hold[{n}] | ends {n}" for n in range(2)}
    assert (code, err) == (0, "")
    assert await swept == [None, None]
