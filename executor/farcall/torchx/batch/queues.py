"""Queues as the places of apps, whose IDs are ``queue:name``.

If the queue is omitted, farcall searches its option ``queue``, and then all queues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from farcall.config.settings import Settings
from farcall.engine.session import Session
from farcall.model.jobs import JobDetail
from farcall.model.names import BATCH
from farcall.torchx.apps import Wanted
from farcall.torchx.batch.mapping import queue_name


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
            jobs = await session.backend.list_named(name, queue)
            if jobs:
                return jobs
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
