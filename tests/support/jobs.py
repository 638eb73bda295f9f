"""Jobs that Batch knows, found by the name of their function."""

from __future__ import annotations

import os
from typing import Any

import boto3


def find(name: str) -> list[dict[str, Any]]:
    """Return what DescribeJobs tells of the jobs of a function; an array is one."""
    batch = boto3.client("batch")
    listed = batch.list_jobs(
        jobQueue=os.environ["FARCALL_BATCH_QUEUE"],
        filters=[{"name": "JOB_NAME", "values": [f"{name}*"]}],
    )["jobSummaryList"]
    found = [job["jobId"] for job in listed]
    return list(batch.describe_jobs(jobs=found)["jobs"]) if found else []


def states(name: str) -> set[str]:
    """Return the states that the jobs of a function have."""
    return {job["status"] for job in find(name)}
