"""Batch requests of an app: what a dry run shows, and what is submitted, also after an edit.

A dry run asks AWS for nothing and needs no credentials. Where a role of IAM is given by its name,
its ARN has ACCOUNT in it until the job is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from farcall.model.commands import ENV_RUN
from farcall.model.settings import Settings
from farcall.torchx.batch.mapping import Planned, amend, queue_name
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.request import Request, chosen, write

_HOW = (
    "region",
    "s3_bucket_name",
    "batch_job_role_name",
    "batch_execution_role_name",
    "batch_job_log_group_name",
)


@dataclass
class BatchRequest(Request):
    """What is submitted. All of it may be edited before.

    Attributes:
        definition: The RegisterJobDefinition request. Its name is a hash of the rest, so that
            equal apps share one.
        job: The SubmitJob request without the definition, whose ARN is not known yet.
    """

    definition: dict[str, Any]
    job: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the job, which no other job may have."""
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
        """What TorchX's handles call the app: ``queue:name``."""
        return f"{queue_name(self.queue)}:{self.name}"

    def settings(self) -> Settings:
        """Return the settings to submit with.

        Raises:
            SettingsError: One is wrong.
        """
        return Settings(**{**self.options, "batch_queue": self.queue})

    @property
    def requests(self) -> dict[str, Any]:
        """What `farcall.backends.base.Backend.plan` calls both."""
        return {"RegisterJobDefinition": self.definition, "SubmitJob": self.job}

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands of the nodes; an edit of one is an edit of the request."""
        for each in (*_overrides(self.job), *_containers(self.definition)):
            if each.get("command"):
                yield each["command"]

    def __str__(self) -> str:
        return str(yaml.dump(self.requests, sort_keys=False))


async def plan(planned: Planned) -> BatchRequest:
    """Write the requests of an app. AWS is asked for nothing.

    Raises:
        SettingsError: Batch would refuse the job, or there is no such profile.
        TaskTooLargeError: Commands and variables exceed a limit of Batch.
    """
    settings = planned.settings
    with BatchOptions.in_words():
        found = await write(planned.name, planned.groups, settings)
    definition, job = found["RegisterJobDefinition"], found["SubmitJob"]
    del definition["jobDefinitionName"], job["jobDefinition"]
    amend(list(_containers(definition)), planned.overlays)
    for overrides in _overrides(job):
        overrides["environment"] = [v for v in overrides["environment"] if v["name"] != ENV_RUN]
    if planned.timeout_s is None:
        del job["timeout"]
    if not planned.propagate_tags:
        job["propagateTags"] = False
    return BatchRequest(definition, job, options=chosen(settings, _HOW))


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
