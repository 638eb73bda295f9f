"""Requests of an app: what a dry run shows, and what is submitted, also after an edit.

A dry run asks nobody for anything and needs no credentials.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from farcall.aws.clients import Aws
from farcall.backends import open_backend
from farcall.backends.base import JobSpec
from farcall.engine.sender import command_of
from farcall.engine.session import Session
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.settings import Settings
from farcall.model.workflows import Workflow

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
"""The options that say where a request is sent, whatever the platform."""

_LONGEST_RUN = "x" * 64
"""Takes the room of a session's name, which nobody knows yet."""


@dataclass(kw_only=True)
class Request(ABC):
    """What is submitted. All of it may be edited before; a class for each platform.

    Attributes:
        options: farcall's options that say where it is sent.
        images_to_push: By local image the repository and the tag that it is pushed to before.
    """

    options: dict[str, Any] = field(default_factory=dict)
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the job, which no other job may have."""

    @property
    @abstractmethod
    def app_id(self) -> str:
        """What TorchX's handles call the app."""

    @property
    @abstractmethod
    def requests(self) -> dict[str, Any]:
        """The platform's requests, as `farcall.backends.base.Backend.plan` calls them."""

    @abstractmethod
    def settings(self) -> Settings:
        """Return the settings to submit with.

        Raises:
            SettingsError: One is wrong.
        """

    @abstractmethod
    def commands(self) -> Iterator[list[str]]:
        """Yield the commands of the nodes; an edit of one is an edit of the request."""


def chosen(settings: Settings, more: Iterable[str]) -> dict[str, Any]:
    """Return the options that say where a request is sent, and what is looked up before."""
    set_ = settings.model_fields_set
    return {name: getattr(settings, name) for name in (*_HOW, *more) if name in set_}


async def write(name: str, groups: Sequence[Nodes], settings: Settings) -> dict[str, Any]:
    """Write the platform's requests of a job. Nobody is asked for anything.

    Raises:
        SettingsError: The platform would refuse the job, or there is no such profile.
        TaskTooLargeError: Commands and variables exceed a limit of the platform.
    """
    spec = command_of(settings, groups, name, _LONGEST_RUN)
    access = await Aws.configured(settings)
    try:
        found = await open_backend(settings, access).plan(spec, offline=True)
    finally:
        await access.close()
    # By way of text: an edit of one role's container is to reach no other's.
    written: dict[str, Any] = json.loads(json.dumps(found))
    return written


async def submit(session: Session, request: Request) -> str:
    """Submit a request so that one job of its name runs, and return the job's ID.

    Raises:
        SettingsError: Something the request names does not exist.
        SubmissionError: The platform refused the job.
        ServiceError: A service refused a call, or cannot be reached.
    """
    with session.at_work():
        await session.check(request.settings())
        return await session.launcher.launch(spec_of(session, request))


def spec_of(session: Session, request: Request) -> JobSpec:
    """Describe the job of a request."""
    settings = request.settings()
    environment = {ENV_RUN: session.run, **Workflow.of(settings).environment()}
    return JobSpec(request.name, 1, environment, settings, requests=request.requests)
