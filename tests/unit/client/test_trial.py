"""Trial jobs of ``farcall doctor --run``, on the fake cloud."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from farcall import Settings
from farcall.client import trial
from farcall.client.trial import Trial
from farcall.engine.session import session_for
from farcall.model.findings import FAILED, NOT_CHECKED, OK, WARNING
from farcall.testing import ImageFailed, OutcomeMissing, Stuck
from farcall_runtime.contract import run_root

BUCKET = "bucket"
SETTINGS = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}


def ignore(step, line):
    """Discard a line of output."""


def verdicts(done):
    return {step.finding.check: step.finding.verdict for step in done.steps}


async def test_failed_call_skips_other_steps(cloud):
    cloud.next_job(ImageFailed())

    done = await trial.run(Settings(**SETTINGS), ignore)

    assert [*verdicts(done).values()] == [FAILED, *4 * [NOT_CHECKED], OK]
    assert len(cloud.jobs) == 1
    assert done.steps[0].finding.remedy.startswith("check the image")


async def test_failed_array_keeps_other_steps(cloud):
    cloud.next_job()
    cloud.next_job(OutcomeMissing(), task=1)

    done = await trial.run(Settings(**SETTINGS), ignore)

    assert [check for check, verdict in verdicts(done).items() if verdict != OK] == ["array"]
    assert (5, True) == (len(cloud.jobs), done.requests > 0)


async def test_step_without_end_names_job_status(cloud, monkeypatch):
    monkeypatch.setattr(trial, "STEP_LIMIT_S", 1)
    cloud.next_job(Stuck())

    done = await trial.run(Settings(**SETTINGS), ignore)

    first = done.steps[0].finding
    assert first.verdict == FAILED
    assert "is RUNNABLE (CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY" in first.found
    assert first.remedy


async def test_cancelled_trial_deletes_objects_and_jobs(cloud):
    shown = asyncio.Event()

    def show(step, line):
        if step == "cancel":
            shown.set()

    settings = Settings(**SETTINGS, s3_bucket_name=BUCKET)
    session = await session_for(settings)
    running = asyncio.ensure_future(trial.run(settings, show))
    await shown.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert all(job.status.is_final for job in cloud.jobs)
    store = (await session_for(settings)).stores.of(BUCKET)
    assert await store.list_keys(f"{run_root(settings.prefix, session.run)}/") == []


async def test_unknown_bucket_is_first_steps_finding(cloud, monkeypatch):
    def refuse(*_, **__):
        raise trial.ServiceError("s3_bucket_name is 'gone'; run `farcall deploy`")

    monkeypatch.setattr(trial.BatchExecutor, "__aenter__", refuse)

    done = await trial.run(Settings(**SETTINGS), ignore)

    assert done.steps[0].finding.remedy == "run `farcall deploy`"
    assert [step.finding.verdict for step in done.steps] == [FAILED, *4 * [NOT_CHECKED]]


@pytest.mark.parametrize(
    ("prices", "dollars"),
    [({}, None), ({"vcpu_hour_price": 0.5}, 1.0), ({"gb_hour_price": 0.25}, 1.5)],
)
def test_dollars_need_price(prices, dollars):
    done = Trial([], vcpu_s=2 * 3600, gb_s=6 * 3600)

    assert done.dollars(Settings(**prices)) == dollars


async def test_refused_deletion_of_jobs_is_warning(cloud, monkeypatch):
    cloud.next_job(ImageFailed())
    session = await session_for(Settings(**SETTINGS))
    refused = trial.ServiceError("deleting the job was refused; grant delete on jobs")
    monkeypatch.setattr(session.backend, "forget", AsyncMock(side_effect=refused))

    done = await trial.run(Settings(**SETTINGS), ignore)

    assert done.steps[-1].finding.remedy == "grant delete on jobs"
    assert done.steps[-1].finding.verdict == WARNING
