"""Batch requests of an app, for dry runs and submission.

A dry run does not call AWS and needs no credentials. If an IAM role is given by name, its ARN
contains ACCOUNT until the job is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from farcall.config.settings import Settings
from farcall.model.commands import ENV_RUN
from farcall.torchx import roles
from farcall.torchx.batch import mapping
from farcall.torchx.batch.mapping import queue_name
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.request import Request, chosen
from farcall.torchx.roles import Planned

_SUBMISSION_OPTIONS = (
    "region",
    "s3_bucket_name",
    "batch_job_role_name",
    "batch_execution_role_name",
    "batch_job_log_group_name",
)


@dataclass
class BatchRequest(Request):
    """Submission, which may be edited before it is sent.

    Attributes:
        definition: The RegisterJobDefinition request. Its name is a hash of the rest, so that
            equal apps share a definition.
        job: The SubmitJob request without the definition, whose ARN is not known yet.
    """

    definition: dict[str, Any]
    job: dict[str, Any]

    @property
    def name(self) -> str:
        """Unique name of the job."""
        return str(self.job["jobName"])

    @name.setter
    def name(self, name: str) -> None:
        self.job["jobName"] = name

    @property
    def queue(self) -> str:
        """Name or ARN of the queue."""
        return str(self.job["jobQueue"])

    @queue.setter
    def queue(self, queue: str) -> None:
        self.job["jobQueue"] = queue

    @property
    def app_id(self) -> str:
        """The app's ID in TorchX's handles: ``queue:name``."""
        return f"{queue_name(self.queue)}:{self.name}"

    def settings(self) -> Settings:
        """Return the settings for the submission.

        Raises:
            SettingsError: A setting is wrong.
        """
        return Settings(**{**self.options, "queue": self.queue})

    @property
    def requests(self) -> dict[str, Any]:
        """Both requests under the names that `farcall.backends.base.Backend.plan` uses."""
        return {"RegisterJobDefinition": self.definition, "SubmitJob": self.job}

    def commands(self) -> Iterator[list[str]]:
        """Yield the nodes' commands; editing a command edits the request."""
        for each in (*_overrides(self.job), *_containers(self.definition)):
            if each.get("command"):
                yield each["command"]

    def __str__(self) -> str:
        return str(yaml.dump(self.requests, sort_keys=False))


def of_requests(planned: Planned[BatchOptions], requests: dict[str, Any]) -> BatchRequest:
    """Return an app's request with all fields that its roles and options set.

    Args:
        planned: The app.
        requests: The requests for the app's node groups; they are changed in place.

    Raises:
        SettingsError: A role's overlay cannot be merged.
    """
    definition, job = requests["RegisterJobDefinition"], requests["SubmitJob"]
    del definition["jobDefinitionName"], job["jobDefinition"]
    for container, overlay in zip(_containers(definition), planned.details, strict=False):
        roles.merge(container, overlay, mapping.SCHEDULER, "container")
    for overrides in _overrides(job):
        overrides["environment"] = [v for v in overrides["environment"] if v["name"] != ENV_RUN]
    if planned.options.timeout_s is None:
        del job["timeout"]
    if not planned.options.propagate_tags:
        job["propagateTags"] = False
    return BatchRequest(definition, job, options=chosen(planned.settings, _SUBMISSION_OPTIONS))


def _containers(definition: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "containerProperties" in definition:
        yield definition["containerProperties"]
    for each in definition.get("nodeProperties", {}).get("nodeRangeProperties", ()):
        yield each["container"]


def _overrides(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "containerOverrides" in job:
        yield job["containerOverrides"]
    for each in job.get("nodeOverrides", {}).get("nodePropertyOverrides", ()):
        yield each["containerOverrides"]
