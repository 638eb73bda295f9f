"""Location of a job's objects in the bucket."""

from __future__ import annotations

from typing import Any

from farcall import Job
from farcall_runtime.contract import ENV_BUNDLE, Location


async def place(job: Job[Any]) -> Location:
    """Return the location of a job's bundle, according to Batch."""
    return Location.parse((await job.detail()).environment[ENV_BUNDLE])
