"""The jobs and objects that exist after a chaos run, requested without a proxy."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from kubernetes import client, config

from tests.support import clients

_STATUSES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")
_FINAL = ("SUCCEEDED", "FAILED")
_TOGETHER = 100
_JOB_NAME = "batch.kubernetes.io/job-name"
_INDEX = "batch.kubernetes.io/job-completion-index"
_FAILURES = (
    "batch.kubernetes.io/job-index-failure-count",
    "batch.kubernetes.io/job-index-ignored-failure-count",
)


@dataclass
class Truth:
    """Everything in the account.

    Attributes:
        jobs: Job ID to Batch's description, including arrays and their child jobs.
        keys: Upload time of each object in the bucket, in seconds since 1970, by key.
        uploads: Keys of unfinished multipart uploads.
    """

    jobs: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    uploads: list[str] = field(default_factory=list)

    @property
    def submitted(self):
        """Jobs as they were submitted: single jobs and arrays."""
        return {job_id: job for job_id, job in self.jobs.items() if ":" not in job_id}

    @property
    def leaves(self):
        """Jobs that run containers: single jobs and child jobs."""
        return {
            i: job
            for i, job in self.jobs.items()
            if not job.get("arrayProperties", {}).get("size")
        }

    @property
    def unfinished(self):
        return [job_id for job_id, job in self.jobs.items() if job["status"] not in _FINAL]

    @property
    def retried(self):
        """Jobs whose failed tasks another job runs again."""
        return {self.chances_of(job_id)[1] for job_id in self.submitted} - {""}

    def exit_code(self, job_id):
        """Return the exit code of a job's last attempt, or None."""
        attempts = self.jobs[job_id].get("attempts") or [{}]
        return attempts[-1].get("container", {}).get("exitCode")

    def bundle_of(self, job_id):
        """Return the key of a job's bundle."""
        return self._variable(job_id, "FARCALL_BUNDLE").removeprefix("s3://").partition("/")[2]

    def times(self, job_id):
        """Return when a job was submitted and when it ended; 0 and None if unknown."""
        job = self.jobs.get(job_id, {})
        return job.get("createdAt", 0), job.get("stoppedAt")

    def chances_of(self, job_id):
        """Return a job's rungs, and the job whose tasks it runs again."""
        whole = job_id.partition(":")[0]
        retried = self._variable(whole, "FARCALL_RETRY_OF").partition(":")[0]
        return self._variable(whole, "FARCALL_RUNGS"), retried

    def retried_by(self, job_id):
        """Yield the jobs whose tasks a job runs again, the newest first."""
        while job_id := self.chances_of(job_id)[1]:
            yield job_id

    def _variable(self, job_id, name):
        job = self.jobs.get(job_id, {"container": {"environment": ()}})
        variables = {v["name"]: v["value"] for v in job["container"]["environment"]}
        return variables.get(name, "")


def request(environment):
    """Return everything in the account, or in the cluster and its bucket."""
    truth = Truth(
        _cluster_jobs(environment) if "KUBECONFIG" in environment else _jobs(environment)
    )
    with contextlib.closing(clients.client("s3", environment)) as s3:
        bucket = environment["FARCALL_S3_BUCKET_NAME"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="chaos/"):
            for found in page.get("Contents", ()):
                truth.keys[found["Key"]] = found["LastModified"].timestamp()
        for page in s3.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, Prefix="chaos/"
        ):
            truth.uploads += [upload["Key"] for upload in page.get("Uploads", ())]
    return truth


def create_queue(environment, name):
    """Create another queue with the same compute environments."""
    with contextlib.closing(clients.client("batch", environment)) as batch:
        (first,) = batch.describe_job_queues(jobQueues=[environment["FARCALL_QUEUE"]])["jobQueues"]
        environments = first["computeEnvironmentOrder"]
        batch.create_job_queue(jobQueueName=name, priority=1, computeEnvironmentOrder=environments)


def _jobs(environment):
    jobs, ids = {}, {}
    with contextlib.closing(clients.client("batch", environment)) as batch:
        queues = [each["jobQueueName"] for each in batch.describe_job_queues()["jobQueues"]]
        for queue, status in itertools.product(queues, _STATUSES):
            pages = batch.get_paginator("list_jobs").paginate(jobQueue=queue, jobStatus=status)
            ids |= {job["jobId"]: None for page in pages for job in page["jobSummaryList"]}
        for job in _describe(batch, list(ids)):
            size = job.get("arrayProperties", {}).get("size", 0)
            children = [f"{job['jobId']}:{index}" for index in range(size)]
            jobs |= {each["jobId"]: each for each in (job, *_describe(batch, children))}
    return jobs


def _describe(batch, ids):
    return [
        job
        for at in range(0, len(ids), _TOGETHER)
        for job in batch.describe_jobs(jobs=ids[at : at + _TOGETHER])["jobs"]
    ]


# --- Kubernetes, described like Batch, so that the same checks apply to both platforms ----------


@contextlib.contextmanager
def _cluster(environment):
    file = environment["KUBECONFIG"]
    with contextlib.closing(config.new_client_from_config(file, persist_config=False)) as api:
        yield api, environment["FARCALL_NAMESPACE"]


def completions(environment, name):
    """Return the size of a Kubernetes Job."""
    with _cluster(environment) as (api, namespace):
        return client.BatchV1Api(api).read_namespaced_job(name, namespace).spec.completions


def job_id(name, index, size):
    """Return farcall's ID of an index of a Kubernetes Job."""
    return f"{name}:{index}" if size > 1 else name


def _listed(call, namespace):
    """Return a list's items; repeat a request that the storm throttles."""
    while True:
        try:
            return call(namespace).items
        except client.ApiException as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            time.sleep(float(error.headers["Retry-After"]))


def _cluster_jobs(environment):
    with _cluster(environment) as (api, namespace):
        found = _listed(client.BatchV1Api(api).list_namespaced_job, namespace)
        pods = _listed(client.CoreV1Api(api).list_namespaced_pod, namespace)
    by_index = {}
    for pod in pods:
        labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
        place = labels.get(_JOB_NAME), annotations.get(_INDEX)
        by_index.setdefault(place, []).append(pod)
    found = [job for job in found if "/chaos/" in _bundle(job)]
    return {each["jobId"]: each for job in found for each in _described(job, by_index)}


def _bundle(job):
    variables = {each.name: each.value for each in job.spec.template.spec.containers[0].env or ()}
    return variables.get("FARCALL_BUNDLE") or ""


def running(environment):
    """Return the run's running pods: name, job and attempt."""
    with _cluster(environment) as (api, namespace):
        jobs = _listed(client.BatchV1Api(api).list_namespaced_job, namespace)
        pods = _listed(client.CoreV1Api(api).list_namespaced_pod, namespace)
    sizes = {job.metadata.name: job.spec.completions for job in jobs if "/chaos/" in _bundle(job)}
    found = []
    for pod in pods:
        labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
        name = labels.get(_JOB_NAME)
        is_running = pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        if is_running and name in sizes:
            attempt = 1 + sum(int(annotations.get(key) or 0) for key in _FAILURES)
            job = job_id(name, annotations[_INDEX], sizes[name])
            found.append((pod.metadata.name, job, attempt))
    return found


def delete_pod(environment, name, *, at_once):
    """Delete a pod, if it still exists."""
    with _cluster(environment) as (api, namespace):
        options = {"grace_period_seconds": 0} if at_once else {}
        try:
            client.CoreV1Api(api).delete_namespaced_pod(name, namespace, **options)
        except client.ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise


def delete(environment, truth):
    """Delete the jobs and objects of a run."""
    with _cluster(environment) as (api, namespace):
        for name in truth.submitted:
            client.BatchV1Api(api).delete_namespaced_job(
                name, namespace, propagation_policy="Background"
            )
    with contextlib.closing(clients.client("s3", environment)) as s3:
        for key in truth.keys:
            s3.delete_object(Bucket=environment["FARCALL_S3_BUCKET_NAME"], Key=key)


def _described(job, by_index):
    """Return a Job and its indexes as Batch would describe them."""
    name, size = job.metadata.name, job.spec.completions
    variables = [
        {"name": found.name, "value": found.value or ""}
        for found in job.spec.template.spec.containers[0].env or ()
    ]
    final = next(
        (
            "SUCCEEDED" if found.type == "Complete" else "FAILED"
            for found in job.status.conditions or ()
            if found.status == "True" and found.type in ("Complete", "Failed")
        ),
        "",
    )
    whole = {
        "jobId": name,
        "status": final or "RUNNING",
        "statusReason": (job.metadata.annotations or {}).get("farcall/reason", ""),
        "container": {"environment": variables},
        "attempts": [],
    }
    if size > 1:
        yield {**whole, "arrayProperties": {"size": size}}
    done, failed = _indexes(job.status.completed_indexes), _indexes(job.status.failed_indexes)
    for index in range(size):
        status = "SUCCEEDED" if index in done else "FAILED" if index in failed or final else ""
        yield {
            **whole,
            "jobId": job_id(name, index, size),
            "status": status or "RUNNING",
            "attempts": [_attempt(pod) for pod in by_index.get((name, str(index)), ())],
        }


def _attempt(pod):
    statuses = pod.status.container_statuses or ()
    ended = statuses[0].state.terminated if statuses else None
    return {
        "container": {"exitCode": ended.exit_code if ended else None},
        "statusReason": pod.status.reason or "",
    }


def _indexes(text):
    """Return the numbers of ``1,3-5``."""
    found = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
