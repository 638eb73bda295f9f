"""TorchX scheduler ``aws_batch``: apps as command jobs of AWS Batch."""

from __future__ import annotations

from typing import Any, ClassVar

from torchx.schedulers.api import Scheduler
from torchx.specs import AppDef

from farcall.model.settings import Settings
from farcall.torchx.apps import App, Places
from farcall.torchx.batch import mapping, request
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.batch.places import Queues
from farcall.torchx.batch.request import BatchRequest
from farcall.torchx.scheduler import FarcallScheduler


class BatchScheduler(FarcallScheduler[BatchOptions], Scheduler[BatchOptions]):
    """Runs TorchX's apps as command jobs of AWS Batch."""

    NAME = mapping.SCHEDULER
    OPTIONS = BatchOptions
    PLACES: ClassVar[Places] = Queues()

    def _planned(self, app: AppDef, cfg: BatchOptions) -> mapping.Planned:
        return mapping.job_of(app, cfg, name=mapping.name_of(app, cfg))

    async def _written(self, planned: mapping.Planned) -> BatchRequest:
        return await request.plan(planned)

    def _read_back(self, requests: dict[str, Any], app: App, settings: Settings) -> BatchRequest:
        options = {"region": app.session.aws.region}
        return BatchRequest(
            requests["RegisterJobDefinition"], requests["SubmitJob"], options=options
        )
