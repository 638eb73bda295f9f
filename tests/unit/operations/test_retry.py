"""Preview and submission of retries, on the fake cloud."""

import json

import pytest

from farcall import JobLostError, NothingToRetryError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.workflows import Workflow
from farcall.operations import describe, retry
from farcall.operations.catalog import Entry
from farcall.operations.retry import SHOWN

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def failed(executor, found):
    """Job that has failed."""
    job = await executor.submit(pow, 2, "x")
    assert isinstance(await job.exception(), TypeError)
    return await found(job.id)


async def test_preview_is_complete_json(executor, session, failed):
    preview = await retry.preview(session, executor.settings, failed.detail.job_id)
    assert json.loads(json.dumps(preview)) == preview
    assert [each["name"] for each in preview["options"]] == list(SHOWN)
    assert all(each["help"] for each in preview["options"])
    assert {key: preview[key] for key in ("job", "function", "tasks", "total", "refused")} == {
        "job": failed.detail.job_id,
        "function": "pow",
        "tasks": 1,
        "total": 1,
        "refused": "",
    }
    assert preview["message"] == "1 of 1 task of pow, with vcpu 1 and memory 1 as before"


async def test_refused_retry_is_explained(executor, session, found):
    job = await executor.submit(pow, 2, 3)
    assert await job.result() == 8
    await found(job.id)
    preview = await retry.preview(session, executor.settings, job.id)
    assert (preview["tasks"], preview["options"], preview["message"]) == (0, [], "")
    assert "gone" in preview["refused"] or "no task of job" in preview["refused"]
    with pytest.raises(NothingToRetryError):
        await retry.plan(session, executor.settings, job.id)
    with pytest.raises(JobLostError):
        await retry.preview(session, executor.settings, UNKNOWN_ID)


async def test_original_and_retry_are_linked(executor, session, failed, found):
    job_id = failed.detail.job_id
    plan = await retry.plan(session, executor.settings, job_id)
    (again,) = await retry.run(session, plan, {"vcpu": 2})
    assert (again.retry_of, again.tasks) == (job_id, 1)
    assert again.message == f"job {again.job_id} runs again 1 of 1 task of pow: vcpu 1 -> 2"
    entry = await found(again.job_id)
    assert (await describe.of(session, entry))["job"]["retry_of"] == job_id
    assert (await describe.of(session, failed))["retries"] == [again.job_id]
    # Only the newest retry of the run's failed jobs can be retried.
    jobs = await retry.jobs_of(session, [executor.settings.queue], entry.client)
    assert [each.detail.job_id for each in jobs] == [job_id, again.job_id]
    with pytest.raises(NothingToRetryError, match=rf"as 1 job \({again.job_id}\). Retry that job"):
        await retry.plan(session, executor.settings, job_id)
    plan = await retry.plan(session, executor.settings, again.job_id)
    assert [task.number for task in plan.tasks] == [0]


@pytest.mark.parametrize("value", ["", "x", "6f1c", f"{UNKNOWN_ID}#1", f"{UNKNOWN_ID}\n"])
def test_invalid_retry_variable_is_ignored(value):
    detail = JobDetail("6f1c", "f-0", JobStatus.RUNNING, environment={"FARCALL_RETRY_OF": value})
    assert Entry(detail, Workflow("w"), "").retry_of == ""
