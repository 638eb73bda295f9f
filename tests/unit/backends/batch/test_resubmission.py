"""Job descriptions converted back to requests."""

from dataclasses import replace

from farcall.backends.batch.describe import from_describe
from farcall.backends.batch.resubmission import options_of, requests_of

RUN = {"name": "FARCALL_RUN", "value": "ann-20261122-190000-0a1b2c"}
ASKED = {
    "image": "alpine",
    "command": ["true"],
    "environment": [{"name": "A", "value": "1"}],
    "resourceRequirements": [{"type": "VCPU", "value": "1"}],
}
CONTAINER = {
    **ASKED,
    "environment": [*ASKED["environment"], RUN],
    "volumes": [],
    "exitCode": 0,
    "logStreamName": "x/default/1",
    "networkInterfaces": [],
}
JOB = {
    "jobId": "id",
    "jobName": "name",
    "jobQueue": "arn:aws:batch:us-east-1:111122223333:job-queue/q",
    "status": "SUCCEEDED",
    "attempts": [],
    "dependsOn": [],
    "retryStrategy": {"attempts": 2},
    "tags": {"a": "b"},
}


def test_plain_job_becomes_requests():
    found = requests_of({**JOB, "container": CONTAINER, "schedulingPriority": 7})
    assert found["RegisterJobDefinition"] == {
        "type": "container",
        "retryStrategy": {"attempts": 2},
        "containerProperties": ASKED,
    }
    assert found["SubmitJob"] == {
        "jobName": "name",
        "jobQueue": JOB["jobQueue"],
        "tags": {"a": "b"},
        "schedulingPriorityOverride": 7,
    }


def test_multi_node_job_becomes_requests():
    groups = [{"targetNodes": "0:1", "container": CONTAINER}]
    nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": groups}
    found = requests_of({**JOB, "nodeProperties": nodes})["RegisterJobDefinition"]
    assert found["type"] == "multinode"
    assert found["nodeProperties"]["nodeRangeProperties"] == [
        {"targetNodes": "0:1", "container": ASKED}
    ]
    assert groups[0]["container"] is CONTAINER


def test_batch_options_are_restored():
    container = {
        **CONTAINER,
        "jobRoleArn": "arn:aws:iam::111122223333:role/mine",
        "executionRoleArn": "arn:aws:iam::111122223333:role/theirs",
    }
    job = {**JOB, "container": container, "schedulingPriority": 7, "shareIdentifier": "blue"}
    detail = from_describe(job)
    assert options_of(detail, requests_of(job)) == {
        "queue": detail.queue,
        "priority": 7,
        "share_identifier": "blue",
        "job_definition_extra": {},
        "environment": {"A": "1"},
        "secrets": {},
        "image": "alpine",
        "batch_job_role_name": container["jobRoleArn"],
        "batch_execution_role_name": container["executionRoleArn"],
    }
    stock = options_of(replace(detail, runtime="s3://bucket/key"), requests_of(job))
    assert (stock["stock_image_uri"], stock["image"]) == ("alpine", "")
