"""TorchX apps as jobs of AWS Batch."""

from __future__ import annotations

from typing import Any

from torchx.specs import AppDef

from farcall.torchx.batch.mapping import job_of
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.roles import Planned


def planned(of: AppDef, **options: Any) -> Planned[BatchOptions]:
    """Return an app as a job in the queue `q`."""
    return job_of(of, BatchOptions(**{"queue": "q", **options}), name="hello-1")
