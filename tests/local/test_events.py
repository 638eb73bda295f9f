"""What the embedded Batch tells EventBridge, and how its queues give it out.

As far as AWS documents it, these hold for a real account too; they are run on the embedded one
only, because they make rules and queues.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from farcall.local import LocalServer, start
from local.account import Account
from signing import signed

STATES = ["RUNNABLE", "STARTING", "RUNNING"]
ACCOUNT_ID = "123456789012"


def arn(kind, name):
    return f"arn:aws:{kind}:us-east-1:{ACCOUNT_ID}:{name}"


class Listener:
    """A queue, and the rule that sends events to it."""

    def __init__(self, account, pattern, **attributes):
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.sqs, self.rules = account.client("sqs"), account.client("events")
        self.url = self.sqs.create_queue(QueueName=self.name, Attributes=attributes)["QueueUrl"]
        self.rules.put_rule(
            Name=self.name, EventPattern=json.dumps({"source": ["aws.batch"], **pattern})
        )
        self.rules.put_targets(
            Rule=self.name, Targets=[{"Id": "queue", "Arn": arn("sqs", self.name)}]
        )

    def receive(self, wait_s=20):
        """Take the next event; None where none comes in time."""
        found = self.sqs.receive_message(QueueUrl=self.url, WaitTimeSeconds=wait_s)
        for message in found.get("Messages", []):
            self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
            return json.loads(message["Body"])
        return None

    def until(self, job_id, status):
        """Take events until a job has a status."""
        found = []
        while not found or (found[-1]["jobId"], found[-1]["status"]) != (job_id, status):
            event = self.receive()
            assert event is not None, found
            found.append(event["detail"])
        return found

    def close(self):
        with contextlib.suppress(ClientError):
            self.rules.remove_targets(Rule=self.name, Ids=["queue"])
            self.rules.delete_rule(Name=self.name)
        with contextlib.suppress(ClientError):
            self.sqs.delete_queue(QueueUrl=self.url)
        self.sqs.close()
        self.rules.close()


@pytest.fixture
def listen(batch, knobs):
    """Make listeners; they are gone after the test."""
    with contextlib.ExitStack() as stack:

        def make(detail=None, **attributes):
            pattern = {} if detail is None else {"detail": detail}
            return stack.enter_context(contextlib.closing(Listener(batch, pattern, **attributes)))

        yield make


def statuses(details, job_id):
    return [detail["status"] for detail in details if detail["jobId"] == job_id]


# --- events -----------------------------------------------------------------------------------


def test_every_change_is_told_but_the_submission(batch, listen):
    """https://docs.aws.amazon.com/batch/latest/userguide/batch_job_events.html"""
    listener = listen()
    job_id = batch.submit(batch.definition("sh", "-c", "exit 3"), tags={"team": "blue"})
    first = listener.receive()
    job_arn = arn("batch", f"job/{job_id}")
    assert first.pop("id")
    assert time.strptime(first.pop("time"), "%Y-%m-%dT%H:%M:%SZ")
    detail = first.pop("detail")
    assert first == {
        "version": "0",
        "detail-type": "Batch Job State Change",
        "source": "aws.batch",
        "account": ACCOUNT_ID,
        "region": "us-east-1",
        "resources": [job_arn],
    }
    assert (detail["jobArn"], detail["jobId"], detail["status"]) == (job_arn, job_id, "RUNNABLE")
    told = listener.until(job_id, "FAILED")
    assert [detail["status"], *statuses(told, job_id)] == [*STATES, "FAILED"]
    described = batch.describe(job_id)
    del described["isCancelled"], described["isTerminated"]  # which AWS's example lacks
    assert told[-1] == described


def test_an_attempt_that_is_tried_again_is_told_of(batch, listen):
    listener = listen()
    retry = {"attempts": 2}
    job_id = batch.submit(batch.definition("false"), retryStrategy=retry)
    told = listener.until(job_id, "FAILED")
    assert statuses(told, job_id) == [*STATES, *STATES, "FAILED"]
    assert [len(detail["attempts"]) for detail in told] == [0, 0, 0, 1, 1, 1, 2]


def test_children_of_an_array_and_their_parent_are_told_of(batch, listen):
    listener = listen()
    definition = batch.definition("sh", "-c", "exit $AWS_BATCH_JOB_ARRAY_INDEX")
    parent = batch.submit(definition, arrayProperties={"size": 2})
    told = listener.until(parent, "FAILED")
    assert statuses(told, f"{parent}:0") == [*STATES, "SUCCEEDED"]
    assert statuses(told, f"{parent}:1") == [*STATES, "FAILED"]
    assert statuses(told, parent) == ["PENDING", "FAILED"]
    assert told[-1]["arrayProperties"]["statusSummary"]["FAILED"] == 1


def test_the_end_of_a_job_that_never_ran_is_told_with_its_reason(batch, listen, knobs):
    listener = listen({"status": ["FAILED"]})
    knobs.configure(delays={"RUNNABLE": 600.0})
    job_id = batch.submit(batch.definition("true"))
    batch.wait(job_id, "RUNNABLE")
    batch.batch.terminate_job(jobId=job_id, reason="enough")
    (detail,) = listener.until(job_id, "FAILED")
    assert (detail["statusReason"], detail["attempts"]) == ("enough", [])


def test_only_what_a_pattern_picks_is_sent(batch, listen):
    """Lists are alternatives, and a prefix matches.

    https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-patterns.html
    """
    elsewhere = listen({"jobQueue": [arn("batch", "job-queue/another")]})
    ends = listen({"status": ["SUCCEEDED", "FAILED"], "jobName": [{"prefix": "mine-"}]})
    definition = batch.definition("true")
    other = batch.submit(definition, jobName="other")
    batch.wait(other)
    mine = batch.submit(definition, jobName="mine-1")
    assert [detail["jobId"] for detail in ends.until(mine, "SUCCEEDED")] == [mine]
    assert elsewhere.receive(0) is None


def test_a_disabled_rule_sends_nothing(batch, listen):
    disabled, enabled = listen(), listen()
    disabled.rules.disable_rule(Name=disabled.name)
    disabled.rules.put_rule(Name=f"{disabled.name}-hourly", ScheduleExpression="rate(1 hour)")
    target = {"Id": "queue", "Arn": arn("sqs", disabled.name)}
    disabled.rules.put_targets(Rule=f"{disabled.name}-hourly", Targets=[target])
    job_id = batch.submit(batch.definition("true"))
    enabled.until(job_id, "SUCCEEDED")
    assert disabled.receive(0) is None
    disabled.rules.remove_targets(Rule=f"{disabled.name}-hourly", Ids=["queue"])
    disabled.rules.delete_rule(Name=f"{disabled.name}-hourly")


def test_what_cannot_be_applied_or_sent_to_disturbs_nobody(batch, listen):
    odd, gone, sound = listen({"status": [{"prefix": 3}]}), listen(), listen()
    gone.sqs.delete_queue(QueueUrl=gone.url)
    targets = [
        {"Id": "function", "Arn": arn("lambda", "function:f")},
        {"Id": "queue", "Arn": arn("sqs", sound.name)},
    ]
    sound.rules.put_targets(Rule=sound.name, Targets=targets)
    job_id = batch.submit(batch.definition("true"))
    assert statuses(sound.until(job_id, "SUCCEEDED"), job_id) == [*STATES, "SUCCEEDED"]
    assert odd.receive(0) is None


def test_a_queue_may_be_of_the_kind_that_keeps_the_order(batch, listen):
    listener = listen()
    name = f"{listener.name}.fifo"
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = listener.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    group = {"SqsParameters": {"MessageGroupId": "all"}}
    target = {"Id": "fifo", "Arn": arn("sqs", name), **group}
    listener.rules.put_targets(Rule=listener.name, Targets=[target])
    job_id = batch.submit(batch.definition("true"))
    listener.until(job_id, "SUCCEEDED")
    received = listener.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    told = [json.loads(message["Body"])["detail"]["status"] for message in received]
    assert told == [*STATES, "SUCCEEDED"]
    # The group waits for what is in flight, and a long poll with it.
    assert "Messages" not in listener.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
    listener.sqs.delete_queue(QueueUrl=url)
    listener.rules.remove_targets(Rule=listener.name, Ids=["fifo"])


def test_many_events_wait_for_their_reader(batch, listen, knobs):
    """moto's queues are slow when they hold much."""
    knobs.configure(delays={"RUNNABLE": 600.0})
    listener = listen({"status": ["FAILED"]})
    definition = batch.definition("true")
    jobs = [batch.submit(definition, arrayProperties={"size": 40}) for _ in range(2)]
    batch.batch.terminate_job(jobId=jobs[0], reason="enough")
    batch.batch.terminate_job(jobId=jobs[1], reason="enough")
    for job_id in jobs:
        batch.wait(job_id)
    received = []
    while len(received) < 82:
        found = listener.sqs.receive_message(
            QueueUrl=listener.url, WaitTimeSeconds=20, MaxNumberOfMessages=10
        )["Messages"]
        for message in found:
            received.append(json.loads(message["Body"])["detail"]["jobId"])
            listener.sqs.delete_message(
                QueueUrl=listener.url, ReceiptHandle=message["ReceiptHandle"]
            )
    children = [f"{job_id}:{index}" for job_id in jobs for index in range(40)]
    assert sorted(received) == sorted([*jobs, *children])
    assert received.index(jobs[0]) > received.index(f"{jobs[0]}:39")


def test_what_nobody_reads_is_not_kept_for_ever(monkeypatch):
    """https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html"""
    with LocalServer(cpus=2) as server, contextlib.ExitStack() as stack:
        account = Account(server)
        stack.callback(account.close)
        server.configure(delays={"RUNNABLE": 600.0})
        retention = {"MessageRetentionPeriod": "60"}
        listener = Listener(account, {"detail": {"status": ["FAILED"]}}, **retention)
        stack.callback(listener.close)

        def fail(size):
            definition = account.definition("true")
            job_id = account.submit(definition, arrayProperties={"size": size})
            account.batch.terminate_job(jobId=job_id, reason="enough")
            account.wait(job_id)
            server._events._thread.submit(int).result()  # all is sent
            return job_id

        fail(40)
        (waiting,) = server._events._waiting.values()
        assert waiting
        now = {name: getattr(time, name)() for name in ("time", "monotonic")}
        clock = {name: lambda moment=moment: moment + 61 for name, moment in now.items()}
        monkeypatch.setattr("farcall.local.services.events.time", SimpleNamespace(**clock))
        assert listener.receive(0) is None
        monkeypatch.undo()
        assert not waiting
        job_id = fail(2)
        received = {listener.receive()["detail"]["jobId"] for _ in range(3)}
        assert received == {job_id, f"{job_id}:0", f"{job_id}:1"}


def test_without_a_rule_nothing_is_made_or_sent():
    with LocalServer(cpus=2) as server:
        account = Account(server)
        account.wait(account.submit(account.definition("true")))
        assert not server._events._thread._threads  # no event ever went to the thread that sends
        account.close()


# --- queues -----------------------------------------------------------------------------------


def test_a_long_poll_waits_without_keeping_others_from_the_queue(batch, listen):
    """https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-short-and-long-polling.html"""
    listener = listen({"status": ["SUCCEEDED"]}, ReceiveMessageWaitTimeSeconds="20")
    received = []
    client = batch.client("sqs")

    def receive():  # for as long as the queue says
        received.append(client.receive_message(QueueUrl=listener.url))

    thread = threading.Thread(target=receive)
    thread.start()
    for _ in range(3):  # SQS answers others meanwhile, and EventBridge too
        listener.sqs.get_queue_attributes(QueueUrl=listener.url, AttributeNames=["All"])
        listener.rules.list_rules()
    assert not received
    job_id = batch.submit(batch.definition("true"))
    thread.join()
    (message,) = received[0]["Messages"]
    assert json.loads(message["Body"])["detail"]["jobId"] == job_id
    client.close()


def test_who_hangs_up_takes_no_message_along(batch, listen):
    listener = listen({"status": ["SUCCEEDED"]})
    body = json.dumps({"QueueUrl": listener.url, "WaitTimeSeconds": 20}).encode()
    asked = {
        "X-Amz-Target": "AmazonSQS.ReceiveMessage",
        "Content-Type": "application/x-amz-json-1.0",
    }
    url = f"{batch.local.endpoint_url}/"
    headers = signed("sqs", "POST", url, batch.local.environment, body, asked)
    for _ in range(8):
        connection = http.client.HTTPConnection(batch.local.endpoint_url.removeprefix("http://"))
        connection.request("POST", "/", body, headers)
        connection.close()
    job_id = batch.submit(batch.definition("true"))
    assert listener.receive()["detail"]["jobId"] == job_id


def test_a_poll_of_a_queue_that_is_deleted_ends(batch, listen):
    listener = listen()
    client = batch.client("sqs")
    timer = threading.Timer(0.3, listener.close)
    timer.start()
    with pytest.raises(client.exceptions.QueueDoesNotExist):
        client.receive_message(QueueUrl=listener.url, WaitTimeSeconds=20)
    timer.join()
    client.close()


@pytest.mark.parametrize("wait_s", [-1, 21])
def test_a_wait_that_sqs_does_not_know_is_refused(listen, wait_s):
    listener = listen()
    with pytest.raises(ClientError, match="WaitTimeSeconds is invalid"):
        listener.sqs.receive_message(QueueUrl=listener.url, WaitTimeSeconds=wait_s)


# --- permissions ------------------------------------------------------------------------------


def policy(queue, rule, **more):
    return {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn("sqs", queue),
        "Condition": {"ArnEquals": {"aws:SourceArn": arn("events", f"rule/{rule}")}},
        **more,
    }


def test_where_permissions_are_enforced_the_queue_must_let_the_rule_send():
    """https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-resource-based.html"""
    with start(cpus=2, enforce_iam=True) as local, contextlib.ExitStack() as stack:
        account = Account(local)
        stack.callback(account.close)
        sqs = account.client("sqs")
        stack.callback(sqs.close)

        def listener(*statements):
            made = stack.enter_context(contextlib.closing(Listener(account, {})))
            if statements:
                document = {"Statement": [statement(made.name) for statement in statements]}
                attributes = {"Policy": json.dumps({"Version": "2012-10-17", **document})}
                sqs.set_queue_attributes(QueueUrl=made.url, Attributes=attributes)
            return made

        def own(name):
            return policy(name, name)

        silent = [
            listener(),
            listener(lambda name: policy(name, "another")),
            listener(lambda name: policy(name, name, Principal={"Service": "s3.amazonaws.com"})),
            listener(lambda name: policy(name, name, Action="sqs:ReceiveMessage")),
            listener(own, lambda name: policy(name, name, Effect="Deny")),
            listener(lambda name: policy(name, name, Condition={"Bool": {"aws:Other": "true"}})),
        ]
        hearing = [listener(own), listener(lambda name: policy(name, name, Principal="*"))]
        job_id = account.submit(account.definition("true"))
        for made in hearing:
            assert statuses(made.until(job_id, "SUCCEEDED"), job_id) == [*STATES, "SUCCEEDED"]
        for made in silent:
            assert made.receive(0) is None, made.name
