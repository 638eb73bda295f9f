"""Batch queues as the places of apps, whose IDs are ``queue:name``.

Where the queue is left out, the app is looked for in farcall's ``batch_queue``, and then in all
queues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from farcall.aws.refusals import is_denied
from farcall.engine.session import Session
from farcall.model.errors import FarcallError, ServiceError, SettingsError
from farcall.model.jobs import JobDetail
from farcall.model.platforms import BATCH
from farcall.model.settings import Settings
from farcall.model.wording import named
from farcall.torchx.apps import Wanted
from farcall.torchx.batch.mapping import queue_name


class Queues:
    """Queues of one account and region; see `farcall.torchx.apps.Places`."""

    def settings(self, place: str) -> Settings:
        """Return the settings of whoever asks: a queue's name says nothing of its region."""
        return Settings(backend=BATCH)

    def asked(self, cfg: Mapping[str, Any]) -> Settings:
        """Return the settings to list apps with: ``region`` and ``profile`` are read."""
        given = {name: cfg[name] for name in ("region", "profile") if cfg.get(name)}
        return Settings(backend=BATCH, **given)

    async def queues(self, session: Session, place: str) -> list[str]:
        """Return the queue; that of the settings, then all others, where it is left out."""
        if place:
            return [place]
        first = self.settings("").batch_queue
        return sorted(await session.backend.queues(), key=lambda queue: queue != first)

    async def named(self, session: Session, name: str, queue: str) -> list[JobDetail]:
        """Return a queue's jobs of one name, the newest first."""
        try:
            return await session.backend.list_named(name, queue)
        except ServiceError as error:
            raise await _explained(session, queue, error) from error

    async def listed(
        self, session: Session, wanted: Wanted
    ) -> AsyncIterator[tuple[str, list[JobDetail]]]:
        """Yield the jobs of the queues that are wanted, in pages of 100."""
        for queue in await _queues(session, queue_name(wanted.queue)):
            try:
                async for page in session.backend.list_jobs(queue, foreign=True):
                    yield queue, page
            except SettingsError as error:
                raise _no_queue(session, queue, await session.backend.queues()) from error
            except ServiceError as error:
                raise await _explained(session, queue, error) from error

    def app_id(self, place: str, detail: JobDetail) -> str:
        """Return what TorchX calls a job."""
        return f"{place}:{detail.name}"


async def _queues(session: Session, wanted: str) -> list[str]:
    """Return the queue that is wanted; all of those where it is a pattern, or none is."""
    if wanted and not set("*?[") & set(wanted):
        return [wanted]
    there = await session.backend.queues()
    found = [queue for queue in there if fnmatchcase(queue, wanted or "*")]
    if wanted and not found:
        raise _no_queue(session, wanted, there)
    return found


async def _explained(session: Session, queue: str, error: ServiceError) -> FarcallError:
    """Say that a queue is not there, where that is why a list was refused."""
    if not 400 <= error.status < 500 or is_denied(error):
        return error
    try:
        there = await session.backend.queues()
    except ServiceError:  # what was refused first matters more
        return error
    return error if queue in there else _no_queue(session, queue, there)


def _no_queue(session: Session, queue: str, there: list[str]) -> SettingsError:
    some = f"the region has {named(there, 'queue') if there else 'no queue'}"
    return SettingsError(
        f"queue is {queue!r}, which is not a queue in {session.aws.region_and_origin}; {some}",
        option="queue",
    )
