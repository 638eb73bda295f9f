"""TorchX scheduler ``kubernetes_job``: apps as Kubernetes or Volcano jobs.

TorchX has its own scheduler ``kubernetes`` for clusters with Volcano. Both can be used together.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torchx.schedulers.api import Scheduler
from torchx.specs import AppDef

from farcall.config.settings import Settings
from farcall.engine.session import Session
from farcall.torchx.apps import App, Places
from farcall.torchx.kubernetes import mapping
from farcall.torchx.kubernetes.namespaces import Namespaces
from farcall.torchx.kubernetes.options import SCHEDULER, KubernetesOptions
from farcall.torchx.kubernetes.request import SUBMISSION_OPTIONS, KubernetesRequest, of_documents
from farcall.torchx.request import Request, chosen, spec_of
from farcall.torchx.roles import Planned
from farcall.torchx.scheduler import FarcallScheduler


class KubernetesScheduler(FarcallScheduler[KubernetesOptions], Scheduler[KubernetesOptions]):
    """Scheduler that runs TorchX apps as Kubernetes command jobs."""

    NAME = SCHEDULER
    OPTIONS = KubernetesOptions
    PLACES: ClassVar[Places] = Namespaces()

    def _planned(self, app: AppDef, cfg: KubernetesOptions) -> Planned[KubernetesOptions]:
        return mapping.job_of(app, cfg, name=mapping.name_of(app))

    def _request(
        self, planned: Planned[KubernetesOptions], requests: dict[str, Any]
    ) -> KubernetesRequest:
        return of_documents(planned, requests["objects"])

    def _read_back(
        self, requests: dict[str, Any], app: App, settings: Settings
    ) -> KubernetesRequest:
        return KubernetesRequest(requests["objects"], options=chosen(settings, SUBMISSION_OPTIONS))

    async def _check(self, session: Session, wanted: Request) -> None:
        assert isinstance(wanted, KubernetesRequest)  # noqa: S101  # says so to the type checker
        if wanted.validate:
            await session.backend.plan(spec_of(session, wanted))
