"""Reading completion events: what a message says, and the loop that reads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from types import SimpleNamespace

import pytest

from farcall.aws import clients
from farcall.backends.batch import events
from farcall.backends.batch.describe import from_describe
from farcall.backends.batch.endings import verdict
from farcall.backends.batch.events import EventQueues, read_event
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.jobs import JobStatus
from unit.fakes import Client, refusal

URL = "https://sqs.eu-west-1.amazonaws.com/111122223333/q"
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def body(*, source="aws.batch", kind="Batch Job State Change", **detail):
    job = {"jobId": "j", "jobName": "n", "status": "RUNNING", **detail}
    return json.dumps({"source": source, "detail-type": kind, "detail": job})


# --- messages ---------------------------------------------------------------------------------


def test_an_event_says_what_describe_jobs_says():
    job = {
        "jobId": "j:3",
        "jobName": "n",
        "status": "FAILED",
        "statusReason": "Essential container in task exited",
        "container": {"exitCode": 1, "logStreamName": "d/default/t"},
        "attempts": [{"container": {"exitCode": 1}}],
        "startedAt": 1694426212249,
        "tags": {"resourceArn": "arn"},
        "eksAttempts": [],
    }
    assert read_event(body(**job)) == from_describe(job)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[" * 100_000,
        "null",
        "[]",
        "{}",
        '{"source": "aws.batch", "detail-type": "Batch Job State Change"}',
        body(source="my.own"),
        body(kind="Batch Job Queue Blocked"),
        body(jobId=""),
        body(jobId=3),
        body(jobId=None),
        body(jobId="j:"),
        body(jobId="j:x"),
        body(status="LOST"),
        body(status=None),
        body(attempts=3),
        body(attempts=[3]),
        body(attempts=[{"statusReason": 3}]),
        body(attempts=[{"container": {"exitCode": "1"}}]),
        body(retryStrategy={"attempts": "3"}),
        body(retryStrategy=[1]),
        body(container="x"),
        body(createdAt="yesterday"),
        body(createdAt=1e300),
        body(arrayProperties=[1]),
        body(arrayProperties={"statusSummary": [1]}),
        body(statusReason=3),
        body(container={"reason": ["x"]}),
    ],
)
def test_what_is_no_event_of_a_job_says_nothing(text):
    assert read_event(text) is None


def test_no_member_is_too_odd():
    names = ["jobId", "status", "statusReason", "attempts", "container", "arrayProperties"]
    names += ["startedAt", "isTerminated", "ecsProperties", "jobName"]
    odd = [None, True, -1, 1e300, "", "x", [], [None], [[]], {}, {"x": []}, {"environment": [3]}]
    for name, value in itertools.product(names, odd):
        for status in ("FAILED", "RUNNING"):
            found = read_event(body(**{"status": status, "isTerminated": False, name: value}))
            if found is not None and found.status.is_final:
                assert verdict(found).sentence
            assert found is None or found.job_id in ("j", "x")


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ({"statusReason": "Host EC2 (instance i-0) terminated."}, True),
        ({"statusReason": "Task failed to start"}, True),
        ({"statusReason": "farcall: cancelled by its owner"}, True),
        ({"statusReason": "enough"}, False),
        ({}, False),
        ({"statusReason": "enough", "isTerminated": True}, True),
        ({"statusReason": "enough", "isTerminated": False}, True),
    ],
)
def test_a_failure_that_a_person_may_have_caused_is_left_to_be_asked_for(more, is_told):
    assert (read_event(body(status="FAILED", **more)) is not None) == is_told
    assert read_event(body(status="SUCCEEDED", **more)) is not None


# --- queues -----------------------------------------------------------------------------------


class World:
    """Queues around a scripted SQS.

    Attributes:
        waiting: Whether anybody waits for a job.
        noted: What was said of jobs.
        opened: How many clients were opened, and are open.
        times: When SQS answered.
    """

    def __init__(self, **operations):
        self.waiting = True
        self.noted = []
        self.opened = [0, 0]
        given = {
            "receive_message": self.receive,
            "delete_message_batch": lambda **_: {},
            "get_queue_url": lambda **_: {"QueueUrl": URL},
        }
        self.client = Client(**{**given, **operations})
        self.replies = []
        self.times = []
        access = SimpleNamespace(region="eu-west-1", client=self.lend)
        self.queues = EventQueues(access, self.noted.append, lambda: self.waiting)

    @contextlib.asynccontextmanager
    async def lend(self, service):
        assert service == "sqs"
        self.opened[0] += 1
        self.opened[1] += 1
        try:
            yield self.client
        finally:
            self.opened[1] -= 1

    def receive(self, **_):
        self.times.append(asyncio.get_running_loop().time())
        return self.replies.pop(0) if self.replies else {}

    @property
    def asked(self):
        return self.client.asked("receive_message")


@pytest.fixture
async def make(clock):
    """Make worlds whose clients answer after a second; they are closed after the test."""
    made = []

    def world(**operations):
        made.append(World(**operations))
        client = made[-1].client
        receive = client.receive_message

        async def slowly(**parameters):
            await asyncio.sleep(1)
            return await receive(**parameters)

        client.receive_message = slowly
        return made[-1]

    yield world
    for each in made:
        await each.queues.close()
        assert each.opened[1] == 0


def messages(*bodies):
    return {
        "Messages": [{"Body": text, "ReceiptHandle": f"r{n}"} for n, text in enumerate(bodies)]
    }


async def test_what_is_read_is_noted_and_deleted(make):
    world = make()
    world.replies = [messages(body(jobId="a"), "garbage", body(jobId="b:1", status="SUCCEEDED"))]
    world.queues.listen("q")
    await asyncio.sleep(1.5)
    assert [(d.job_id, d.status) for d in world.noted] == [
        ("a", JobStatus.RUNNING),
        ("b:1", JobStatus.SUCCEEDED),
    ]
    (deleted,) = world.client.asked("delete_message_batch")
    assert deleted["QueueUrl"] == URL
    assert [entry["ReceiptHandle"] for entry in deleted["Entries"]] == ["r0", "r1", "r2"]
    assert len({entry["Id"] for entry in deleted["Entries"]}) == 3
    assert world.asked[0] == {
        "QueueUrl": URL,
        "MaxNumberOfMessages": 10,
        "WaitTimeSeconds": 20,
        "VisibilityTimeout": 5,
    }


async def test_it_is_read_by_one_loop_while_somebody_waits(make):
    world = make()
    for _ in range(5):
        world.queues.listen("q")
    await asyncio.sleep(10.5)
    assert len(world.asked) == 10
    world.waiting = False
    await asyncio.sleep(100)
    assert len(world.asked) == 11  # the one that was open came to its end
    world.waiting = True
    world.queues.listen("q")
    await asyncio.sleep(5.5)
    assert len(world.asked) == 16
    assert world.opened == [1, 1]
    assert len(world.client.asked("get_queue_url")) == 1


async def test_what_comes_one_by_one_is_read_together(make):
    """A full answer is followed by the next request, and a long wait too; others by a moment."""
    world = make()
    world.replies = [messages(*["x"] * 10), messages(*["x"] * 10), messages("x"), {}, {}]
    world.queues.listen("q")
    await asyncio.sleep(5.5)
    steps = [late - early for early, late in itertools.pairwise(world.times)]
    assert steps == pytest.approx([1, 1, 1.25, 1])


async def test_without_a_queue_nothing_is_done(make):
    world = make()
    await world.queues.check("")
    world.queues.listen("")
    await asyncio.sleep(10)
    assert not world.client.calls
    assert world.opened == [0, 0]


async def test_closing_breaks_a_request_off(make):
    world = make()
    world.queues.listen("q")
    await asyncio.sleep(0.5)
    before = len(asyncio.all_tasks())
    await world.queues.close()
    assert len(asyncio.all_tasks()) == before - 1
    await asyncio.sleep(10)
    assert not world.asked
    assert world.opened == [1, 0]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("q", {"QueueName": "q"}),
        ("http-events", {"QueueName": "http-events"}),
        (
            "arn:aws:sqs:eu-west-1:111122223333:q",
            {"QueueName": "q", "QueueOwnerAWSAccountId": "111122223333"},
        ),
        (URL, None),
    ],
)
async def test_a_queue_has_a_name_an_arn_or_a_url(make, name, asked):
    world = make()
    await world.queues.check(name)
    assert world.client.asked("get_queue_url") == ([asked] if asked else [])
    assert [(p["QueueUrl"], p["WaitTimeSeconds"]) for p in world.asked] == [(URL, 0)]


async def test_a_failing_queue_costs_one_warning_and_ever_fewer_requests(make, caplog):
    world = make(receive_message=lambda **_: refusal(NO_QUEUE, 400))
    world.queues.listen("q")
    await asyncio.sleep(3600)
    assert 60 <= len(world.asked) <= 70  # one a minute, and some more at first
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert "no events are read from event_queue 'q' for now" in record.getMessage()
    assert NO_QUEUE in record.getMessage()
    assert not world.noted


async def test_a_queue_that_works_again_is_read_as_before(make, caplog):
    world = make()
    fine, bad = {}, refusal("ServiceUnavailable", 503)
    world.replies = [bad, bad, fine, bad, messages(body())]
    world.queues.listen("q")
    await asyncio.sleep(1 + 1 + 1 + 2 + 1 + 1 + 1 + 1.5)
    assert [detail.job_id for detail in world.noted] == ["j"]
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 2


async def test_what_cannot_be_deleted_is_noted_all_the_same(make, caplog):
    world = make(delete_message_batch=lambda **_: refusal("AccessDenied", 403))
    world.replies = [messages(body())] * 3
    world.queues.listen("q")
    await asyncio.sleep(30)
    assert len(world.noted) == 3
    assert "DeleteMessageBatch was refused" in caplog.text


async def test_a_bug_ends_nothing(make, caplog):
    world = make()
    world.replies = [{"Messages": [{}]}, messages(body())]
    world.queues.listen("q")
    await asyncio.sleep(10)
    assert len(world.noted) == 1
    assert "ReceiptHandle" in caplog.text


@pytest.mark.parametrize("code", [NO_QUEUE, "QueueDoesNotExist", "InvalidAddress"])
async def test_a_queue_that_is_not_there_is_a_wrong_setting(make, code):
    world = make(receive_message=lambda **_: refusal(code, 400))
    with pytest.raises(SettingsError, match="event_queue is 'q', and there is no such") as caught:
        await world.queues.check("q")
    assert caught.value.option == "event_queue"


async def test_a_queue_of_another_region_is_a_wrong_setting(make):
    world = make()
    with pytest.raises(SettingsError, match="the jobs are in eu-west-1"):
        await world.queues.check("arn:aws:sqs:us-east-1:111122223333:q")
    assert not world.client.calls


async def test_a_refusal_names_the_option_and_keeps_what_sqs_said(make):
    world = make(receive_message=lambda **_: refusal("AccessDenied", 403))
    words = "event_queue is 'q', and it cannot be read: ReceiveMessage was refused"
    with pytest.raises(ServiceError, match=words) as caught:
        await world.queues.check("q")
    error = caught.value
    assert (error.operation, error.code, error.status) == ("ReceiveMessage", "AccessDenied", 403)
    assert (error.request_id, error.sent) == ("r-1", False)


def test_a_request_is_held_shorter_than_clients_wait():
    assert events._WAIT_S < clients._READ_TIMEOUT_S
