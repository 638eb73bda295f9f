"""A Batch that keeps books and runs nothing: whoever asks for its jobs plays them."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

from farcall_runtime.contract import ENV_BUNDLE, Location

ACCOUNT = "123456789012"
REGION = "us-east-1"
_ARN = f"arn:aws:batch:{REGION}:{ACCOUNT}"
_MOST_DESCRIBED = 100


@dataclass(eq=False)
class PlayedJob:
    """A plain job, or an array as a whole.

    Attributes:
        id: The job's ID.
        name: The job's name.
        environment: Of the definition and the overrides.
        size: Number of tasks.
        is_array: Whether it is an array job.
        ended: Number of tasks whose outcome is stored.
    """

    id: str
    name: str
    environment: dict[str, str]
    size: int
    is_array: bool
    ended: int = 0

    def describe(self) -> dict[str, Any]:
        """Return what DescribeJobs says of it."""
        done = self.ended == self.size
        document = {
            "jobId": self.id,
            "jobName": self.name,
            "jobQueue": f"{_ARN}:job-queue/benchmark",
            "jobDefinition": f"{_ARN}:job-definition/benchmark:1",
            "status": "SUCCEEDED" if done else "RUNNING",
            "startedAt": 0,
            "container": {"exitCode": 0} if done else {},
        }
        if self.is_array:
            counts = {"RUNNING": self.size - self.ended, "SUCCEEDED": self.ended, "FAILED": 0}
            document["arrayProperties"] = {"size": self.size, "statusSummary": counts}
        return document


class Queue:
    """One queue, its definitions and its jobs.

    Attributes:
        waiting: Jobs nobody plays yet.
    """

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[PlayedJob] = asyncio.Queue()
        self._definitions: dict[str, dict[str, Any]] = {}
        self._jobs: dict[str, PlayedJob] = {}
        self._by_mark: dict[str, PlayedJob] = {}
        self._operations = {
            "describejobqueues": ("DescribeJobQueues", self._describe_queues),
            "describejobdefinitions": ("DescribeJobDefinitions", self._describe_definitions),
            "registerjobdefinition": ("RegisterJobDefinition", self._register),
            "submitjob": ("SubmitJob", self._submit),
            "describejobs": ("DescribeJobs", self._describe_jobs),
            "listjobs": ("ListJobs", lambda _: {"jobSummaryList": []}),
            "terminatejob": ("TerminateJob", lambda _: {}),
            "terminatejobs": ("TerminateJobs", lambda _: {"successful": [], "errors": []}),
        }

    def answer(self, path: str, document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Carry an operation out; return its name and its reply."""
        name, operation = self._operations[path.rpartition("/")[2]]
        return name, operation(document)

    def note_stored(self, name: str) -> None:
        """Count a task as ended when what it stores last is stored.

        Args:
            name: Bucket and key of the object.
        """
        job = self._by_mark.get(name) or self._by_mark.get(name.rpartition("/")[0])
        if job is not None:
            job.ended = min(job.size, job.ended + 1)

    def _describe_queues(self, document: dict[str, Any]) -> dict[str, Any]:
        return {
            "jobQueues": [
                {"jobQueueName": name, "state": "ENABLED", "status": "VALID"}
                for name in document["jobQueues"]
            ]
        }

    def _describe_definitions(self, document: dict[str, Any]) -> dict[str, Any]:
        found = self._definitions.get(document.get("jobDefinitionName", ""))
        return {"jobDefinitions": [found] if found else []}

    def _register(self, document: dict[str, Any]) -> dict[str, Any]:
        name = document["jobDefinitionName"]
        arn = f"{_ARN}:job-definition/{name}:1"
        reply = {"jobDefinitionName": name, "jobDefinitionArn": arn, "revision": 1}
        self._definitions[name] = {**document, **reply}
        return reply

    def _submit(self, document: dict[str, Any]) -> dict[str, Any]:
        name = document["jobDefinition"].rpartition("/")[2].partition(":")[0]
        properties = self._definitions[name]["containerProperties"]
        overrides = document.get("containerOverrides", {})
        environment = {
            item["name"]: item["value"]
            for item in (*properties.get("environment", ()), *overrides.get("environment", ()))
        }
        array = document.get("arrayProperties")
        size = array["size"] if array else 1
        job = PlayedJob(
            str(uuid.uuid4()), document["jobName"], environment, size, is_array=bool(array)
        )
        self._jobs[job.id] = job
        self._by_mark[_mark(environment)] = job
        self.waiting.put_nowait(job)
        return {"jobId": job.id, "jobName": job.name, "jobArn": f"{_ARN}:job/{job.id}"}

    def _describe_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        ids = document["jobs"][:_MOST_DESCRIBED]
        return {"jobs": [self._jobs[i].describe() for i in ids if i in self._jobs]}


def _mark(environment: dict[str, str]) -> str:
    """Return the name of the last object a job stores; of farcall's, what comes before the index.

    The peer's container stores ``io_output-...json`` after ``result-...pkl``.
    """
    if ENV_BUNDLE in environment:
        where = Location.parse(environment[ENV_BUNDLE])
        return f"{where.bucket}/{where.outcome_key(0).rpartition('/')[0]}"
    stem = environment["RESULT_FILENAME"].rpartition(".")[0].replace("result", "io_output")
    return f"{environment['S3_BUCKET_NAME']}/{stem}.json"
