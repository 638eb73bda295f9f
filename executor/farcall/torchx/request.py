"""Requests of an app for dry runs and submission, also after an edit.

A dry run makes no requests and needs no credentials.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from farcall.aws.clients import Aws
from farcall.backends import open_backend
from farcall.backends.base import JobSpec
from farcall.config.settings import Settings
from farcall.engine.launcher import command_of
from farcall.engine.session import Session
from farcall.model.commands import ENV_RUN
from farcall.model.workflows import Workflow
from farcall.torchx.roles import Planned

_HOW = (
    "backend",
    "profile",
    "credentials",
    "endpoint_url",
    "prefix",
    "s3_encryption",
    "s3_kms_key_id",
    "workflow",
)
"""Options that determine the request's destination on every platform."""

_LONGEST_RUN = "x" * 64
"""Placeholder with a session name's maximum length; the name is not known yet."""


@dataclass(kw_only=True)
class Request(ABC):
    """Submission, which may be edited first; one subclass per platform.

    Attributes:
        options: farcall's options that determine the request's destination.
        images_to_push: Local image to the repository and tag that it is pushed to before.
    """

    options: dict[str, Any] = field(default_factory=dict)
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique name of the job."""

    @property
    @abstractmethod
    def app_id(self) -> str:
        """The app's ID in TorchX's handles."""

    @property
    @abstractmethod
    def requests(self) -> dict[str, Any]:
        """The platform's requests, named as in `farcall.backends.base.Backend.plan`."""

    @abstractmethod
    def settings(self) -> Settings:
        """Return the settings for the submission.

        Raises:
            SettingsError: A setting is wrong.
        """

    @abstractmethod
    def commands(self) -> Iterator[list[str]]:
        """Yield the nodes' commands; editing a command edits the request."""


def chosen(settings: Settings, more: Iterable[str]) -> dict[str, Any]:
    """Return the options for the request's destination and for lookups before it."""
    set_ = settings.model_fields_set
    return {name: getattr(settings, name) for name in (*_HOW, *more) if name in set_}


async def write(planned: Planned[Any]) -> dict[str, Any]:
    """Build a job's requests without contacting the platform.

    Raises:
        SettingsError: The platform would reject the job, or the profile does not exist.
        TaskTooLargeError: Commands and variables exceed a limit of the platform.
    """
    settings = planned.settings
    spec = command_of(settings, planned.groups, planned.name, _LONGEST_RUN)
    access = await Aws.configured(settings)
    try:
        planned_requests = await open_backend(settings, access).plan(spec, offline=True)
    finally:
        await access.close()
    # Copy through JSON, so that editing one role's container does not change another's.
    written: dict[str, Any] = json.loads(json.dumps(planned_requests))
    return written


async def submit(session: Session, request: Request) -> str:
    """Submit a request exactly once, and return the job's ID.

    Raises:
        SettingsError: A resource that the request names does not exist.
        SubmissionError: The platform rejected the job.
        ServiceError: A service rejected a call or cannot be reached.
    """
    with session.at_work():
        await session.check(request.settings())
        return await session.launcher.launch(spec_of(session, request))


def spec_of(session: Session, request: Request) -> JobSpec:
    """Build the JobSpec for a request."""
    settings = request.settings()
    environment = {ENV_RUN: session.run, **Workflow(settings.workflow_name).environment()}
    return JobSpec(request.name, 1, environment, settings, requests=request.requests)
