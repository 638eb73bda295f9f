"""Reading of jobs' calls and errors for the web UI, with few requests."""

from dataclasses import replace

import pytest

from farcall import BatchExecutor
from farcall.engine.session import session_for
from farcall.model.jobs import JobStatus
from farcall.operations.catalog import Catalog
from farcall.operations.reasons import Reasons
from farcall.testing import fake_cloud
from farcall.ui import jobs
from farcall.ui.jobs import FailureSummaries
from tests.support.patience import until_async


def settle(rate):
    if rate > 0.5:
        raise ValueError(f"singular matrix {rate}")
    return rate


class Account:
    """Account with one session, which records the jobs that are read."""

    def __init__(self, session):
        self._reasons = Reasons(session)
        self.read = []

    async def reasons(self):
        return self

    async def fill(self, entries):
        self.read.append([entry.detail.job_id for entry in entries])
        return await self._reasons.fill(entries)


@pytest.fixture
async def entries():
    """A session, and two undelivered jobs by ID: one that returned and one that failed."""
    with fake_cloud():
        async with BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0) as executor:
            jobs = [await executor.submit(settle, rate) for rate in (0.5, 0.75)]
            session = await session_for(executor.settings)

            async def ended():
                found = await Catalog(session.backend).describe([job.id for job in jobs])
                is_so = all(entry.detail.status.is_final for entry in found.values())
                return found if is_so and len(found) == len(jobs) else None

            found = await until_async(ended)
            yield session, {job.id: found[job.id] for job in jobs}


async def test_calls_and_errors_are_read_once(entries):
    session, found = entries
    account = Account(session)
    summaries = FailureSummaries(account)
    assert set(await summaries.read(found)) == set(found)
    well, failed = (summaries.filled(entry).why for entry in found.values())
    assert (well.call, well.error) == ("settle(rate=0.5)", None)
    assert failed.call == "settle(rate=0.75)"
    assert failed.error == "ValueError: singular matrix 0.75"
    assert [] == await summaries.read(found)
    assert 1 == len(account.read)


async def test_newest_jobs_are_read_first(entries, monkeypatch):
    monkeypatch.setattr(jobs, "_AT_ONCE", 1)
    session, found = entries
    account = Account(session)
    summaries = FailureSummaries(account)
    while summaries.due(found.values()):
        await summaries.read(found)
    newest_first = sorted(found, key=lambda job: found[job].detail.created_at, reverse=True)
    assert [[job] for job in newest_first] == account.read


async def test_finished_job_is_read_again(entries):
    session, found = entries
    _, failed = found
    ended = found[failed]
    found[failed] = replace(ended, detail=replace(ended.detail, status=JobStatus.RUNNING))
    summaries = FailureSummaries(Account(session))
    await summaries.read(found)
    running = summaries.filled(found[failed]).why
    assert (running.call, running.error) == ("settle(rate=0.75)", None)
    found[failed] = ended
    assert [failed] == await summaries.read(found)
    assert summaries.filled(ended).why.error == "ValueError: singular matrix 0.75"
    await summaries.read({})
    assert summaries.filled(ended).why.error is None
