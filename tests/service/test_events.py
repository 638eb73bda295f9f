"""Completion events: Batch tells EventBridge, a rule tells a queue, and the client reads it.

The rules and queues are made by the very commands of docs/events.md. Where an event must be what
told the client, Batch is made to say that every job still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import boto3
import pytest

import aws_cli
import farcall.local
from farcall import (
    BatchExecutor,
    JobCancelledError,
    JobError,
    OutOfMemoryError,
    ServiceError,
    SettingsError,
)
from iam import Enforced, policy, without
from patience import PATIENCE_S, until_async
from proxy import Proxy

ACCOUNT, REGION, JOB_QUEUE = "123456789012", "us-east-1", "farcall-local"
NAME = "farcall-events"

T = TypeVar("T")

SET_UP, _, TAKE_AWAY = aws_cli.commands("events.md")


def script(block: str, name: str) -> str:
    """Return commands of the page with the account's and our own names in them."""
    own = f"REGION={REGION}\nACCOUNT={ACCOUNT}\nJOB_QUEUE={JOB_QUEUE}\nNAME={name}\n"
    head = "REGION=eu-west-1\nACCOUNT=111122223333\nJOB_QUEUE=my-queue\nNAME=farcall-events\n"
    return own + block.removeprefix(head)


@pytest.fixture(scope="module")
def written(
    embedded: farcall.local.LocalAWS, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Where the page's commands, having set all up, have left their files."""
    assert script(SET_UP, NAME).count("REGION=") == 1
    folder = tmp_path_factory.mktemp("events")
    aws_cli.run(script(SET_UP, NAME), embedded.environment, folder)
    yield folder
    aws_cli.run(script(TAKE_AWAY, NAME), embedded.environment, folder)


@pytest.fixture
def documented(written: Path) -> str:
    """The name of the queue that was set up as the page says."""
    return NAME


@pytest.fixture
def queue(aws: farcall.local.LocalAWS) -> Iterator[str]:
    """The name of another queue, with a rule for every job and state."""
    name = f"events-{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        sqs, events = (stack.enter_context(closed(boto3.client(s))) for s in ("sqs", "events"))
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        events.put_rule(Name=name, EventPattern=json.dumps({"source": ["aws.batch"]}))
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
        events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])
        yield name
        events.remove_targets(Rule=name, Ids=["queue"])
        events.delete_rule(Name=name)
        with contextlib.suppress(sqs.exceptions.QueueDoesNotExist):
            sqs.delete_queue(QueueUrl=url)


@contextlib.contextmanager
def closed(client: Any) -> Iterator[Any]:
    yield client
    client.close()


def blind(proxy: Proxy) -> None:
    """Let Batch say of every job, whatever became of it, that it runs."""

    def forget(document: dict[str, Any]) -> None:
        for job in document["jobs"]:
            job.update(status="RUNNING", attempts=[])
            job.pop("statusReason", None)
            if "statusSummary" in job.get("arrayProperties", {}):
                job["arrayProperties"]["statusSummary"] = {}

    proxy.changes["describejobs"] = forget


async def soon(coming: Awaitable[T]) -> T:
    return await asyncio.wait_for(coming, PATIENCE_S)


def status(job_id: str) -> str:
    """Return what the embedded Batch says without a proxy before it."""
    with closed(boto3.client("batch")) as batch:
        found = batch.describe_jobs(jobs=[job_id])["jobs"]
    return str(found[0]["status"])


# --- tasks ------------------------------------------------------------------------------------


def die() -> None:
    """End the container before it can store an outcome."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(PATIENCE_S)


def die_if_odd(number: int) -> int:
    if number % 2:
        die()
    return number


def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.02)
    return "done"


# --- what an event is good for ----------------------------------------------------------------


@pytest.mark.parametrize(
    "spelled",
    ["{name}", "arn:aws:sqs:us-east-1:123456789012:{name}", "{url}/123456789012/{name}"],
    ids=["name", "arn", "url"],
)
async def test_a_death_is_told_by_an_event(
    proxy: Proxy, documented: str, make_executor: Callable[..., BatchExecutor], spelled: str
) -> None:
    """Batch says that the job runs; only the event knows better."""
    blind(proxy)
    queue = spelled.format(name=documented, url=proxy.url)
    async with make_executor(endpoint_url=proxy.url, event_queue=queue) as executor:
        job = await executor.submit(die)
        with pytest.raises(OutOfMemoryError, match="SIGKILL") as caught:
            await soon(job.result())
    assert caught.value.job_id == job.id
    assert caught.value.exit_code == 137


async def test_without_events_it_stays_unknown_until_batch_tells(
    proxy: Proxy, documented: str, make_executor: Callable[..., BatchExecutor]
) -> None:
    blind(proxy)
    async with make_executor(endpoint_url=proxy.url) as executor:
        job = await executor.submit(die)
        waiting = asyncio.ensure_future(job.result())
        await until_async(lambda: status(job.id) == "FAILED")
        looks = proxy.counts["batch describejobs"]
        await until_async(lambda: proxy.counts["batch describejobs"] > looks + 2)
        assert not waiting.done()
        assert not proxy.of("sqs")
        proxy.changes.clear()
        with pytest.raises(OutOfMemoryError):
            await soon(waiting)


async def test_children_of_an_array_are_told_of_one_by_one(
    proxy: Proxy, documented: str, make_executor: Callable[..., BatchExecutor]
) -> None:
    blind(proxy)
    async with make_executor(endpoint_url=proxy.url, event_queue=documented) as executor:
        sweep = executor.task(die_if_odd).map(range(6), return_exceptions=True)
        values: list[Any] = await soon(sweep)
    assert values[::2] == [0, 2, 4]
    assert [type(value) for value in values[1::2]] == [OutOfMemoryError] * 3
    (parent,) = sweep.job_ids
    assert [value.job_id for value in values[1::2]] == [f"{parent}:{index}" for index in (1, 3, 5)]


async def test_a_job_that_is_ended_in_the_queue_is_told_of(
    aws: farcall.local.LocalAWS,
    proxy: Proxy,
    documented: str,
    make_executor: Callable[..., BatchExecutor],
) -> None:
    blind(proxy)
    aws.configure(delays={"RUNNABLE": 600.0})
    try:
        async with make_executor(endpoint_url=proxy.url, event_queue=documented) as executor:
            job = await executor.submit(abs, -1)
            await job.cancel()
            with pytest.raises(JobCancelledError):
                await soon(job.result())
    finally:
        aws.configure(delays={})


async def test_who_ended_a_job_is_left_for_batch_to_say(
    proxy: Proxy, queue: str, make_executor: Callable[..., BatchExecutor]
) -> None:
    """AWS's events lack the mark of a terminated job, so this failure might be any."""
    async with make_executor(endpoint_url=proxy.url, event_queue=queue) as executor:
        job = await executor.submit(time.sleep, PATIENCE_S)
        waiting = asyncio.ensure_future(job.result())
        await until_async(lambda: status(job.id) == "RUNNING")
        with closed(boto3.client("batch")) as batch:
            batch.terminate_job(jobId=job.id, reason="no budget left")
        with pytest.raises(JobCancelledError, match="no budget left"):
            await soon(waiting)


# --- messages ---------------------------------------------------------------------------------


async def test_whatever_lies_in_the_queue_is_read_and_deleted(
    aws: farcall.local.LocalAWS,
    queue: str,
    make_executor: Callable[..., BatchExecutor],
    tmp_path: Path,
) -> None:
    """Garbage, other people's jobs, and states of ours told twice and in any order."""
    with closed(boto3.client("sqs")) as sqs, closed(boto3.client("batch")) as batch:
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]

        def send(*bodies: Any) -> None:
            for body in bodies:
                text = body if isinstance(body, str) else json.dumps(body)
                sqs.send_message(QueueUrl=url, MessageBody=text)

        def left() -> int:
            names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
            told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
            return sum(map(int, told.values()))

        def event(**detail: Any) -> dict[str, Any]:
            kind = {"source": "aws.batch", "detail-type": "Batch Job State Change"}
            return {**kind, "detail": {**described, **detail}}

        flag = tmp_path / "flag"
        async with make_executor(event_queue=queue) as executor:
            job = await executor.submit(wait_for, str(flag))
            waiting = asyncio.ensure_future(job.result())
            await until_async(lambda: status(job.id) == "RUNNING")
            (described,) = batch.describe_jobs(jobs=[job.id])["jobs"]
            del described["isCancelled"], described["isTerminated"]
            send("no JSON", "[]", "{}", {"source": "aws.batch", "detail": 3})
            send(event(jobId=""), event(status="LOST"), event(attempts=3), event(startedAt="now"))
            send(event(jobId=f"{job.id}:x"), event(jobId=f"{job.id}:7", status="FAILED"))
            send({**event(status="FAILED"), "source": "my.own"})
            send(event(jobId=str(uuid.uuid4()), status="FAILED"))
            send(event(status="FAILED", statusReason="anybody's words"))
            send(event(status="STARTING"), event(status="RUNNABLE"), *[event()] * 3)
            await until_async(lambda: left() == 0)
            assert not waiting.done()
            assert await job.status() == "RUNNING"
            flag.touch()
            assert await soon(waiting) == "done"


async def test_two_clients_on_one_queue_lose_nothing(
    queue: str, make_executor: Callable[..., BatchExecutor]
) -> None:
    """Each takes events of the other, and finds what it missed by looking."""

    async def client() -> list[Any]:
        async with make_executor(event_queue=queue) as executor:
            sweep = executor.task(die_if_odd).map(range(4), return_exceptions=True)
            return list(await soon(sweep))

    both = await asyncio.gather(
        *(asyncio.to_thread(lambda: asyncio.run(client())) for _ in range(2))
    )
    for values in both:
        assert values[::2] == [0, 2]
        assert [type(value) for value in values[1::2]] == [OutOfMemoryError] * 2


# --- a queue that fails -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("not-there", "event_queue is 'not-there', and there is no such queue in us-east-1"),
        ("arn:aws:sqs:us-east-1:123456789012:not-there", "there is no such queue"),
        ("https://sqs.us-east-1.amazonaws.com/123456789012/not-there", "there is no such queue"),
        ("arn:aws:sqs:eu-west-1:123456789012:q", "event_queue is .*the jobs are in us-east-1"),
    ],
    ids=["name", "arn", "url", "elsewhere"],
)
async def test_a_queue_that_is_not_there_is_refused_before_a_job_is_paid_for(
    proxy: Proxy, make_executor: Callable[..., BatchExecutor], queue: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        await make_executor(endpoint_url=proxy.url, event_queue=queue).submit(abs, -1)
    assert caught.value.option == "event_queue"
    assert not proxy.counts["batch submitjob"]


async def test_a_queue_that_vanishes_costs_one_warning(
    queue: str,
    make_executor: Callable[..., BatchExecutor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    flag = tmp_path / "flag"
    async with make_executor(event_queue=queue) as executor:
        job = await executor.submit(wait_for, str(flag))
        waiting = asyncio.ensure_future(job.result())
        with closed(boto3.client("sqs")) as sqs:
            sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=queue)["QueueUrl"])
        await until_async(lambda: bool(warnings()))
        dying = await executor.submit(die)
        flag.touch()
        assert await soon(waiting) == "done"
        with pytest.raises(OutOfMemoryError):
            await soon(dying.result())
    (warning,) = warnings()
    assert f"no events are read from event_queue '{queue}' for now" in warning
    assert "queue does not exist" in warning


# --- closing ----------------------------------------------------------------------------------


async def test_a_session_closes_while_sqs_holds_its_request(
    proxy: Proxy, queue: str, make_executor: Callable[..., BatchExecutor]
) -> None:
    """SQS would hold it for 20 seconds."""

    def held() -> int:
        answered = sum(n for name, n in proxy.answers.items() if name.startswith("sqs "))
        return sum(proxy.of("sqs").values()) - answered

    before = asyncio.all_tasks()
    async with make_executor(endpoint_url=proxy.url, event_queue=queue) as executor:
        with closed(boto3.client("events")) as events:
            events.disable_rule(Name=queue)
        assert await soon(executor.task(abs)(-1)) == 1
        await until_async(lambda: held() == 1)
    assert held() == 1
    assert asyncio.all_tasks() == before
    gc.collect()  # whatever was left open complains now


def test_ctrl_c_ends_the_reading(aws: farcall.local.LocalAWS, queue: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, time, farcall\n"
        f"executor = farcall.BatchExecutor(vcpu=1, memory=1, event_queue={queue!r})\n"
        "async def main():\n"
        "    async with executor:\n"
        "        job = await executor.submit(time.sleep, 600)\n"
        "        waiting = asyncio.ensure_future(job.result())\n"
        "        while await job.status() != 'RUNNING':\n"
        "            await asyncio.sleep(0.1)\n"
        "        print(job.id, flush=True)\n"
        "        await waiting\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", program],
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        job_id = process.stdout.readline().decode().strip()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert b"ending 1 unfinished task of 1 job" in complaints
    for word in (b"never retrieved", b"was destroyed", b"Unclosed", b"unclosed"):
        assert word not in complaints, complaints.decode()
    assert status(job_id) == "FAILED"


# --- permissions ------------------------------------------------------------------------------


async def test_the_documented_permissions_are_enough_and_none_is_too_many(
    written: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's policies, and that of the queue: the rule sends by nothing else."""
    with farcall.local.start(enforce_iam=True) as aws:
        account = Enforced(aws)
        attributes = json.loads((written / "attributes.json").read_text())
        account.root("sqs").create_queue(QueueName=NAME, Attributes=attributes)
        events, pattern = account.root("events"), (written / "pattern.json").read_text()
        events.put_rule(Name=NAME, EventPattern=pattern)
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{NAME}"
        events.put_targets(Rule=NAME, Targets=[{"Id": NAME, "Arn": arn}])
        for name, value in {**aws.environment, **account.keys}.items():
            monkeypatch.setenv(name, value)

        def allow(events: dict[str, Any]) -> None:
            client = policy("client")
            both = {**client, "Statement": client["Statement"] + events["Statement"]}
            account.set_policy("client", both)

        async def death(queue: str = NAME) -> None:
            with Proxy(aws.endpoint_url) as proxy:
                blind(proxy)
                options = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}
                async with BatchExecutor(
                    endpoint_url=proxy.url, event_queue=queue, **options
                ) as executor:
                    job = await executor.submit(die)
                    await soon(job.result())

        allowed = policy("events")
        allow(allowed)
        with pytest.raises(JobError):
            await death()
        assert not caplog.records

        for action in ("sqs:ReceiveMessage", "sqs:GetQueueUrl"):
            allow(without(allowed, action))
            words = f"event_queue is '{NAME}', and it cannot be read: .*{action} on resource"
            with pytest.raises(ServiceError, match=words) as caught:
                await death()
            assert "AccessDenied" in caught.value.code

        allow(without(allowed, "sqs:GetQueueUrl"))
        with pytest.raises(JobError):
            await death(f"{aws.endpoint_url}/{ACCOUNT}/{NAME}")

        allow(without(allowed, "sqs:DeleteMessage"))
        caplog.clear()
        with pytest.raises(JobError):
            await death()
        (record,) = caplog.records
        assert "sqs:DeleteMessage on resource" in record.getMessage()
