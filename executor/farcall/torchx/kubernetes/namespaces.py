"""Namespaces as the places of apps, whose IDs are ``namespace:name``.

The namespace defaults to farcall's option, and then to the kubeconfig's context.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from farcall.config.settings import Settings
from farcall.engine.session import Session
from farcall.model.jobs import JobDetail
from farcall.model.names import KUBERNETES
from farcall.torchx.apps import Wanted

_WHOLE = ""
"""Backends' name for the whole namespace, used instead of a queue's name."""

_CONNECTION = ("kubeconfig", "context", "namespace")


class Namespaces:
    """Namespaces of one cluster; see `farcall.torchx.apps.Places`."""

    def settings(self, cfg: Mapping[str, Any], place: str = "") -> Settings:
        """Return the settings with ``kubeconfig``, ``context`` and the namespace."""
        given: dict[str, Any] = {name: cfg[name] for name in _CONNECTION if cfg.get(name)}
        given |= {"namespace": place} if place else {}
        return Settings(backend=KUBERNETES, **given)

    async def named(self, session: Session, place: str, name: str) -> list[JobDetail]:
        """Return the job with a name in the session's namespace."""
        return await session.backend.list_named(name, _WHOLE)

    async def listed(
        self, session: Session, wanted: Wanted
    ) -> AsyncIterator[tuple[str, list[JobDetail]]]:
        """Yield the namespace's jobs in wanted queues, in pages."""
        async for page in session.backend.list_jobs(_WHOLE, foreign=True):
            jobs = [job for job in page if fnmatchcase(job.queue, wanted.queue or "*")]
            if jobs:
                yield _WHOLE, jobs

    def app_id(self, place: str, detail: JobDetail) -> str:
        """Return a job's app ID in TorchX."""
        return f"{detail.log_group}:{detail.job_id}"  # the namespace holds its pods' logs
