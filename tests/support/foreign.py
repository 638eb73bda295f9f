"""Jobs and job definitions that were not created with farcall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INTRUDER = {
    "jobDefinitionName": "intruder",
    "type": "container",
    "containerProperties": {
        "image": "any",
        "command": ["true"],
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "128"},
        ],
    },
}
"""A job definition that only known users may register."""


def submit(
    batch: Any,
    queue: str,
    *,
    definition: str = "others",
    name: str = "foreign",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Submit a job without farcall; return its ID.

    Args:
        batch: A boto3 client.
        definition: Name of the job definition. It is registered only if it is missing, because
            other tests count the definitions named ``farcall-*``.
        environment: Environment variables of the job.
    """
    if not _is_known(batch, definition):
        batch.register_job_definition(
            jobDefinitionName=definition,
            type="container",
            containerProperties={
                "image": "busybox",
                "command": ["true"],
                "resourceRequirements": [
                    {"type": "VCPU", "value": "1"},
                    {"type": "MEMORY", "value": "64"},
                ],
            },
        )
    said = [{"name": key, "value": value} for key, value in (environment or {}).items()]
    job = batch.submit_job(
        jobName=name,
        jobQueue=queue,
        jobDefinition=definition,
        containerOverrides={"environment": said},
    )
    return job["jobId"]


def _is_known(batch: Any, definition: str) -> bool:
    found = batch.describe_job_definitions(jobDefinitionName=definition, status="ACTIVE")
    return bool(found["jobDefinitions"])
