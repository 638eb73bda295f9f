"""Operations of the emulated Batch, from JSON to JSON.

Operations that are not supported are rejected with an explanation instead of a poor imitation:
EKS, service jobs, consumable resources and scheduling policies.

Source:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_Operations.html
"""

from __future__ import annotations

import functools
import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from farcall.model.jobs import JobStatus
from farcall_local import names
from farcall_local.batch import containers, describe, nodes, paging, retries, validate
from farcall_local.batch.containers import Container
from farcall_local.batch.definitions import Definition, Definitions
from farcall_local.batch.describe import summary
from farcall_local.batch.engine import Engine
from farcall_local.batch.errors import ApiError, ClientError
from farcall_local.batch.jobs import Job, Jobs, Submission
from farcall_local.batch.limits import Limits
from farcall_local.batch.queues import Queues, Resource

# --- ListJobs: a page of a queue's jobs or an array's child jobs
#
# Source:
#     https://docs.aws.amazon.com/batch/latest/APIReference/API_ListJobs.html


MAX_LISTED, MAX_FILTERED = 1000, 100

Test = Callable[[Job], bool]


def list_jobs(
    document: dict[str, Any], jobs: Jobs, queue: Callable[[str], Resource]
) -> dict[str, Any]:
    """Handle ListJobs.

    Without filters, jobs in one state are listed, by default RUNNING. A filter ignores the state
    and matches no child jobs. Jobs are sorted newest first, child jobs by index.
    """
    given = [key for key in ("jobQueue", "arrayJobId") if document.get(key)]
    if len(given) != 1:
        raise ClientError("Specify exactly one of jobQueue and arrayJobId.")
    filters = document.get("filters") or []
    test = _filter(filters) if filters else _in_state(document)
    if given == ["jobQueue"]:
        where = queue(document["jobQueue"])
        pool = [job for job in jobs.submitted if job.submission.queue is where]
        newest_first = True
    else:
        parent = jobs.find(document["arrayJobId"])
        pool = parent.children if parent is not None and not filters else []
        newest_first = False
    return _page(pool, test, document, newest_first=newest_first)


def _page(
    pool: list[Job], test: Test, document: dict[str, Any], *, newest_first: bool
) -> dict[str, Any]:
    """Return a page by position in the pool, so that state changes do not shift pages."""
    most = paging.size(document, MAX_FILTERED if document.get("filters") else MAX_LISTED)
    start = paging.position(document)
    if newest_first:
        order = range(len(pool) - 1 if start is None else min(start, len(pool) - 1), -1, -1)
    else:
        order = range(start or 0, len(pool))
    rows: list[dict[str, Any]] = []
    for place in order:
        if not test(pool[place]):
            continue
        if len(rows) == most:
            return {"jobSummaryList": rows, "nextToken": str(place)}
        rows.append(summary(pool[place]))
    return {"jobSummaryList": rows}


def _in_state(document: dict[str, Any]) -> Test:
    try:
        status = JobStatus(document.get("jobStatus") or "RUNNING")
    except ValueError:
        raise ClientError(f"Job status {document['jobStatus']} is not valid.") from None
    return lambda job: job.status is status


def _filter(filters: list[dict[str, Any]]) -> Test:
    if len(filters) != 1:
        raise ClientError("Only one filter can be used at a time.")
    validate.require(filters[0], "name", "values")
    name, values = filters[0]["name"], filters[0]["values"]
    if name == "JOB_NAME":
        return lambda job: any(_glob(v.lower(), job.submission.name.lower()) for v in values)
    if name == "JOB_DEFINITION":
        return lambda job: any(_glob(v, job.submission.definition.name) for v in values)
    if name == "AFTER_CREATED_AT":
        moment = _moment(values[0])
        return lambda job: job.submission.created_at > moment
    raise ClientError(f"Filter {name} is not valid.")


def _glob(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern


def _moment(value: str) -> int:
    if not value.isdecimal():
        raise ClientError("Filter value must be a number of milliseconds.")
    return int(value)


# --- SubmitJob: from the request, the definition and the queue to a `Submission` ----------------
#
# Source:
#     https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html


def build(
    document: dict[str, Any],
    size_bytes: int,
    *,
    number: int,
    definitions: Definitions,
    queues: Queues,
) -> Submission:
    """Check a SubmitJob request and merge it with its definition.

    Args:
        document: The request.
        size_bytes: Length of the request's body; Batch accepts up to 30 KiB.
        number: Number of the submission, from 0.
        definitions: All job definitions.
        queues: All queues.

    Raises:
        ClientError: The request breaks a rule.
    """
    validate.submission(document, size_bytes)
    queue = queues.queue(document["jobQueue"])
    _check_queue(queue, document)
    definition = definitions.active(document["jobDefinition"])
    node_properties, ran = _containers(document, definition)
    retry = definition.retry
    if document.get("retryStrategy"):
        retry = retries.parse(document["retryStrategy"])
    timeout = document.get("timeout") or definition.document.get("timeout") or {}
    return Submission(
        job_id=str(uuid.uuid4()),
        number=number,
        name=document["jobName"],
        queue=queue,
        definition=definition,
        containers=ran,
        node_properties=node_properties,
        vcpus=sum(container.resources.vcpus for container in ran),
        parameters={
            **(definition.document.get("parameters") or {}),
            **(document.get("parameters") or {}),
        },
        retry=retry,
        timeout_s=timeout.get("attemptDurationSeconds"),
        size=(document.get("arrayProperties") or {}).get("size"),
        created_at=names.now_ms(),
        tags=dict(document.get("tags") or {}),
        extra=_extra(document, definition),
    )


def _check_queue(queue: Resource, document: dict[str, Any]) -> None:
    if not queue.enabled:
        raise ClientError(f"JobQueue {queue.name} is not in state ENABLED.")
    share = document.get("shareIdentifier")
    if queue.fair_share and not share:
        raise ClientError("shareIdentifier must be specified for a fair-share job queue.")
    if share and not queue.fair_share:
        raise ClientError("shareIdentifier is for job queues with a scheduling policy only.")


def _containers(
    document: dict[str, Any], definition: Definition
) -> tuple[dict[str, Any] | None, tuple[Container, ...]]:
    """Return a multi-node parallel job's nodeProperties and its containers."""
    if definition.multi_node:
        for name in ("containerOverrides", "arrayProperties"):
            if document.get(name):
                raise ClientError(f"{name} should not be set for multi-node parallel jobs.")
        return nodes.overridden(definition.properties, document.get("nodeOverrides") or {})
    if document.get("nodeOverrides"):
        raise ClientError("nodeOverrides should only be set for multi-node parallel jobs.")
    overrides = document.get("containerOverrides") or {}
    container = containers.overridden(definition.properties, overrides, fargate=definition.fargate)
    return None, (container,)


def _extra(document: dict[str, Any], definition: Definition) -> dict[str, Any]:
    extra = {"propagateTags": definition.document.get("propagateTags", False)}
    for name in ("shareIdentifier", "propagateTags"):
        if name in document:
            extra[name] = document[name]
    for name, where in (
        ("schedulingPriority", definition.document),
        ("schedulingPriorityOverride", document),
    ):
        if name in where:
            extra["schedulingPriority"] = where[name]
    return extra


# --- Check of a request's members and types against AWS's service model of Batch ----------------
#
# boto3 makes the same check before it sends a request; other clients need the emulator's.


#: Operations whose members an older botocore lacks: computeResources.scalingPolicy.
_UNCHECKED = ("CreateComputeEnvironment", "UpdateComputeEnvironment")


@functools.cache
def _model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("batch", "service-2"))


def check(operation: str, document: dict[str, Any]) -> None:
    """Check a request against the service model of the installed botocore.

    Args:
        operation: Name such as ``SubmitJob``; operations unknown to this botocore are not checked.
        document: The request.

    Raises:
        ClientError: A member is missing, unknown, or of another type.
    """
    if operation not in _model().operation_names or operation in _UNCHECKED:
        return
    shape = _model().operation_model(operation).input_shape
    report = ParamValidator().validate(document, shape)
    if report.has_errors():
        raise ClientError(report.generate_report())


MAX_DESCRIBED_JOBS = 100
MAX_BULK = 50
MAX_FRONT = 100

_log = logging.getLogger("farcall")


@dataclass(frozen=True)
class Request:
    """HTTP request for Batch."""

    method: str
    path: str
    body: bytes


@dataclass(frozen=True)
class Response:
    """HTTP response: a JSON document, and an error code if it is an error."""

    status: int
    document: dict[str, Any]
    error: str | None = None


class BatchApi:
    """Request handler; call it only on the engine's event loop."""

    def __init__(self, engine: Engine, queues: Queues, limits: Limits) -> None:
        self._engine = engine
        self._queues = queues
        self._limits = limits
        self._definitions = Definitions()
        self._size_bytes = 0
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CancelJob": self._cancel_job,
            "CreateComputeEnvironment": queues.create_environment,
            "CreateJobQueue": queues.create_queue,
            "DeregisterJobDefinition": self._definitions.deregister,
            "DescribeComputeEnvironments": queues.environments.describe,
            "DescribeJobDefinitions": self._definitions.describe,
            "DescribeJobQueues": queues.queues.describe,
            "DescribeJobs": self._describe_jobs,
            "GetJobQueueSnapshot": self._snapshot,
            "ListJobs": self._list_jobs,
            "RegisterJobDefinition": self._register,
            "SubmitJob": self._submit,
            "TerminateJob": self._terminate_job,
            "TerminateJobs": self._terminate_jobs,
        }
        self._by_path = {f"/v1/{name.lower()}": name for name in self._operations}

    def handle(self, request: Request) -> Response:
        """Carry out a request, or reject it as Batch would.

        Raises:
            DropConnectionError: A fault drops the response.
        """
        try:
            name, document = self._parse(request)
            reply = self.call(name, document, len(request.body))
        except ApiError as error:
            return Response(error.status, {"message": str(error)}, error.code)
        except Exception:
            _log.exception("%r %r broke", request.method, request.path)
            message = "The emulated Batch failed; see its log."
            return Response(ApiError.status, {"message": message}, ApiError.code)
        self._limits.leave(name)
        return Response(200, reply)

    def call(self, name: str, document: dict[str, Any], size_bytes: int) -> dict[str, Any]:
        """Carry out an operation.

        Args:
            name: Name of the operation, such as ``SubmitJob``.
            document: The request.
            size_bytes: The request's size, which Batch limits.

        Raises:
            ApiError: Batch would reject the request.
        """
        self._limits.enter(name)
        check(name, document)
        self._size_bytes = size_bytes
        return self._operations[name](document)

    def _parse(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return the operation's name and its parameters from path, query and body."""
        try:
            document = json.loads(request.body or b"{}")
        except ValueError:
            raise ClientError("The request is not JSON.") from None
        name = self._by_path.get(request.path.rstrip("/").lower())
        if name is None:
            raise ClientError(f"farcall's emulated Batch does not support {request.path}.")
        return name, document

    def _register(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._definitions.register(document, self._size_bytes)

    def _submit(self, document: dict[str, Any]) -> dict[str, Any]:
        submission = build(
            document,
            self._size_bytes,
            number=len(self._engine.jobs.submitted),
            definitions=self._definitions,
            queues=self._queues,
        )
        job = self._engine.submit(submission)
        return {"jobArn": job.arn, "jobName": submission.name, "jobId": job.id}

    def _describe_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        validate.require(document, "jobs")
        if len(document["jobs"]) > MAX_DESCRIBED_JOBS:
            raise ClientError(f"Maximum number of jobs supported is {MAX_DESCRIBED_JOBS}")
        jobs = [self._engine.jobs.find(job_id) for job_id in document["jobs"]]
        return {"jobs": [describe.detail(job) for job in jobs if job is not None]}

    def _list_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        return list_jobs(document, self._engine.jobs, self._queues.queue)

    def _cancel_job(self, document: dict[str, Any]) -> dict[str, Any]:
        """Cancel a job or its waiting child jobs; return 200 if there are none."""
        validate.require(document, "jobId")
        validate.reason(document)
        job = self._engine.jobs.find(document["jobId"])
        if job is not None:
            self._engine.cancel(job, document["reason"])
        return {}

    def _terminate_job(self, document: dict[str, Any]) -> dict[str, Any]:
        """Terminate one job. Like Batch, return 200 for unknown IDs."""
        validate.require(document, "jobId")
        validate.reason(document)
        job = self._engine.jobs.find(document["jobId"])
        if job is not None:
            self._engine.terminate(job, document["reason"])
        return {}

    def _terminate_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        validate.require(document, "jobs")
        if len(document["jobs"]) > MAX_BULK:
            raise ClientError(f"Maximum number of jobs supported is {MAX_BULK}")
        for job_id in document["jobs"]:
            self._terminate_job({"jobId": job_id, "reason": document["reason"]})
        return {"successful": list(document["jobs"]), "errors": []}

    def _snapshot(self, document: dict[str, Any]) -> dict[str, Any]:
        validate.require(document, "jobQueue")
        queue = self._queues.queue(document["jobQueue"])
        waiting = (job for job in self._engine.processors if job.submission.queue is queue)
        now = names.now_ms()
        front = [
            {"jobArn": job.arn, "earliestTimeAtPosition": now}
            for job in islice(waiting, MAX_FRONT)
        ]
        return {"frontOfQueue": {"jobs": front, "lastUpdatedAt": now}}
