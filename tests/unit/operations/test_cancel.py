"""Reports on jobs to cancel, on the fake cloud."""

import asyncio
import time
from dataclasses import replace

import pytest

from farcall.model.jobs import JobStatus
from farcall.model.workflows import Workflow
from farcall.operations.cancel import cancel, cancel_all, idle, unfinished

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def going(executor, found):
    """Job that runs until it is terminated."""
    job = await executor.submit(time.sleep, 600)
    return await found(job.id, JobStatus.RUNNING)


@pytest.fixture
async def gone(executor, found):
    job = await executor.submit(pow, 2, 3)
    assert await job.result() == 8
    return await found(job.id)


async def test_each_job_is_reported_once(session, going, gone, found):
    going, gone = going.detail.job_id, gone.detail.job_id
    asked = [UNKNOWN_ID, gone, going, going, f"{going}#0"]
    reports = await cancel(session, asked, "enough")
    assert [(each.job_id, each.outcome) for each in reports] == [
        (UNKNOWN_ID, "unknown"),
        (gone, "finished"),
        (going, "cancelling"),
        (f"{going}#0", "node"),
    ]
    _, ended, ending, node = (each.text for each in reports)
    assert ended == f"{gone} has finished: succeeded"
    assert ending == f"{going} was running and is being cancelled"
    assert f"`farcall cancel {going}` to cancel the job with all nodes" in node
    assert "enough" in (await found(going)).detail.status_reason
    (again,) = await cancel(session, [going], "enough")
    assert again.text == f"{going} has finished: cancelled"


async def test_job_of_other_user_is_kept(session, going, found):
    job_id = going.detail.job_id
    (report,) = await cancel(session, [job_id], "enough", user="alice")
    assert report.outcome == "other_user"
    assert f"is a job of {going.user} and is not cancelled. Use --user {going.user}" in report.text
    assert not (await found(job_id, *JobStatus)).detail.status.is_final
    (report,) = await cancel(session, [job_id], "enough", user=going.user)
    assert report.outcome == "cancelling"


async def test_fully_named_array_is_terminated_once(executor, session, found, monkeypatch):
    jobs = await asyncio.gather(*(executor.submit(time.sleep, 600) for _ in range(3)))
    ids = [job.id for job in jobs]
    (parent,) = {job_id.partition(":")[0] for job_id in ids}
    asked = []
    terminate = session.backend.terminate

    async def noting(job_ids, reason):
        asked.append(sorted(job_ids))
        return await terminate(job_ids, reason)

    monkeypatch.setattr(session.backend, "terminate", noting)
    reports = await cancel(session, ids[:2], "enough")
    assert [each.outcome for each in reports] == ["cancelling"] * 2
    await asyncio.gather(*map(found, ids[:2]))
    reports = await cancel(session, ids, "enough")
    assert [each.outcome for each in reports] == ["finished", "finished", "cancelling"]
    assert asked == [sorted(ids[:2]), [parent]]
    assert (await found(parent)).detail.status_summary["FAILED"] == 3


class Covalent:
    """Covalent server that receives cancellations.

    Args:
        untold: Reason by job or dispatch ID, for those that cannot be notified.
        runs: Dispatches that are still running.
    """

    address = "http://covalent"

    def __init__(self, untold=None, runs=()):
        self.notified = []
        self._untold, self._runs = untold or {}, runs

    async def notify(self, session, entries, whole=()):
        self.notified.append((sorted(entries), sorted(whole)))
        return self._untold

    async def going(self, dispatches):
        return sorted(set(dispatches) & set(self._runs))

    async def notify_whole(self, dispatches):
        self.notified.append(sorted(dispatches))
        return self._untold


def of_dispatch(entry, dispatch):
    return replace(entry, workflow=Workflow("lattice", dispatch))


async def test_failed_covalent_notification_is_reported(session, going):
    job_id = going.detail.job_id
    covalent = Covalent({job_id: "it does not answer"})
    (report,) = await cancel(session, [job_id], "enough", covalent)
    assert report.outcome == "cancelling"
    assert report.text.endswith("cancelled; Covalent was not notified: it does not answer")
    assert covalent.notified == [([job_id], [])]


async def test_whole_dispatches_are_cancelled(session, going, gone):
    """A dispatch is also cancelled if none of its jobs is running."""
    entries = [of_dispatch(going, "d-1"), of_dispatch(gone, "d-2")]
    covalent = Covalent(runs=["d-1", "d-2"])
    reports = await cancel_all(session, entries, "enough", covalent)
    assert [(each.job_id, each.outcome) for each in reports] == [
        (going.detail.job_id, "cancelling"),
        ("d-2", "cancelling"),
    ]
    assert covalent.notified == [([going.detail.job_id], ["d-1"]), ["d-2"]]


async def test_dispatch_that_may_continue_is_named(session, gone):
    covalent = Covalent({"d-2": "it does not answer"}, runs=["d-2"])
    (report,) = await cancel_all(session, [of_dispatch(gone, "d-2")], "enough", covalent)
    assert (report.job_id, report.outcome) == ("d-2", "refused")
    assert report.text == "dispatch d-2 may continue: it does not answer"


async def test_without_covalent_no_dispatch_is_idle(going, gone):
    entries = [of_dispatch(going, "d-1"), of_dispatch(gone, "d-2")]
    assert unfinished(entries) == entries[:1]
    assert await idle(entries, None) == []
    assert await idle(entries, Covalent(runs=["d-1", "d-2"])) == ["d-2"]
