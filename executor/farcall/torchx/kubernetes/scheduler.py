"""TorchX scheduler ``kubernetes_job``: apps as Jobs of Kubernetes, or as Volcano jobs.

TorchX has a scheduler ``kubernetes`` of its own, for clusters with Volcano. This one stands beside
it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torchx.schedulers.api import Scheduler
from torchx.specs import AppDef

from farcall.engine.session import Session
from farcall.model.settings import Settings
from farcall.torchx.apps import App, Places
from farcall.torchx.kubernetes import mapping, request
from farcall.torchx.kubernetes.options import SCHEDULER, KubernetesOptions
from farcall.torchx.kubernetes.places import Namespaces
from farcall.torchx.kubernetes.request import KubernetesRequest
from farcall.torchx.request import Request, spec_of
from farcall.torchx.scheduler import FarcallScheduler


class KubernetesScheduler(FarcallScheduler[KubernetesOptions], Scheduler[KubernetesOptions]):
    """Runs TorchX's apps as command jobs of Kubernetes."""

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
