"""Fixtures: jobs of a fake cloud, and a session on it."""

import pytest

from farcall import BatchExecutor
from farcall.model.jobs import JobStatus
from farcall.operations.catalog import Catalog
from tests.support.patience import until_async

ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED)


@pytest.fixture
async def executor(cloud):
    """Executor of small jobs with one attempt; concurrent submissions form one array job."""
    async with BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0.1) as opened:
        yield opened


@pytest.fixture
def found(session):
    """Return a function that waits for one of some states, by default until the end."""

    async def wait(job_id, *statuses):
        async def look():
            entry = (await Catalog(session.backend).describe([job_id])).get(job_id)
            is_so = entry is not None and entry.detail.status in (statuses or ENDED)
            return entry if is_so else None

        return await until_async(look)

    return wait
