"""farcall in a real account, from ``deploy`` to ``destroy``, in the order of this file.

``make test-aws`` runs it. What differs from the emulator is recorded in the report and fails no
test; on the emulator itself, a difference fails the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time

import pytest

from farcall import HostLostError, ImageError, JobCancelledError, JobTimeoutError, OutOfMemoryError
from tests.aws.account import BUSYBOX, STACK
from tests.aws.assumptions import ASSUMPTIONS
from tests.docs.pages import PAGES, blocks, run_installed

pytestmark = [pytest.mark.usefixtures("module_travels"), pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def _observations(request, opened):
    """Compare the emulator's observations with the table, which describes it."""
    yield
    if opened.emulator is None:
        return
    expected = [n for n, a in ASSUMPTIONS.items() if a.check == request.node.name]
    missing = {name: opened.observed.get(name, "") for name in expected}
    assert {n: v for n, v in missing.items() if not ASSUMPTIONS[n].fits(v)} == {}


def fail() -> None:
    raise ValueError("the suite's own")


def allocate() -> int:
    return len(bytes(range(256)) * (8 * 1024 * 1024))


def sleep(seconds: float) -> None:
    print("sleeping", flush=True)
    time.sleep(seconds)


def describe_itself(index: int) -> tuple[str, str]:
    if index == 0:
        raise ValueError("the first one fails")
    return os.environ["AWS_BATCH_JOB_ID"], os.environ.get("AWS_REGION", "absent")


def test_deploy_creates_stack(account):
    done = account.farcall("deploy", "--yes", "--name", STACK, "--max-vcpus", 8)

    assert done.returncode == 0, done.stderr
    account.load_options()
    (stack,) = account.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    account.observe("empty-region", stack["StackStatus"])


def test_second_deploy_changes_nothing(account):
    done = account.farcall("deploy", "--yes", "--name", STACK)

    unchanged = f"stack {STACK} is unchanged" in done.stdout
    account.observe("deploy-again", "unchanged" if unchanged else done.stdout)


def test_doctor_finds_no_failure(account):
    done = account.farcall("doctor", "--json")

    failed = [c for c in json.loads(done.stdout)["checks"] if c["verdict"] == "failed"]
    assert failed == []


def test_readme_script_prints_results(account, tmp_path):
    (block,) = (each for each in blocks(PAGES["README.md"]) if each.script == "first.py")
    script = tmp_path / "first.py"
    script.write_text(block.code)

    done = run_installed(sys.executable, script)

    account.observe("stock-image", done.stdout.replace("\n", " ").strip() or done.stderr)
    assert done.returncode == 0, done.stderr


def test_doctor_runs_its_jobs(account):
    done = account.farcall("doctor", "--run", "--json")

    found = json.loads(done.stdout)
    assert found["ok"], done.stdout
    account.requests += found["run"]["requests"]


async def test_new_job_is_described_and_listed(account):
    async with account.executor() as executor:
        job = await executor.submit(sleep, 0.1)
        account.observe("describe-new-job", f"described by request {tries(account, job)}")
        account.observe("list-new-job", f"listed by request {list_tries(account, job)}")
        await job.result()
    ended = account.job(job.id)
    seconds = (ended["startedAt"] - ended["createdAt"]) / 1000
    account.observe("warm-start", f"{seconds:.1f} s from submission to start")


def tries(account, job) -> int:
    return count(account, lambda: account.client("batch").describe_jobs(jobs=[job.id])["jobs"])


def list_tries(account, job) -> int:
    names = [{"name": "JOB_NAME", "values": [job.name]}]
    queue = account.options["queue"]
    listing = account.client("batch").list_jobs
    return count(account, lambda: listing(jobQueue=queue, filters=names)["jobSummaryList"])


def count(account, condition) -> int:
    results = []
    account.until(lambda: results.append(condition()) or results[-1])
    return len(results)


async def test_failing_function_is_not_retried(account):
    async with account.executor(retry_attempts=2) as executor:
        job = await executor.submit(fail)
        with pytest.raises(ValueError, match="the suite's own"):
            await job.result()
    ended = account.job(job.id)
    attempts = len(ended["attempts"])
    account.observe("last-rule", f"{attempts} attempt{'s' * (attempts > 1)}")
    actions = {rule["action"] for rule in ended["retryStrategy"]["evaluateOnExit"]}
    account.observe("lower-case-actions", ", ".join(sorted(actions)))
    account.observe("failed-reason", ended["statusReason"])


async def test_memory_beyond_limit_is_reported(account):
    async with account.executor() as executor:
        job = await executor.submit(allocate)
        error = await job.exception()
    container = account.job(job.id)["container"]
    reason = f"{container.get('exitCode', 'no exit code')}, {container.get('reason', '')}"
    account.observe("out-of-memory", reason)
    assert isinstance(error, OutOfMemoryError), error


async def test_time_limit_ends_job(account):
    with account.tuned(timeout_scale=0.05, stop_grace_s=1.0):
        async with account.executor(time_limit=60) as executor:
            job = await executor.submit(sleep, 600)
            error = await job.exception()
        account.observe("time-limit", account.job(job.id)["statusReason"])
    assert isinstance(error, JobTimeoutError), error


async def test_missing_image_is_reported(account):
    if account.emulator is not None:
        account.emulator.break_starts("CannotPullContainerError: manifest unknown")
    async with account.executor(image=f"{BUSYBOX}-missing") as executor:
        job = await executor.submit(sleep, 0)
        error = await job.exception()
    container = account.job(job.id)["container"]
    code = container.get("exitCode", "no exit code")
    account.observe("image-not-found", f"{container['reason'].partition(':')[0]}, {code}")
    assert isinstance(error, ImageError), error


async def test_terminated_instance_is_reported(account):
    async with account.executor() as executor:
        job = await executor.submit(sleep, 600)
        await running(account, job)
        account.lose_host(account.client("batch").describe_jobs(jobs=[job.id])["jobs"][0])
        error = await job.exception()
    ended = account.job(job.id)
    account.observe("host-lost", re.sub(r"i-[0-9a-f]+", "i-…", ended["statusReason"]))
    code = ended["container"].get("exitCode", "no exit code")
    account.observe("host-lost-exit-code", str(code))
    assert isinstance(error, HostLostError), error


async def running(account, job) -> None:
    """Wait until the function has printed its first line."""
    async with asyncio.timeout(account.patience_s):
        async for _ in job.logs(follow=True):
            return


async def test_array_names_its_failed_task(account):
    async with account.executor() as executor:
        sweep = executor.task(describe_itself).map(range(2), return_exceptions=True)
        error, (job_id, region) = await sweep
    assert isinstance(error, ValueError)
    (array,) = sweep.job_ids
    account.observe("array-reason", account.job(array).get("statusReason", ""))
    account.observe("array-task-id", job_id.replace(array, "JOB"))
    account.observe("region-variable", region)


async def test_cancelled_array_ends_all_tasks(account):
    async with account.executor() as executor:
        jobs = await asyncio.gather(*(executor.submit(sleep, 600) for _ in range(2)))
        for job in jobs:
            await running(account, job)
        batch = account.client("batch")
        (detail,) = batch.describe_jobs(jobs=[jobs[0].id])["jobs"]
        stream = "stream" if detail["container"].get("logStreamName") else "no stream"
        account.observe("log-stream", f"{stream}, {len(detail['attempts'])} attempts")
        with account.tuned(stop_grace_s=5.0):
            await asyncio.gather(*(job.cancel("tested by the suite") for job in jobs))
            errors = [await job.exception() for job in jobs]
            ended = [account.job(job.id) for job in jobs]
    account.observe("cancel", "; ".join(sorted({ending(each) for each in ended})))
    assert all(isinstance(error, JobCancelledError) for error in errors), errors


def ending(job) -> str:
    code = job["container"].get("exitCode", "no exit code")
    flag = "isTerminated" if job.get("isTerminated") else "not terminated"
    return f"{code}, {flag}, {job['statusReason'].rpartition(': ')[2]}"


async def test_log_has_output(account):
    async with account.executor() as executor:
        job = await executor.submit(sleep, 0)
        await job.result()
    began = time.monotonic()
    container = account.job(job.id)["container"]
    where = {
        "logGroupName": account.options["batch_job_log_group_name"],
        "logStreamName": container["logStreamName"],
    }
    logs = account.client("logs")
    account.until(lambda: lines(logs, where))
    account.observe("log-delay", f"{time.monotonic() - began:.1f} s after the result")
    done = account.farcall("logs", job.id)
    assert "sleeping" in done.stdout, done.stderr


def lines(logs, where) -> bool:
    events = logs.get_log_events(**where, startFromHead=True)["events"]
    return any("sleeping" in event["message"] for event in events)


def test_waiting_job_survives_deregistration(account):
    batch = account.client("batch")
    with account.tuned(delays={"RUNNABLE": 2.0}):
        job = submit(account, ["true"])
        batch.deregister_job_definition(jobDefinition=job["definition"])
        ended = account.job(job["jobId"])
    account.observe("deregistered-definition", ended["status"])


def test_long_overrides_are_accepted(account):
    empty = {"environment": [{"name": "LONG", "value": ""}]}
    size = 8000
    value = "x" * (size - len(json.dumps(empty, separators=(",", ":"))))
    overrides = {"environment": [{"name": "LONG", "value": value}]}

    job = account.job(submit(account, ["true"], containerOverrides=overrides)["jobId"])

    suffix = "" if job["status"] == "SUCCEEDED" else f": {job['statusReason']}"
    account.observe("overrides-limit", f"{job['status']} with {size} characters{suffix}")


def submit(account, command, **options):
    """Submit a command with a definition of its own."""
    batch = account.client("batch")
    role = account.options["batch_execution_role_name"]
    definition = batch.register_job_definition(
        jobDefinitionName=f"{STACK}-{time.time_ns()}",
        type="container",
        timeout={"attemptDurationSeconds": 600},
        containerProperties={
            "image": BUSYBOX,
            "command": command,
            "executionRoleArn": account.client("iam").get_role(RoleName=role)["Role"]["Arn"],
            "resourceRequirements": [
                {"type": "VCPU", "value": "1"},
                {"type": "MEMORY", "value": "64"},
            ],
            "logConfiguration": {
                "logDriver": "awslogs",
                "options": {"awslogs-group": account.options["batch_job_log_group_name"]},
            },
        },
    )["jobDefinitionArn"]
    queue = account.options["queue"]
    job = batch.submit_job(jobName=STACK, jobQueue=queue, jobDefinition=definition, **options)
    return {**job, "definition": definition}


def test_destroy_leaves_nothing(account):
    account.close()
    done = account.farcall("destroy", "--yes", "--empty-bucket", "--name", STACK)

    assert done.returncode == 0, done.stderr
    left = account.remains()
    account.observe("destroy", ", ".join(left) or "nothing")
