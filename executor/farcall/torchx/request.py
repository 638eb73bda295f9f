"""Batch requests of an app: what a dry run shows, and what is submitted, also after an edit.

A dry run asks AWS for nothing and needs no credentials. Where a role of IAM is given by its name,
its ARN has ACCOUNT in it until the job is submitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from farcall.aws.clients import Aws
from farcall.backends import open_backend
from farcall.backends.base import JobSpec
from farcall.engine.session import Session
from farcall.model.commands import ENV_RUN
from farcall.model.settings import Settings
from farcall.model.workflows import Workflow
from farcall.torchx.mapping import Planned, amend, queue_name
from farcall.torchx.options import in_words

_HOW = (
    "backend",
    "profile",
    "region",
    "credentials",
    "endpoint_url",
    "s3_bucket_name",
    "prefix",
    "s3_encryption",
    "s3_kms_key_id",
    "workflow",
    "batch_job_role_name",
    "batch_execution_role_name",
    "batch_job_log_group_name",
)
"""The options that say where a request is sent, and what is looked up before."""

_LONGEST_RUN = "x" * 64
"""Takes the room of a session's name, which nobody knows yet."""


@dataclass
class BatchRequest:
    """What is submitted. All of it may be edited before.

    Attributes:
        definition: The RegisterJobDefinition request. Its name is a hash of the rest, so that
            equal apps share one.
        job: The SubmitJob request without the definition, whose ARN is not known yet.
        options: farcall's options that say where both are sent.
        images_to_push: By local image the repository and the tag that it is pushed to before.
    """

    definition: dict[str, Any]
    job: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)

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

    def __str__(self) -> str:
        documents = {"RegisterJobDefinition": self.definition, "SubmitJob": self.job}
        return str(yaml.dump(documents, sort_keys=False))


async def plan(planned: Planned) -> BatchRequest:
    """Write the requests of an app. AWS is asked for nothing.

    Raises:
        SettingsError: Batch would refuse the job, or there is no such profile.
        TaskTooLargeError: Commands and variables exceed a limit of Batch.
    """
    settings = planned.settings
    environment = {ENV_RUN: _LONGEST_RUN, **Workflow.of(settings).environment()}
    spec = JobSpec(planned.name, 1, environment, settings, planned.groups)
    access = await Aws.configured(settings)
    try:
        with in_words():
            found = await open_backend(settings, access).plan(spec, offline=True)
    finally:
        await access.close()
    # By way of text: an edit of one role's container is to reach no other's.
    definition, job = (
        json.loads(json.dumps(found[name])) for name in ("RegisterJobDefinition", "SubmitJob")
    )
    del definition["jobDefinitionName"], job["jobDefinition"]
    amend(list(_containers(definition)), planned.overlays)
    for overrides in _overrides(job):
        overrides["environment"] = [v for v in overrides["environment"] if v["name"] != ENV_RUN]
    if planned.timeout_s is None:
        del job["timeout"]
    if not planned.propagate_tags:
        job["propagateTags"] = False
    chosen = settings.model_fields_set
    options = {name: getattr(settings, name) for name in _HOW if name in chosen}
    return BatchRequest(definition, job, options)


async def submit(session: Session, request: BatchRequest) -> str:
    """Submit a request so that one job of its name runs, and return the job's ID.

    Raises:
        SettingsError: Something the request names does not exist.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call, or cannot be reached.
    """
    settings = request.settings()
    environment = {ENV_RUN: session.run, **Workflow.of(settings).environment()}
    requests = {"RegisterJobDefinition": request.definition, "SubmitJob": request.job}
    job = JobSpec(request.name, 1, environment, settings, requests=requests)
    with session.at_work(), in_words():
        await session.check(settings)
        return await session.launcher.launch(job)


def commands(request: BatchRequest) -> Iterator[list[str]]:
    """Yield the commands of a request's nodes; an edit of one is an edit of the request."""
    for each in (*_overrides(request.job), *_containers(request.definition)):
        if each.get("command"):
            yield each["command"]


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
