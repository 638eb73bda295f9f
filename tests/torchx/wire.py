"""What AWS was told of an app: its job and its definition, merged as Batch merges them."""

from __future__ import annotations

import os
from typing import Any

import boto3
from torchx.runner import Runner
from torchx.specs import AppDef, AppDryRunInfo


class Told:
    """A job of an app, as Batch describes it.

    Attributes:
        app_id: What the handle ends in.
        job: What DescribeJobs says.
        definition: What DescribeJobDefinitions says.
    """

    def __init__(self, app_id: str, job: dict[str, Any], definition: dict[str, Any]) -> None:
        self.app_id = app_id
        self.job = job
        self.definition = definition

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """What is said of each range of nodes."""
        found: list[dict[str, Any]] = self.job["nodeProperties"]["nodeRangeProperties"]
        return found

    @property
    def containers(self) -> list[dict[str, Any]]:
        """What the containers of each role are run with."""
        if "nodeProperties" not in self.job:
            return [self.job["container"]]
        return [each["container"] for each in self.ranges]

    def env(self, role: int = 0) -> dict[str, str]:
        """Return the variables of a role's containers."""
        return {each["name"]: each["value"] for each in self.containers[role]["environment"]}

    def resources(self, role: int = 0) -> dict[str, str]:
        """Return the resources of a role's containers."""
        found = self.containers[role]["resourceRequirements"]
        return {each["type"]: each["value"] for each in found}

    def mounts(self, role: int = 0) -> list[tuple[dict[str, Any], str, bool]]:
        """Return source, path and whether it is read-only of each mount."""
        volumes = {each["name"]: each for each in self.containers[role]["volumes"]}
        return [
            (
                {k: v for k, v in volumes[each["sourceVolume"]].items() if k != "name"},
                each["containerPath"],
                each["readOnly"],
            )
            for each in self.containers[role]["mountPoints"]
        ]


class Wire:
    """Submits apps by a Runner, and asks Batch what came of it.

    Attributes:
        runner: The Runner.
        batch: A client of Batch that is none of farcall's.
        queue: Name of the queue.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.batch = boto3.client("batch")
        self.queue = os.environ["FARCALL_BATCH_QUEUE"]

    def told(self, app: AppDef, **options: Any) -> Told:
        """Submit an app, and return what Batch was told."""
        return self.of(self.runner.run(app, "aws_batch", {"queue": self.queue, **options}))

    def dryrun(self, app: AppDef, **options: Any) -> AppDryRunInfo[Any, Any]:
        """Return what would be submitted."""
        return self.runner.dryrun(app, "aws_batch", {"queue": self.queue, **options})

    def scheduled(self, info: AppDryRunInfo[Any, Any]) -> Told:
        """Submit what a dry run returned, and return what Batch was told."""
        return self.of(self.runner.schedule(info))

    def of(self, handle: str) -> Told:
        """Return what Batch was told of a job."""
        app_id = handle.rpartition("/")[2]
        [job_id] = self.named(app_id)
        [job] = self.batch.describe_jobs(jobs=[job_id])["jobs"]
        [definition] = self.batch.describe_job_definitions(jobDefinitions=[job["jobDefinition"]])[
            "jobDefinitions"
        ]
        return Told(app_id, job, definition)

    def named(self, app_id: str) -> list[str]:
        """Return the IDs of the jobs of an app."""
        queue, name = app_id.split(":")
        found = self.batch.list_jobs(
            jobQueue=queue, filters=[{"name": "JOB_NAME", "values": [name]}]
        )
        return [each["jobId"] for each in found["jobSummaryList"]]

    def definitions(self) -> set[str]:
        """Return the definitions that there are."""
        pages = self.batch.get_paginator("describe_job_definitions").paginate(status="ACTIVE")
        return {each["jobDefinitionArn"] for page in pages for each in page["jobDefinitions"]}

    def jobs(self) -> set[str]:
        """Return the jobs that there are."""
        every = [{"name": "AFTER_CREATED_AT", "values": ["1"]}]
        pages = self.batch.get_paginator("list_jobs").paginate(jobQueue=self.queue, filters=every)
        return {each["jobId"] for page in pages for each in page["jobSummaryList"]}

    def make_queue(self, name: str, **fields: Any) -> str:
        """Make a queue, and return its name."""
        self.batch.create_compute_environment(
            computeEnvironmentName=f"{name}-ce", type="UNMANAGED", serviceRole="role"
        )
        order = [{"order": 1, "computeEnvironment": f"{name}-ce"}]
        self.batch.create_job_queue(
            jobQueueName=name, priority=1, computeEnvironmentOrder=order, **fields
        )
        return name
