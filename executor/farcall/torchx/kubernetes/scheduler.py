"""TorchX scheduler ``kubernetes_job``: apps as Kubernetes or Volcano jobs.

TorchX has its own scheduler ``kubernetes`` for clusters with Volcano. Both can be used together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from torchx.schedulers.api import Scheduler
from torchx.specs import AppDef

from farcall.engine.session import Session
from farcall.model.jobs import JobDetail
from farcall.model.names import KUBERNETES
from farcall.model.settings import Settings
from farcall.torchx.apps import App, Places, Wanted
from farcall.torchx.kubernetes import mapping, request
from farcall.torchx.kubernetes.options import SCHEDULER, KubernetesOptions
from farcall.torchx.kubernetes.request import KubernetesRequest
from farcall.torchx.request import Request, spec_of
from farcall.torchx.scheduler import FarcallScheduler

# --- Kubernetes namespaces as the places of apps, whose IDs are ``namespace:name`` --------------
#
# The namespace defaults to farcall's option, and then to the kubeconfig's context.


_WHOLE = ""
"""Backends' name for the whole namespace, used instead of a queue's name."""

_ASKED = ("kubeconfig", "context", "namespace")


class Namespaces:
    """Namespaces of one cluster; see `farcall.torchx.apps.Places`."""

    def settings(self, place: str) -> Settings:
        """Return the settings for finding the cluster; the place is the namespace."""
        return self.asked({"namespace": place})

    def asked(self, cfg: Mapping[str, Any]) -> Settings:
        """Return the settings for listing: ``kubeconfig``, ``context`` and ``namespace``."""
        given: dict[str, Any] = {name: cfg[name] for name in _ASKED if cfg.get(name)}
        return Settings(backend=KUBERNETES, **given)

    async def queues(self, session: Session, place: str) -> list[str]:
        """Return the only queue: the session's namespace."""
        return [_WHOLE]

    async def named(self, session: Session, name: str, queue: str) -> list[JobDetail]:
        """Return the job with a name."""
        return await session.backend.list_named(name, queue)

    async def listed(
        self, session: Session, wanted: Wanted
    ) -> AsyncIterator[tuple[str, list[JobDetail]]]:
        """Yield the namespace's jobs in wanted queues, in pages."""
        async for page in session.backend.list_jobs(_WHOLE, foreign=True):
            found = [job for job in page if fnmatchcase(job.queue, wanted.queue or "*")]
            if found:
                yield _WHOLE, found

    def app_id(self, place: str, detail: JobDetail) -> str:
        """Return a job's app ID in TorchX."""
        return f"{detail.log_group}:{detail.job_id}"  # the namespace holds its pods' logs


class KubernetesScheduler(FarcallScheduler[KubernetesOptions], Scheduler[KubernetesOptions]):
    """Scheduler that runs TorchX apps as Kubernetes command jobs."""

    NAME = SCHEDULER
    OPTIONS = KubernetesOptions
    PLACES: ClassVar[Places] = Namespaces()

    def _planned(self, app: AppDef, cfg: KubernetesOptions) -> mapping.Planned:
        return mapping.job_of(app, cfg, name=mapping.name_of(app))

    async def _written(self, planned: mapping.Planned) -> KubernetesRequest:
        return await request.plan(planned)

    def _read_back(
        self, requests: dict[str, Any], app: App, settings: Settings
    ) -> KubernetesRequest:
        return request.read_back(requests, settings)

    async def _check(self, session: Session, wanted: Request) -> None:
        assert isinstance(wanted, KubernetesRequest)  # noqa: S101  # says so to the type checker
        if wanted.validate:
            await session.backend.plan(spec_of(session, wanted))
