"""App finder: jobs of apps by the IDs that TorchX knows them by, and lists of them.

An app's ID is ``place:name``, and what a place is the platform says: a queue of Batch, a namespace
of Kubernetes. Its job is found by that name, with one request, and described with its nodes by
another. Many threads of TorchX ask for one app at once: they share an answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from torchx.specs import AppState

from farcall.engine.session import Session, session_for
from farcall.model import clock
from farcall.model.jobs import JobDetail
from farcall.model.settings import Settings
from farcall.torchx import states


class Places(Protocol):
    """What stands before the colon of an app's ID; a class for each platform."""

    def settings(self, place: str) -> Settings:
        """Return the settings to find the apps of a place with.

        Args:
            place: It; empty where only the app's name is known.

        Raises:
            SettingsError: One in ``farcall.toml`` or the environment is wrong.
        """

    def asked(self, cfg: Mapping[str, Any]) -> Settings:
        """Return the settings to list apps with.

        Raises:
            SettingsError: One is wrong.
        """

    async def queues(self, session: Session, place: str) -> list[str]:
        """Return the queues in which apps of a place are, the likeliest first.

        Raises:
            ServiceError: A service refused a call.
        """

    async def named(self, session: Session, name: str, queue: str) -> list[JobDetail]:
        """Return a queue's jobs of one name, the newest first.

        Raises:
            SettingsError: There is no such queue.
            ServiceError: A service refused a call.
        """

    def listed(
        self, session: Session, wanted: Wanted
    ) -> AsyncIterator[tuple[str, list[JobDetail]]]:
        """Yield jobs of the queues that are wanted, with their place, in pages.

        Jobs of others are among them, and what is said of each is less than a description.

        Raises:
            SettingsError: There is no such queue.
            ServiceError: A service refused a call.
        """

    def app_id(self, place: str, detail: JobDetail) -> str:
        """Return what TorchX calls a job."""


class App(NamedTuple):
    """What there is to know of an app.

    Attributes:
        session: Where its job runs.
        detail: Its job.
        nodes: By index, what is known of the nodes: of as many as one request describes.
        namesakes: Number of older jobs of this name.
    """

    session: Session
    detail: JobDetail
    nodes: dict[int, JobDetail]
    namesakes: int

    @property
    def ui_url(self) -> str | None:
        """Its page of the platform; None where there is none."""
        return self.session.backend.links(self.detail).get("job")

    @property
    def note(self) -> str:
        """What is to be said beside its state."""
        if not self.namesakes:
            return ""
        return f"this is the newest of {self.namesakes + 1} jobs of this name"


class _Known(NamedTuple):
    """An app's job, which stays the same.

    Attributes:
        job_id: Its ID.
        nodes: By ID, the indexes of its nodes; empty for a plain job, None where it is not known.
        namesakes: See `App`.
        lost_at: When it counts as lost that the platform does not describe it, by the clock here.
    """

    job_id: str
    nodes: dict[str, int] | None
    namesakes: int = 0
    lost_at: float = -math.inf


class Apps:
    """Finds apps, on one event loop; remembers their jobs' IDs."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: dict[str, _Known] = {}
        self._settings: dict[str, Settings] = {}
        self._looks: dict[str, asyncio.Task[App | None]] = {}

    def note(self, app_id: str, settings: Settings, job_id: str, session: Session) -> None:
        """Note an app submitted here: lists lag behind, and it may be in another region."""
        self._settings[app_id] = settings
        lost_at = clock.now() + session.timing.lost_after_s
        self._known[app_id] = _Known(job_id, None, lost_at=lost_at)

    def forget(self, app_id: str) -> None:
        """Have an app looked for again: it was deleted, where its platform can do that."""
        self._known.pop(app_id, None)

    def settings(self, app_id: str) -> Settings:
        """Return the settings to find an app with.

        Raises:
            SettingsError: One in ``farcall.toml`` or the environment is wrong.
        """
        return self._settings.get(app_id) or self._places.settings(app_id.rpartition(":")[0])

    async def look(self, app_id: str) -> App | None:
        """Return what the platform says of an app now, or None if there is none.

        It takes two requests for the first time, and one later. Who asks while another's question
        is under way gets that one's answer.

        Raises:
            SettingsError: There is no such queue, or a setting is wrong.
            ServiceError: A service refused a call.
        """
        task = self._looks.get(app_id)
        if task is None:
            task = self._looks[app_id] = asyncio.ensure_future(self._look(app_id))
            task.add_done_callback(lambda _: self._looks.pop(app_id, None))
        return await asyncio.shield(task)

    async def _look(self, app_id: str) -> App | None:
        session = await session_for(self.settings(app_id))
        known = self._known.get(app_id)
        while known is not None:
            found = await self._describe(session, app_id, known)
            if found is not None:
                return found
            if clock.now() > known.lost_at:
                del self._known[app_id]  # the platform has forgotten it
                break
            await asyncio.sleep(session.timing.status_pause_s)
        known = await self._find(session, app_id)
        if known is None:
            return None
        self._known[app_id] = known
        return await self._describe(session, app_id, known)

    async def _describe(self, session: Session, app_id: str, known: _Known) -> App | None:
        found = await session.backend.describe([known.job_id, *(known.nodes or ())])
        detail = found.pop(known.job_id, None)
        if detail is None:
            return None
        indexes = known.nodes
        if indexes is None:
            indexes = _nodes_of(session, detail)
            found = await session.backend.describe(indexes) if indexes else {}
            self._known[app_id] = known._replace(nodes=indexes)
        nodes = {indexes[job_id]: node for job_id, node in found.items()}
        return App(session, detail, nodes if indexes else {0: detail}, known.namesakes)

    async def _find(self, session: Session, app_id: str) -> _Known | None:
        place, _, name = app_id.rpartition(":")
        for queue in await self._places.queues(session, place):
            found = await self._places.named(session, name, queue)
            if found:
                return _Known(found[0].job_id, _nodes_of(session, found[0]), len(found) - 1)
        return None


class Wanted(NamedTuple):
    """Which apps are listed; what is left out does not matter.

    Attributes:
        queue: Name of a queue, or a pattern with ``*``.
        user: Who submitted them, as their tags say.
        states: Their states, one of these.
    """

    queue: str = ""
    user: str = ""
    states: Collection[AppState] = ()

    def fits(self, detail: JobDetail) -> bool:
        """Return whether a job is an app of these; the queue is left to the listing."""
        return (
            states.is_app(detail)
            and self.user in ("", states.user_of(detail))
            and (not self.states or states.state_of(detail) in self.states)
        )


async def listed(
    places: Places, settings: Settings, wanted: Wanted
) -> AsyncIterator[tuple[str, JobDetail]]:
    """Yield the apps of queues with their IDs, the newest of each queue first.

    It takes two requests for each page of a queue's jobs, whoever submitted them.

    Raises:
        SettingsError: There is no such queue.
        ServiceError: A service refused a call.
    """
    session = await session_for(settings)
    async for place, page in places.listed(session, wanted):
        found = await session.backend.describe(job.job_id for job in page)
        for job in page:
            detail = found.get(job.job_id)
            if detail is not None and wanted.fits(detail):
                yield places.app_id(place, detail), detail


def _nodes_of(session: Session, detail: JobDetail) -> dict[str, int]:
    """Return by ID the indexes of as many nodes as are described together with their job."""
    most = session.backend.capabilities.described_together - 1
    return {detail.node_id(index): index for index in range(min(detail.nodes, most))}
