"""The operations of the embedded Batch, from JSON to JSON.

Operations it lacks are refused with a sentence instead of being imitated badly: EKS,
service jobs, consumable resources and scheduling policies.

Source:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_Operations.html
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, unquote

from farcall_local import names
from farcall_local.batch import describe, listing, shapes, submissions, validate
from farcall_local.batch.definitions import Definitions
from farcall_local.batch.engine import Engine
from farcall_local.batch.errors import ApiError, ClientError
from farcall_local.batch.jobs import Job
from farcall_local.batch.limits import Limits
from farcall_local.batch.queues import Queues, Resource

MAX_DESCRIBED_JOBS = 100
MAX_BULK = 50
MAX_FRONT = 100

TAGS_PATH = "/v1/tags/"

_log = logging.getLogger("farcall")


@dataclass(frozen=True)
class Request:
    """An HTTP request for Batch."""

    method: str
    path: str
    query: str
    body: bytes


@dataclass(frozen=True)
class Response:
    """An HTTP answer: a JSON document, and the error's code if it is one."""

    status: int
    document: dict[str, Any]
    error: str | None = None


class BatchApi:
    """Answers requests. To be called on the engine's event loop only."""

    def __init__(self, engine: Engine, queues: Queues, limits: Limits) -> None:
        self._engine = engine
        self._queues = queues
        self._limits = limits
        self._definitions = Definitions()
        self._size_bytes = 0
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CancelJob": self._cancel_job,
            "CancelJobs": self._cancel_jobs,
            "CreateComputeEnvironment": queues.create_environment,
            "CreateJobQueue": queues.create_queue,
            "DeleteComputeEnvironment": queues.delete_environment,
            "DeleteJobQueue": self._delete_queue,
            "DeregisterJobDefinition": self._definitions.deregister,
            "DescribeComputeEnvironments": queues.describe_environments,
            "DescribeJobDefinitions": self._definitions.describe,
            "DescribeJobQueues": queues.describe_queues,
            "DescribeJobs": self._describe_jobs,
            "GetJobQueueSnapshot": self._snapshot,
            "ListJobs": self._list_jobs,
            "ListTagsForResource": self._list_tags,
            "RegisterJobDefinition": self._register,
            "SubmitJob": self._submit,
            "TagResource": self._tag,
            "TerminateJob": self._terminate_job,
            "TerminateJobs": self._terminate_jobs,
            "UntagResource": self._untag,
            "UpdateComputeEnvironment": queues.update_environment,
            "UpdateJobQueue": queues.update_queue,
        }
        self._by_path = {f"/v1/{name.lower()}": name for name in self._operations}

    def answer(self, request: Request) -> Response:
        """Do what a request asks for, or refuse it as Batch would.

        Raises:
            DropConnectionError: A fault makes the answer get lost.
        """
        try:
            name, document = self._parse(request)
            self._limits.enter(name)
            shapes.check(name, document)
            self._size_bytes = len(request.body)
            reply = self._operations[name](document)
        except ApiError as error:
            return Response(error.status, {"message": str(error)}, error.code)
        except Exception:
            _log.exception("%r %r broke", request.method, request.path)
            message = "The embedded Batch failed; see its log."
            return Response(ApiError.status, {"message": message}, ApiError.code)
        self._limits.leave(name)
        return Response(200, reply)

    def _parse(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return the operation's name and its parameters, wherever they stand."""
        try:
            document = json.loads(request.body or b"{}")
        except ValueError:
            raise ClientError("The request is not JSON.") from None
        if request.path.startswith(TAGS_PATH):
            methods = {
                "GET": "ListTagsForResource",
                "POST": "TagResource",
                "DELETE": "UntagResource",
            }
            document["resourceArn"] = unquote(request.path[len(TAGS_PATH) :])
            if request.method == "DELETE":
                document["tagKeys"] = parse_qs(request.query).get("tagKeys", [])
            return methods.get(request.method, ""), document
        name = self._by_path.get(request.path.rstrip("/").lower())
        if name is None:
            raise ClientError(f"farcall's embedded Batch does not support {request.path}.")
        return name, document

    def _register(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._definitions.register(document, self._size_bytes)

    def _submit(self, document: dict[str, Any]) -> dict[str, Any]:
        submission = submissions.build(
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
        found = [self._engine.jobs.find(job_id) for job_id in document["jobs"]]
        return {"jobs": [describe.detail(job) for job in found if job is not None]}

    def _list_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        return listing.list_jobs(document, self._engine.jobs, self._queues.queue)

    def _cancel_job(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._withdraw(document, self._engine.cancel)

    def _terminate_job(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._withdraw(document, self._engine.terminate)

    def _cancel_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._withdraw_all(document, self._engine.cancel)

    def _terminate_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._withdraw_all(document, self._engine.terminate)

    def _withdraw(
        self, document: dict[str, Any], action: Callable[[Job, str], None]
    ) -> dict[str, Any]:
        """Cancel or terminate one job. Batch answers 200 for IDs it does not know, too."""
        validate.require(document, "jobId")
        validate.reason(document)
        job = self._engine.jobs.find(document["jobId"])
        if job is not None:
            action(job, document["reason"])
        return {}

    def _withdraw_all(
        self, document: dict[str, Any], action: Callable[[Job, str], None]
    ) -> dict[str, Any]:
        validate.require(document, "jobs")
        validate.reason(document)
        if len(document["jobs"]) > MAX_BULK:
            raise ClientError(f"Maximum number of jobs supported is {MAX_BULK}")
        for job_id in document["jobs"]:
            self._withdraw({"jobId": job_id, "reason": document["reason"]}, action)
        return {"successful": list(document["jobs"]), "errors": []}

    def _delete_queue(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._queues.delete_queue(document, self._end_jobs)

    def _end_jobs(self, queue: Resource) -> bool:
        """Terminate the jobs of a queue; say whether all have ended."""
        under_way = [
            job
            for job in self._engine.jobs.submitted
            if job.submission.queue is queue and not job.status.final
        ]
        for job in under_way:
            if not job.withdrawn:
                self._engine.terminate(job, f"Job queue {queue.name} was deleted")
        return not under_way

    def inventory(self) -> dict[str, list[str]]:
        """Return the names of what is there."""
        return {**self._queues.inventory(), "job definitions": self._definitions.inventory()}

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

    def _tags(self, arn: str) -> dict[str, str]:
        """Return the tags of a resource; children and nodes have none of their own."""
        kind, _, name = arn.rpartition(":job")[2].partition("/")
        if kind == "-definition":
            definition = self._definitions.find(name)
            found = definition.tags if definition is not None else None
        elif kind == "" and not {":", "#"} & set(name):
            job = self._engine.jobs.find(name)
            found = job.submission.tags if job is not None else None
        else:
            resource = self._queues.tagged(arn)
            found = resource.tags if resource is not None else None
        if found is None:
            raise ClientError(f"Resource {arn} not found.")
        return found

    def _list_tags(self, document: dict[str, Any]) -> dict[str, Any]:
        return {"tags": self._tags(document["resourceArn"])}

    def _tag(self, document: dict[str, Any]) -> dict[str, Any]:
        tags = self._tags(document["resourceArn"])
        validate.require(document, "tags")
        validate.tags({**tags, **document["tags"]})
        tags.update(document["tags"])
        return {}

    def _untag(self, document: dict[str, Any]) -> dict[str, Any]:
        tags = self._tags(document["resourceArn"])
        for key in document["tagKeys"]:
            tags.pop(key, None)
        return {}
