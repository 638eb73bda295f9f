"""Enforced permissions of the local AWS emulator.

Starts the emulator with permissions enforced, because each service has its own error format.
"""

from __future__ import annotations

import pytest

from tests import emulators
from tests.support.iam import JOB_ROLE, VALUES, Enforced
from tests.support.patience import until

BUCKET = VALUES["BUCKET"]
CONTAINER = {
    "image": "any",
    "command": ["sh", "-c", "echo $AWS_ACCESS_KEY_ID; echo token=$AWS_SESSION_TOKEN"],
    "resourceRequirements": [
        {"type": "VCPU", "value": "1"},
        {"type": "MEMORY", "value": "128"},
    ],
}


@pytest.fixture(scope="module")
def account():
    with emulators.start(enforce_iam=True) as aws:
        yield Enforced(aws)


@pytest.fixture
def enforced(account):
    account.restore()
    return account


@pytest.mark.parametrize("role", [JOB_ROLE, None])
def test_job_has_only_role_keys(enforced, role):
    """It never has the root user's keys from the server's environment."""
    batch = enforced.root("batch")
    container = dict(CONTAINER)
    if role:
        container["jobRoleArn"] = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{role}"
    name = f"keys-of-{role}"
    batch.register_job_definition(
        jobDefinitionName=name, type="container", containerProperties=container
    )
    job = batch.submit_job(jobName="keys", jobQueue=VALUES["QUEUE"], jobDefinition=name)["jobId"]
    detail = _reached(batch, job, "SUCCEEDED")
    events = enforced.root("logs").get_log_events(
        logGroupName="/aws/batch/job",
        logStreamName=detail["container"]["logStreamName"],
        startFromHead=True,
    )["events"]
    lines = [event["message"] for event in events]
    if role:
        assert lines[0].startswith("ASIA")
        assert len(lines[1]) > len("token=")
    else:
        assert lines == ["token="]


def _reached(batch, job_id, status):
    """Wait until a job has a status; return the job."""

    def look():
        (job,) = batch.describe_jobs(jobs=[job_id])["jobs"]
        return job if job["status"] == status else None

    return until(look)
