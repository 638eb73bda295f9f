"""TorchX scheduler ``aws_batch``: apps as command jobs of AWS Batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import yaml
from torchx.schedulers.api import Scheduler
from torchx.specs import AppDef

from farcall.config.settings import Settings
from farcall.engine.session import Session
from farcall.model.commands import ENV_RUN
from farcall.model.jobs import JobDetail
from farcall.model.names import BATCH
from farcall.torchx import roles
from farcall.torchx.apps import App, Places, Wanted
from farcall.torchx.batch import mapping
from farcall.torchx.batch.mapping import queue_name
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.request import Request, chosen
from farcall.torchx.roles import Planned
from farcall.torchx.scheduler import FarcallScheduler

# --- Batch requests of an app for dry runs and submission, also after an edit -------------------
#
# A dry run does not call AWS and needs no credentials. If an IAM role is given by name, its ARN
# contains ACCOUNT until the job is submitted.


_HOW = (
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


def of_requests(planned: Planned[BatchOptions], found: dict[str, Any]) -> BatchRequest:
    """Return an app's request with all fields that its roles and options set.

    Args:
        planned: The app.
        found: The requests for the app's node groups; they are changed in place.

    Raises:
        SettingsError: A role's overlay cannot be merged.
    """
    definition, job = found["RegisterJobDefinition"], found["SubmitJob"]
    del definition["jobDefinitionName"], job["jobDefinition"]
    for container, overlay in zip(_containers(definition), planned.details, strict=False):
        roles.merge(container, overlay, mapping.SCHEDULER, "container")
    for overrides in _overrides(job):
        overrides["environment"] = [v for v in overrides["environment"] if v["name"] != ENV_RUN]
    if planned.options.timeout_s is None:
        del job["timeout"]
    if not planned.options.propagate_tags:
        job["propagateTags"] = False
    return BatchRequest(definition, job, options=chosen(planned.settings, _HOW))


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


# --- Batch queues as the places of apps, whose IDs are ``queue:name`` ---------------------------
#
# If the queue is omitted, farcall searches its option ``queue``, and then all queues.


class Queues:
    """Queues of one account and region; see `farcall.torchx.apps.Places`."""

    def settings(self, cfg: Mapping[str, Any], place: str = "") -> Settings:
        """Return the settings with ``region`` and ``profile``; a queue's name lacks both."""
        given = {name: cfg[name] for name in ("region", "profile") if cfg.get(name)}
        return Settings(backend=BATCH, **given)

    async def named(self, session: Session, place: str, name: str) -> list[JobDetail]:
        """Return the jobs of a queue; if it is omitted, of the first queue that has any."""
        queues = [place]
        if not place:
            first = self.settings({}).queue
            queues = sorted(await session.backend.queues(), key=lambda queue: queue != first)
        for queue in queues:
            found = await session.backend.list_named(name, queue)
            if found:
                return found
        return []

    async def listed(
        self, session: Session, wanted: Wanted
    ) -> AsyncIterator[tuple[str, list[JobDetail]]]:
        """Yield the jobs of the wanted queues, in pages of 100."""
        for queue in await _queues(session, queue_name(wanted.queue)):
            async for page in session.backend.list_jobs(queue, foreign=True):
                yield queue, page

    def app_id(self, place: str, detail: JobDetail) -> str:
        """Return a job's app ID in TorchX."""
        return f"{place}:{detail.name}"


async def _queues(session: Session, wanted: str) -> list[str]:
    """Return the wanted queue, a pattern's matches, or all queues by default."""
    if wanted and not set("*?[") & set(wanted):
        return [wanted]
    there = await session.backend.queues()
    return [queue for queue in there if fnmatchcase(queue, wanted or "*")]


class BatchScheduler(FarcallScheduler[BatchOptions], Scheduler[BatchOptions]):
    """Scheduler that runs TorchX apps as AWS Batch command jobs."""

    NAME = mapping.SCHEDULER
    OPTIONS = BatchOptions
    PLACES: ClassVar[Places] = Queues()

    def _planned(self, app: AppDef, cfg: BatchOptions) -> Planned[BatchOptions]:
        return mapping.job_of(app, cfg, name=mapping.name_of(app, cfg))

    def _request(self, planned: Planned[BatchOptions], found: dict[str, Any]) -> BatchRequest:
        return of_requests(planned, found)

    def _read_back(self, requests: dict[str, Any], app: App, settings: Settings) -> BatchRequest:
        options = {"region": app.session.aws.region}
        return BatchRequest(
            requests["RegisterJobDefinition"], requests["SubmitJob"], options=options
        )
