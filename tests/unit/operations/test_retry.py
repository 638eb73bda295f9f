"""Preview and submission of retries, in a fake cloud."""

from __future__ import annotations

import json

import pytest

from farcall import JobLostError, NothingToRetryError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.workflows import Workflow
from farcall.operations import describe, retry
from farcall.operations.catalog import Entry
from farcall.operations.retry import SHOWN

NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def failed(executor, found):
    """A job that has failed."""
    job = await executor.submit(pow, 2, "x")
    assert isinstance(await job.exception(), TypeError)
    return await found(job.id)


async def test_what_would_run_is_said_as_json(executor, session, failed):
    said = await retry.preview(session, executor.settings, failed.detail.job_id)
    assert json.loads(json.dumps(said)) == said
    assert [each["name"] for each in said["options"]] == list(SHOWN)
    assert all(each["help"] for each in said["options"])
    assert {key: said[key] for key in ("job", "function", "tasks", "total", "refused")} == {
        "job": failed.detail.job_id,
        "function": "pow",
        "tasks": 1,
        "total": 1,
        "refused": "",
    }
    assert said["sentence"] == "1 of 1 task of pow, with vcpu 1 and memory 1 as before"


async def test_a_refusal_is_said(executor, session, found):
    job = await executor.submit(pow, 2, 3)
    assert await job.result() == 8
    await found(job.id)
    said = await retry.preview(session, executor.settings, job.id)
    assert (said["tasks"], said["options"], said["sentence"]) == (0, [], "")
    assert "gone" in said["refused"] or "no task of job" in said["refused"]
    with pytest.raises(NothingToRetryError):
        await retry.plan(session, executor.settings, job.id)
    with pytest.raises(JobLostError):
        await retry.preview(session, executor.settings, NOBODY)


async def test_old_and_new_job_tell_of_each_other(executor, session, failed, found):
    job_id = failed.detail.job_id
    plan = await retry.plan(session, executor.settings, job_id)
    (again,) = await retry.run(session, plan, {"vcpu": 2})
    assert (again.of, again.tasks) == (job_id, 1)
    assert again.sentence == f"job {again.job_id} runs again 1 of 1 task of pow: vcpu 1 -> 2"
    entry = await found(again.job_id)
    assert (await describe.of(session, entry))["job"]["retry_of"] == job_id
    assert (await describe.of(session, failed))["retries"] == [again.job_id]
    # Of the run's failed jobs only the newest retry can run again.
    jobs = await retry.jobs_of(session, [executor.settings.queue], entry.client)
    assert [each.detail.job_id for each in jobs] == [job_id, again.job_id]
    with pytest.raises(NothingToRetryError, match=rf"as 1 job \({again.job_id}\). Retry that job"):
        await retry.plan(session, executor.settings, job_id)
    plan = await retry.plan(session, executor.settings, again.job_id)
    assert [task.number for task in plan.tasks] == [0]


@pytest.mark.parametrize("said", ["", "x", "6f1c", f"{NOBODY}#1", f"{NOBODY}\n"])
def test_anything_may_stand_in_a_variable(said):
    detail = JobDetail("6f1c", "f-0", JobStatus.RUNNING, environment={"FARCALL_RETRY_OF": said})
    assert Entry(detail, Workflow("w"), "").retry_of == ""
