"""``farcall list`` and ``farcall describe``.

Starts the local AWS emulator, because the commands show real jobs in each state.
"""

import asyncio
import json
import re
import time

import boto3
import pytest

from tests.support import command_jobs, terminal
from tests.support.commands import FARCALL
from tests.support.patience import until_async

EVIL = "[red]evil[/] "
COLOURS = re.compile(r"\x1b\[[\d;]*m")


def fails(value):
    if value % 2:
        raise ValueError(f"{value} is odd \x1b[2J[bold]")
    return value


def sleep():
    time.sleep(600)  # until the test ends it


async def described(batch, job_id, *statuses):
    """Wait until a job has one of the statuses; return its description."""

    def look():
        (found,) = batch.describe_jobs(jobs=[job_id])["jobs"]
        return found if found["status"] in statuses else None

    return await until_async(look)


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


@pytest.fixture
async def workflow(make_executor, batch):
    """Job IDs by state: succeeded, failed, cancelled, running, and a failed array."""
    name = f"{EVIL}{time.monotonic()}"
    async with make_executor(workflow=name) as executor:
        returned = await executor.submit(fails, 2)
        failed = await executor.submit(fails, 3)
        array = await executor.task(fails).map(range(4), return_exceptions=True)
        assert [type(value) for value in array] == [int, ValueError] * 2
        cancelled = await executor.submit(sleep)
        await described(batch, cancelled.id, "RUNNING")
        await cancelled.cancel("\x1b[2J[bold]too dear[/]")
        running = await executor.submit(sleep)
        await described(batch, running.id, "RUNNING")
        for job in (returned, failed, cancelled):
            await described(batch, job.id, "SUCCEEDED", "FAILED")
        filters = [{"name": "JOB_NAME", "values": ["fails-*"]}]
        listed = batch.list_jobs(jobQueue=executor.settings.queue, filters=filters)
        (parent,) = [
            job["jobId"]
            for job in listed["jobSummaryList"]
            if "arrayProperties" in job
            and name == environment(batch, f"{job['jobId']}:0")["FARCALL_WORKFLOW"]
        ]
        await described(batch, parent, "FAILED")
        yield {
            "name": name,
            "SUCCEEDED": returned.id,
            "FAILED": failed.id,
            "array": parent,
            "CANCELLED": cancelled.id,
            "RUNNING": running.id,
        }
        await running.cancel()


def environment(batch, job_id):
    (job,) = batch.describe_jobs(jobs=[job_id])["jobs"]
    return {pair["name"]: pair["value"] for pair in job["container"]["environment"]}


async def test_jobs_are_listed_and_described(workflow, farcall_command, installed_command):
    ids = {key: value for key, value in workflow.items() if key != "name"}
    only = ("--workflow", workflow["name"])

    async def listed(*arguments):
        done = await farcall_command("list", *only, "--json", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    # --- list
    jobs = await listed()
    order = ["RUNNING", "CANCELLED", "array", "FAILED", "SUCCEEDED"]
    assert [job["id"] for job in jobs] == [ids[key] for key in order]
    states = {job["id"]: job["state"] for job in jobs}
    assert all(states[ids[key]] == key for key in ids if key != "array")
    assert {job["workflow"] for job in jobs} == {workflow["name"]}
    for arguments, expected in (
        (["--state", "failed"], ["array", "FAILED"]),
        (["--state", "Cancelled", "--state", "ACTIVE"], ["RUNNING", "CANCELLED"]),
        (["--state", "succeeded"], ["array", "SUCCEEDED"]),  # two array tasks succeeded
        (["--limit", "2"], ["RUNNING", "CANCELLED"]),
        (["--since", "2100-01-01"], []),
        (["--user", "alice"], []),
        (["--run", jobs[0]["run"]], order),
    ):
        assert [job["id"] for job in await listed(*arguments)] == [ids[k] for k in expected]
    used = {job["id"]: job["usage"] for job in await listed("--usage")}
    assert used[ids["FAILED"]]["peak_memory_bytes"] > 2**20
    assert used[ids["array"]] is used[ids["RUNNING"]] is None
    with_children = [job["id"] for job in await listed("--children", "--state", "failed")]
    assert with_children == [ids["array"], f"{ids['array']}:1", f"{ids['array']}:3", ids["FAILED"]]

    done = await farcall_command("list", *only)
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["JOB", "STATE", "SUBMITTED", "RAN", "TASK", "WORKFLOW", "NOTE"]
    assert [row.split()[0] for row in rows] == [ids[key] for key in order]
    assert "  fails[4]  " in rows[2]
    assert rows[2].endswith("2 succeeded, 2 failed; 2 x ValueError: ... is odd ^[[2J[bold]")
    assert "  fails(value=3)  " in rows[3]
    assert rows[3].endswith("ValueError: 3 is odd ^[[2J[bold]")
    assert "[red]evil[/]" in rows[0]
    assert "[2J[bold]too dear[/]" in rows[1]
    assert "5 jobs of " in done.stderr
    assert "--since 7d includes older jobs" in done.stderr

    shown = await asyncio.to_thread(terminal.run, [FARCALL, "list", *only])
    assert "\x1b[1;31mFailed" in shown.text
    lines = COLOURS.sub("", shown.text).splitlines()
    assert max(map(len, lines[:-2])) <= 80  # the footer may be longer
    for key in order:
        assert any(line.startswith(f"{ids[key][:8]}  ") for line in lines)
    elsewhere = ["--queue", "farcall-local"]  # ID prefixes are not resolved with --queue
    shown = await asyncio.to_thread(terminal.run, [FARCALL, "list", *only, *elsewhere])
    assert ids["RUNNING"] in shown.text

    only = (ids["array"],)
    children = await listed()
    assert [job["index"] for job in children] == [0, 1, 2, 3]
    assert {(job["parent"], job["function"]) for job in children} == {(ids["array"], "fails")}
    assert [job["state"] for job in children] == ["SUCCEEDED", "FAILED"] * 2
    assert [job["call"] for job in children] == [f"fails(value={n})" for n in range(4)]
    assert [job["error"] for job in children] == [
        None,
        "ValueError: 1 is odd ^[[2J[bold]",
        None,
        "ValueError: 3 is odd ^[[2J[bold]",
    ]
    assert [job["index"] for job in await listed("--grep", "3 is odd")] == [3]
    assert [job["index"] for job in await listed("--grep", r"value=[02]\)")] == [0, 2]

    # --- search
    only = ("--workflow", workflow["name"])
    for pattern, expected in (
        ("ValueError", ["array", "FAILED"]),
        (r"value=0\)", ["array"]),  # in the call of an array task
        ("too dear", ["CANCELLED"]),
        ("nothing like it", []),
    ):
        found = await listed("--grep", pattern)
        assert [job["id"] for job in found] == [ids[key] for key in expected]
    assert [job["id"] for job in await listed("--grep", "fails", "--limit", "1")] == [ids["array"]]
    done = await farcall_command("list", "--grep", "(")
    assert done.returncode == 2
    assert "'(' is not a valid regular expression" in done.stderr

    # --- describe
    price = {"FARCALL_VCPU_HOUR_PRICE": "0.04"}
    done = await farcall_command("describe", ids["FAILED"], **price)
    assert (done.returncode, done.stderr) == (0, "")
    for expected in (
        "Why           the function raised ValueError: 3 is odd",
        "To do         fix the error that the traceback shows",
        "Call          fails(value=3)",
        f"Job           {ids['FAILED']}",
        "Attempts      1 of 1 allowed",
        "exit code 1",
        "Requested     1 vCPU, 1024 MiB",
        "Cost          less than $0.01",
        "s CPU time",
        "Input         s3://farcall-local/farcall/v1/",
        "in fails",
        'raise ValueError(f"{value} is odd',  # the source line, which exists only locally
        "ValueError: 3 is odd",
    ):
        assert expected in done.stdout
    shown = await asyncio.to_thread(terminal.run, [FARCALL, "describe", ids["CANCELLED"]])
    plain = COLOURS.sub("", shown.text)
    assert "Why           the job was cancelled" in plain
    assert "Batch reason  farcall: " in plain

    said = json.loads((await farcall_command("describe", ids["array"], "--json")).stdout)
    assert said["job"]["counts"] == {"SUCCEEDED": 2, "FAILED": 2}
    assert said["explanation"]["message"] == "2 of 4 tasks failed"
    assert [c["job_id"] for c in said["explanation"]["children"]] == [
        f"{ids['array']}:1",
        f"{ids['array']}:3",
    ]
    (group,) = said["job"]["errors"]
    assert group == {
        "text": "ValueError: ... is odd ^[[2J[bold]",
        "count": 2,
        "example": 1,
        "call": "fails(value=1)",
    }
    assert "FARCALL_OUTCOME_KEY" not in json.dumps(said)
    done = await farcall_command("describe", ids["array"])
    example = f"(such as {ids['array']}:1, fails(value=1))"
    assert f"2 x ValueError: ... is odd ^[[2J[bold] {example}" in done.stdout


@pytest.fixture
async def command_workflow(session):
    """A workflow of two command jobs: one failed on two nodes, and one succeeded."""
    name = f"commands {time.monotonic()}"
    text = "echo \x1b[2J[bold]; exit 3"
    failed = await command_jobs.submit(session, command_jobs.shell(text, 2), workflow=name)
    await command_jobs.described(session, failed)
    plain = command_jobs.shell("true")
    done = await command_jobs.submit(session, plain, workflow=name, name="all-well")
    await command_jobs.described(session, done)
    return {"name": name, "failed": failed, "done": done}


async def test_command_jobs_show_their_nodes(command_workflow, farcall_command):
    failed, done = command_workflow["failed"], command_workflow["done"]
    said = await farcall_command("list", "--workflow", command_workflow["name"])
    _, *rows = said.stdout.splitlines()
    assert [row.split()[0] for row in rows] == [done, failed]
    assert "  $ all-well  " in rows[0]
    assert "  $ hello (2 nodes)  " in rows[1]
    assert rows[1].endswith("exit code 3")
    said = await farcall_command("list", "--workflow", command_workflow["name"], "--json")
    assert not said.stderr
    assert {(job["id"], job["kind"], job["node_count"]) for job in json.loads(said.stdout)} == {
        (done, "command", 0),
        (failed, "command", 2),
    }

    said = await farcall_command("list", failed)
    _, *rows = said.stdout.splitlines()
    assert [row.split()[0] for row in rows] == [f"{failed}#0", f"{failed}#1"]
    assert "  $ hello (node 0)  " in rows[0]
    said = await farcall_command(
        "list", "--workflow", command_workflow["name"], "--children", "--json"
    )
    parts = [done, failed, f"{failed}#0", f"{failed}#1"]
    assert [job["id"] for job in json.loads(said.stdout)] == parts

    said = await farcall_command("describe", failed)
    assert (said.returncode, said.stderr) == (0, "")
    for expected in (
        "$ hello  on 2 nodes  Failed",
        "Why           the command failed (exit code 3)",
        "Node 0        Failed, exit code 3, ran ",
        "Image         busybox:1",
        "Command       sh -c 'echo ^[[2J[bold]; exit 3'",
        "Last log lines",
        "  ^[[2J[bold]",
    ):
        assert expected in said.stdout
    assert "Bundle" not in said.stdout
    said = json.loads((await farcall_command("describe", failed, "--json")).stdout)
    assert [node["id"] for node in said["nodes"]] == [f"{failed}#0", f"{failed}#1"]
    assert (said["nodes"][0]["exit_code"], said["nodes"][0]["state"]) == (3, "FAILED")
    assert said["explanation"]["log"] == ["\x1b[2J[bold]"]


async def test_wrong_usage_or_queue_is_explained(farcall_command, aws):
    for arguments, text in (
        (["list", "--since", "yesterday"], "'yesterday' is not an age"),
        (["list", "--user", "me", "--all-users"], "cannot be used together"),
        (["list", "--state", "done"], "'done' is not one of"),
    ):
        done = await farcall_command(*arguments)
        assert done.returncode == 2
        assert text in done.stderr
    done = await farcall_command("list", "--queue", "no-such-queue")
    assert done.returncode == 2
    assert "which does not exist in us-east-1 (from FARCALL_REGION)" in done.stderr
    assert "its queues are farcall-local" in done.stderr
