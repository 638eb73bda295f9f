"""TorchX scheduler ``aws_batch``: apps as command jobs of AWS Batch."""

from __future__ import annotations

from typing import Any, ClassVar

from torchx.schedulers.api import Scheduler
from torchx.specs import AppDef

from farcall.config.settings import Settings
from farcall.torchx.apps import App, Places
from farcall.torchx.batch import mapping
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.batch.queues import Queues
from farcall.torchx.batch.request import BatchRequest, of_requests
from farcall.torchx.roles import Planned
from farcall.torchx.scheduler import FarcallScheduler


class BatchScheduler(FarcallScheduler[BatchOptions], Scheduler[BatchOptions]):
    """Scheduler that runs TorchX apps as AWS Batch command jobs."""

    NAME = mapping.SCHEDULER
    OPTIONS = BatchOptions
    PLACES: ClassVar[Places] = Queues()

    def _planned(self, app: AppDef, cfg: BatchOptions) -> Planned[BatchOptions]:
        return mapping.job_of(app, cfg, name=mapping.name_of(app, cfg))

    def _request(self, planned: Planned[BatchOptions], requests: dict[str, Any]) -> BatchRequest:
        return of_requests(planned, requests)

    def _read_back(self, requests: dict[str, Any], app: App, settings: Settings) -> BatchRequest:
        options = {"region": app.session.aws.region}
        return BatchRequest(
            requests["RegisterJobDefinition"], requests["SubmitJob"], options=options
        )
