"""Reports on jobs to cancel, in a fake cloud."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from farcall.model.jobs import JobStatus
from farcall.model.workflows import Workflow
from farcall.operations.cancel import cancel, cancel_all, idle, unfinished

NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def going(executor, found):
    """A job that runs until it is ended."""
    job = await executor.submit(time.sleep, 600)
    return await found(job.id, JobStatus.RUNNING)


@pytest.fixture
async def gone(executor, found):
    job = await executor.submit(pow, 2, 3)
    assert await job.result() == 8
    return await found(job.id)


async def test_each_job_is_told_of_once_in_its_order(session, going, gone, found):
    going, gone = going.detail.job_id, gone.detail.job_id
    asked = [NOBODY, gone, going, going, f"{going}#0"]
    said = await cancel(session, asked, "enough")
    assert [(each.job_id, each.outcome) for each in said] == [
        (NOBODY, "unknown"),
        (gone, "ended"),
        (going, "ending"),
        (f"{going}#0", "node"),
    ]
    _, ended, ending, node = (each.text for each in said)
    assert ended == f"{gone} has finished: succeeded"
    assert ending == f"{going} was running and is being cancelled"
    assert f"`farcall cancel {going}` to cancel the job with all nodes" in node
    assert "enough" in (await found(going)).detail.status_reason
    (again,) = await cancel(session, [going], "enough")
    assert again.text == f"{going} has finished: cancelled"


async def test_another_user_s_job_is_left_alone(session, going, found):
    job_id = going.detail.job_id
    (said,) = await cancel(session, [job_id], "enough", user="alice")
    assert said.outcome == "other user"
    assert f"is a job of {going.user} and is not cancelled. Use --user {going.user}" in said.text
    assert not (await found(job_id, *JobStatus)).detail.status.is_final
    (said,) = await cancel(session, [job_id], "enough", user=going.user)
    assert said.outcome == "ending"


async def test_children_that_are_all_named_are_ended_as_their_array(
    executor, session, found, monkeypatch
):
    jobs = await asyncio.gather(*(executor.submit(time.sleep, 600) for _ in range(3)))
    ids = [job.id for job in jobs]
    (parent,) = {job_id.partition(":")[0] for job_id in ids}
    asked = []
    terminate = session.backend.terminate

    async def noting(job_ids, reason):
        asked.append(sorted(job_ids))
        return await terminate(job_ids, reason)

    monkeypatch.setattr(session.backend, "terminate", noting)
    said = await cancel(session, ids[:2], "enough")
    assert [each.outcome for each in said] == ["ending"] * 2
    await asyncio.gather(*map(found, ids[:2]))
    said = await cancel(session, ids, "enough")
    assert [each.outcome for each in said] == ["ended", "ended", "ending"]
    assert asked == [sorted(ids[:2]), [parent]]
    assert (await found(parent)).detail.status_summary["FAILED"] == 3


class Covalent:
    """A Covalent server that receives cancellations.

    Args:
        untold: What it says of jobs that it cannot be told of, by ID, and of dispatches.
        runs: Dispatches that go on.
    """

    address = "http://covalent"

    def __init__(self, untold=None, runs=()):
        self.told = []
        self._untold, self._runs = untold or {}, runs

    async def tell(self, session, entries, whole=()):
        self.told.append((sorted(entries), sorted(whole)))
        return self._untold

    async def going(self, dispatches):
        return sorted(set(dispatches) & set(self._runs))

    async def tell_whole(self, dispatches):
        self.told.append(sorted(dispatches))
        return self._untold


def of_dispatch(entry, dispatch):
    return replace(entry, workflow=Workflow("lattice", dispatch))


async def test_covalent_is_told_and_where_that_fails_the_text_says_so(session, going):
    job_id = going.detail.job_id
    covalent = Covalent({job_id: "it does not answer"})
    (said,) = await cancel(session, [job_id], "enough", covalent)
    assert said.outcome == "ending"
    assert said.text.endswith("cancelled; Covalent was not notified: it does not answer")
    assert covalent.told == [([job_id], [])]


async def test_a_dispatch_is_cancelled_as_a_whole_also_where_none_of_its_jobs_goes_on(
    session, going, gone
):
    entries = [of_dispatch(going, "d-1"), of_dispatch(gone, "d-2")]
    covalent = Covalent(runs=["d-1", "d-2"])
    said = await cancel_all(session, entries, "enough", covalent)
    assert [(each.job_id, each.outcome) for each in said] == [
        (going.detail.job_id, "ending"),
        ("d-2", "ending"),
    ]
    assert covalent.told == [([going.detail.job_id], ["d-1"]), ["d-2"]]


async def test_a_dispatch_that_may_go_on_is_named(session, gone):
    covalent = Covalent({"d-2": "it does not answer"}, runs=["d-2"])
    (said,) = await cancel_all(session, [of_dispatch(gone, "d-2")], "enough", covalent)
    assert (said.job_id, said.outcome) == ("d-2", "refused")
    assert said.text == "dispatch d-2 may continue: it does not answer"


async def test_without_covalent_no_dispatch_is_idle(going, gone):
    entries = [of_dispatch(going, "d-1"), of_dispatch(gone, "d-2")]
    assert unfinished(entries) == entries[:1]
    assert await idle(entries, None) == []
    assert await idle(entries, Covalent(runs=["d-1", "d-2"])) == ["d-2"]
