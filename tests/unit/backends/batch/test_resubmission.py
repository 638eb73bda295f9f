"""A job's description, read back as requests."""

from __future__ import annotations

from farcall.backends.batch.resubmission import requests_of

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


def test_a_plain_job():
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


def test_a_job_on_several_nodes():
    groups = [{"targetNodes": "0:1", "container": CONTAINER}]
    nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": groups}
    found = requests_of({**JOB, "nodeProperties": nodes})["RegisterJobDefinition"]
    assert found["type"] == "multinode"
    assert found["nodeProperties"]["nodeRangeProperties"] == [
        {"targetNodes": "0:1", "container": ASKED}
    ]
    assert groups[0]["container"] is CONTAINER
