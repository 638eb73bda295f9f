"""App finder: looks up jobs by TorchX app IDs, and lists apps.

An app's ID is ``place:name``. The platform defines the place: a Batch queue or a Kubernetes
namespace. One request finds the job by its name, and another describes it with its nodes. If many
TorchX threads request one app at once, they share a response.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from torchx.specs import AppState

from farcall.config.settings import Settings
from farcall.engine.session import Session, session_for
from farcall.model import clock
from farcall.model.jobs import JobDetail
from farcall.torchx import states


class Places(Protocol):
    """Queues or namespaces before the colon of an app's ID; one subclass per platform."""

    def settings(self, cfg: Mapping[str, Any], place: str = "") -> Settings:
        """Return the settings for listing apps, or for finding the apps of a place.

        Args:
            cfg: TorchX's options.
            place: The place; empty if only the app's name is known.

        Raises:
            SettingsError: A setting is wrong.
        """

    async def named(self, session: Session, place: str, name: str) -> list[JobDetail]:
        """Return a place's jobs with one name, newest first.

        Raises:
            SettingsError: The queue does not exist.
            ServiceError: A call to a service failed.
        """

    def listed(
        self, session: Session, wanted: Wanted
    ) -> AsyncIterator[tuple[str, list[JobDetail]]]:
        """Yield pages of jobs in the wanted queues, with their places.

        The pages include other users' jobs, and an entry has fewer fields than a description.

        Raises:
            SettingsError: The queue does not exist.
            ServiceError: A call to a service failed.
        """

    def app_id(self, place: str, detail: JobDetail) -> str:
        """Return a job's app ID in TorchX."""


class App(NamedTuple):
    """State of an app.

    Attributes:
        session: The session for the app's region or cluster.
        detail: The app's job.
        nodes: Known nodes by index, as many as one request describes.
        namesakes: Number of older jobs with this name.
    """

    session: Session
    detail: JobDetail
    nodes: dict[int, JobDetail]
    namesakes: int


class _Known(NamedTuple):
    """Immutable facts about an app's job.

    Attributes:
        job_id: The job's ID.
        nodes: Node indexes by node ID; empty for a single-node job, None if unknown.
        namesakes: See `App`.
        lost_at: Local clock time after which a job that the platform does not describe counts as
            lost.
    """

    job_id: str
    nodes: dict[str, int] | None
    namesakes: int = 0
    lost_at: float = -math.inf


class Apps:
    """App lookup on one event loop; caches job IDs."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: dict[str, _Known] = {}
        self._settings: dict[str, Settings] = {}
        self._searches: dict[str, asyncio.Task[App | None]] = {}

    def note(self, app_id: str, settings: Settings, job_id: str, session: Session) -> None:
        """Record an app submitted here, because lists lag and it may be in another region."""
        self._settings[app_id] = settings
        lost_at = clock.now() + session.timing.lost_after_s
        self._known[app_id] = _Known(job_id, None, lost_at=lost_at)

    def forget(self, app_id: str) -> None:
        """Drop a deleted app from the cache, if the platform can delete apps."""
        self._known.pop(app_id, None)

    def settings(self, app_id: str) -> Settings:
        """Return the settings for finding an app.

        Raises:
            SettingsError: A setting in ``farcall.toml`` or the environment is wrong.
        """
        return self._settings.get(app_id) or self._places.settings({}, app_id.rpartition(":")[0])

    async def find(self, app_id: str) -> App | None:
        """Return an app's current state on the platform, or None if it does not exist.

        The first call makes two requests, later calls one. Concurrent callers share one request.

        Raises:
            SettingsError: The queue does not exist, or a setting is wrong.
            ServiceError: A call to a service failed.
        """
        task = self._searches.get(app_id)
        if task is None:
            task = self._searches[app_id] = asyncio.ensure_future(self._search(app_id))
            task.add_done_callback(lambda _: self._searches.pop(app_id, None))
        return await asyncio.shield(task)

    async def _search(self, app_id: str) -> App | None:
        session = await session_for(self.settings(app_id))
        known = self._known.get(app_id)
        while known is not None:
            app = await self._describe(session, app_id, known)
            if app is not None:
                return app
            if clock.now() > known.lost_at:
                del self._known[app_id]  # the platform no longer knows it
                break
            await asyncio.sleep(session.timing.status_pause_s)
        known = await self._find(session, app_id)
        if known is None:
            return None
        self._known[app_id] = known
        return await self._describe(session, app_id, known)

    async def _describe(self, session: Session, app_id: str, known: _Known) -> App | None:
        details = await session.backend.describe([known.job_id, *(known.nodes or ())])
        detail = details.pop(known.job_id, None)
        if detail is None:
            return None
        indexes = known.nodes
        if indexes is None:
            indexes = _nodes_of(session, detail)
            details = await session.backend.describe(indexes) if indexes else {}
            self._known[app_id] = known._replace(nodes=indexes)
        nodes = {indexes[job_id]: node for job_id, node in details.items()}
        return App(session, detail, nodes if indexes else {0: detail}, known.namesakes)

    async def _find(self, session: Session, app_id: str) -> _Known | None:
        place, _, name = app_id.rpartition(":")
        jobs = await self._places.named(session, place, name)
        if not jobs:
            return None
        return _Known(jobs[0].job_id, _nodes_of(session, jobs[0]), len(jobs) - 1)


class Wanted(NamedTuple):
    """Filter for listed apps; an omitted field matches everything.

    Attributes:
        queue: Name of a queue, or a pattern with ``*``.
        user: User in the apps' tags.
        states: Accepted states.
    """

    queue: str = ""
    user: str = ""
    states: Collection[AppState] = ()

    def fits(self, detail: JobDetail) -> bool:
        """Return whether a job is an app that matches; the listing filters the queue."""
        return (
            states.is_app(detail)
            and self.user in ("", states.user_of(detail))
            and (not self.states or states.state_of(detail) in self.states)
        )


async def listed(
    places: Places, settings: Settings, wanted: Wanted
) -> AsyncIterator[tuple[str, JobDetail]]:
    """Yield the apps of queues with their IDs, newest first in each queue.

    Each page of a queue's jobs takes two requests and includes other users' jobs.

    Raises:
        SettingsError: The queue does not exist.
        ServiceError: A call to a service failed.
    """
    session = await session_for(settings)
    async for place, page in places.listed(session, wanted):
        details = await session.backend.describe(job.job_id for job in page)
        for job in page:
            detail = details.get(job.job_id)
            if detail is not None and wanted.fits(detail):
                yield places.app_id(place, detail), detail


def _nodes_of(session: Session, detail: JobDetail) -> dict[str, int]:
    """Return node indexes by ID, as many as one request describes with their job."""
    most = session.backend.capabilities.described_together - 1
    return {detail.node_id(index): index for index in range(min(detail.nodes, most))}
