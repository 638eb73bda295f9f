"""Jobs that Batch cannot place: their detection and remedies."""

from __future__ import annotations

import pytest

from farcall.backends.batch.blocked import REMEDIES, is_blocked, remedy
from farcall.backends.batch.describe import from_describe
from farcall.backends.batch.failure_reasons import failure_reason
from farcall.model import errors
from tests.unit.backends.batch.test_failure_reasons import (
    HOST_LOST,
    TOO_LARGE,
    Recorded,
    without_attempts,
)

# https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
REASONS = {
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity": "on-demand",
    "CAPACITY:SOMETHING_NEW": "capacity",
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - The job is larger": "maxvCpus",
    f"{TOO_LARGE} - The job resource requirement (vCPU/memory/GPU) is higher": "larger instances",
    "MISCONFIGURATION:EC2_INSTANCE_CONFIGURATION_UNSUPPORTED": "instance types",
    "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS - Batch is not able": "AWSBatchServiceRole",
    "MISCONFIGURATION:SOMETHING_NEW - ask": "vcpu, memory, num_gpus",
    "ACTION_REQUIRED - CE(s) associated with the job queue are invalid": "statusReason",
    "UNDETERMINED - The root cause is undetermined": "ENABLED and VALID",
}


@pytest.mark.parametrize(("reason", "word"), REASONS.items())
def test_blocked_job_has_remedy(reason, word):
    waiting = Recorded(errors.JobError, "", reason, status="RUNNABLE")
    detail = from_describe(without_attempts(waiting))
    assert is_blocked(detail)
    assert word in remedy(reason)
    given_up = Recorded(errors.JobError, "", f"farcall: stuck for 60 s: {reason}")
    found = failure_reason(from_describe(without_attempts(given_up)))
    assert (found.kind, found.remedy) == (errors.JobStuckError, remedy(reason))


def test_each_blocked_remedy_is_recorded():
    assert {remedy(reason) for reason in REASONS} == set(REMEDIES.values())


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("RUNNABLE", ""),
        ("RUNNABLE", HOST_LOST),  # it will be retried
        ("STARTING", "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - none left"),
        ("FAILED", "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - none left"),
    ],
)
def test_other_jobs_are_not_blocked(status, reason):
    row = Recorded(errors.JobError, "", reason, status=status)
    assert not is_blocked(from_describe(without_attempts(row)))
