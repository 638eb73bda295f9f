"""Jobs in Batch, found by the name of their function."""

from __future__ import annotations

import functools
import os
from typing import Any

import boto3

import farcall_local


def find(name: str) -> list[dict[str, Any]]:
    """Return a function's jobs from DescribeJobs, with one entry per array."""
    batch = boto3.client("batch")
    listed = batch.list_jobs(
        jobQueue=os.environ["FARCALL_QUEUE"],
        filters=[{"name": "JOB_NAME", "values": [f"{name}*"]}],
    )["jobSummaryList"]
    found = [job["jobId"] for job in listed]
    return list(batch.describe_jobs(jobs=found)["jobs"]) if found else []


def states(name: str) -> set[str]:
    """Return the statuses of a function's jobs."""
    return {job["status"] for job in find(name)}


def terminate_all(aws: farcall_local.LocalAWS, since: float) -> None:
    """Terminate unfinished jobs in an emulator's own queue without waiting for their exit.

    Args:
        aws: The emulator.
        since: Jobs submitted after this time, in seconds since the epoch.
    """
    environment = aws.environment
    batch = _client(
        aws.endpoint_url,
        environment["AWS_ACCESS_KEY_ID"],
        environment["AWS_SECRET_ACCESS_KEY"],
        environment["AWS_REGION"],
    )
    after = {"name": "AFTER_CREATED_AT", "values": [str(int(since * 1000))]}
    queue = environment["FARCALL_QUEUE"]
    for page in batch.get_paginator("list_jobs").paginate(jobQueue=queue, filters=[after]):
        for job in page["jobSummaryList"]:
            if job["status"] not in ("SUCCEEDED", "FAILED"):
                batch.terminate_job(jobId=job["jobId"], reason="left by a test")


@functools.cache
def _client(url: str, key: str, secret: str, region: str) -> Any:
    return boto3.client(
        "batch",
        endpoint_url=url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name=region,
    )
