"""What the account says after a chaos run, asked for without a proxy in between."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import boto3

_STATUSES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")
_FINAL = ("SUCCEEDED", "FAILED")
_TOGETHER = 100


@dataclass
class Truth:
    """Everything in the account.

    Attributes:
        jobs: Batch's descriptions by job ID, arrays and their children too.
        keys: When the objects in the bucket were stored, in seconds since 1970, by key.
        uploads: Keys of multipart uploads that nobody has finished.
    """

    jobs: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    uploads: list[str] = field(default_factory=list)

    @property
    def submitted(self):
        """Jobs as they were submitted: plain ones and arrays."""
        return {job_id: job for job_id, job in self.jobs.items() if ":" not in job_id}

    @property
    def leaves(self):
        """Jobs that run something: plain ones and children."""
        return {
            i: job
            for i, job in self.jobs.items()
            if not job.get("arrayProperties", {}).get("size")
        }

    @property
    def unfinished(self):
        return [job_id for job_id, job in self.jobs.items() if job["status"] not in _FINAL]

    def exit_code(self, job_id):
        """Return the exit code of a job's last attempt; None where there is none."""
        attempts = self.jobs[job_id].get("attempts") or [{}]
        return attempts[-1].get("container", {}).get("exitCode")

    def bundle_of(self, job_id):
        """Return the key of a job's bundle."""
        return self._variable(job_id, "FARCALL_BUNDLE").removeprefix("s3://").partition("/")[2]

    def nth(self, job_id):
        """Return how many retries led to a job: 0 where it runs its calls for the first time."""
        nth, parent = 0, job_id.partition(":")[0]
        while before := self._variable(parent, "FARCALL_RETRY_OF"):
            nth, parent = nth + 1, before.partition(":")[0]
        return nth

    def _variable(self, job_id, name):
        job = self.jobs.get(job_id, {"container": {"environment": ()}})
        variables = job["container"]["environment"]
        return next((v["value"] for v in variables if v["name"] == name), "")


def ask(environment):
    """Ask for everything."""
    truth = Truth()
    with contextlib.closing(_client("batch", environment)) as batch:
        queue = environment["FARCALL_QUEUE"]
        ids = _list(batch, jobQueue=queue)
        for job in _describe(batch, ids):
            truth.jobs[job["jobId"]] = job
            size = job.get("arrayProperties", {}).get("size", 0)
            children = [f"{job['jobId']}:{index}" for index in range(size)]
            truth.jobs.update((child["jobId"], child) for child in _describe(batch, children))
    ask_bucket(truth, environment)
    return truth


def ask_bucket(truth, environment):
    """Ask for everything in the bucket."""
    with contextlib.closing(_client("s3", environment)) as s3:
        bucket = environment["FARCALL_S3_BUCKET_NAME"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for found in page.get("Contents", ()):
                truth.keys[found["Key"]] = found["LastModified"].timestamp()
        for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
            truth.uploads += [upload["Key"] for upload in page.get("Uploads", ())]


def _client(service, environment):
    return boto3.client(
        service,
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def _list(batch, **what):
    found = []
    for status in _STATUSES:
        pages = batch.get_paginator("list_jobs").paginate(jobStatus=status, **what)
        found += [job["jobId"] for page in pages for job in page["jobSummaryList"]]
    return list(dict.fromkeys(found))  # one that changed meanwhile was met twice


def _describe(batch, ids):
    return [
        job
        for at in range(0, len(ids), _TOGETHER)
        for job in batch.describe_jobs(jobs=ids[at : at + _TOGETHER])["jobs"]
    ]
