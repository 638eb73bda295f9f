"""Contract of `farcall.backends.base.Backend`, on every platform."""

from __future__ import annotations

import dataclasses
import json
import time
from datetime import timedelta
from pathlib import Path

import pytest

import farcall
from farcall import JobDetail, JobStatus, ServiceError, Settings
from farcall.engine.delivered import Usage
from farcall.engine.sender import Sender
from farcall.engine.session import open_session
from farcall.model.failure_reasons import NO_INSTANCE, OWN_REASON
from farcall.model.pacing import Ticket
from farcall_runtime import contract
from tests.contract.backends.platforms import ENDED, PLACES, Jobs
from tests.support.patience import until_async
from tests.support.tasks import wait_for

pytestmark = pytest.mark.usefixtures("module_travels")

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


def say(text):
    print(text)
    return text


def fail():
    raise ValueError("no")


def mark_in(folder):
    Path(folder, str(time.time_ns())).touch()


# --- submitted and found ----------------------------------------------------------------------


async def test_description_matches_submission(jobs):
    spec = await jobs.spec(
        say, ("a",), vcpu=2, memory=3, retry_attempts=4, time_limit=77, tags={"team": "physics"}
    )
    job_id = await jobs.submit(spec)
    found = await jobs.ended(job_id)
    assert found.job_id == job_id
    assert found.name == spec.name
    assert found.queue == spec.settings.queue
    assert (found.vcpu, found.memory_mib, found.gpus) == (2, 3 * 1024, 0)
    assert (found.attempts_allowed, found.time_limit_s) == (4, 77)
    assert found.tags["team"] == "physics"
    assert {name: found.environment[name] for name in spec.environment} == spec.environment
    assert not found.array_size


async def test_succeeded_job_has_times(jobs):
    found = await jobs.ended(await jobs.start(say, ("a",)))
    assert found.status is JobStatus.SUCCEEDED
    assert found.exit_code == 0
    assert found.attempts == 1
    assert found.created_at <= found.started_at <= found.stopped_at
    assert not found.is_cancelled
    assert not found.is_terminated


async def test_succeeded_job_has_outcomes(jobs):
    spec = await jobs.spec(say, ("a",), ("b",))
    await jobs.ended(await jobs.submit(spec))
    where = contract.Location.parse(spec.environment[contract.ENV_BUNDLE])
    page, _ = await jobs.session.stores.of(where.bucket).list_outcomes(where.root, where.bundle)
    assert [each.index for each in page] == [0, 1]


async def test_job_is_found_by_name(jobs, go):
    spec = await jobs.spec(wait_for, (str(go),))
    queue = spec.settings.queue
    assert await jobs.backend.find(spec.name, queue) == []
    job_id = await jobs.submit(spec)
    await until_async(lambda: jobs.backend.find(spec.name, queue))
    assert await jobs.backend.find(spec.name, queue) == [job_id]
    go.touch()
    await jobs.ended(job_id)
    assert await jobs.backend.find(spec.name, queue) == [job_id]
    assert await jobs.backend.find(spec.name[:-1], queue) == []


async def test_named_jobs_are_listed_with_status(jobs):
    spec = await jobs.spec(say, ("a",))
    queue = spec.settings.queue
    assert await jobs.backend.list_named(spec.name, queue) == []
    job_id = await jobs.submit(spec)
    await jobs.ended(job_id)
    [listed] = await jobs.backend.list_named(spec.name, queue)
    assert (listed.job_id, listed.name) == (job_id, spec.name)
    assert listed.status is JobStatus.SUCCEEDED
    assert queue in await jobs.backend.queues()


async def test_foreign_listing_includes_own_jobs(jobs):
    job_id = await jobs.start(say, ("a",))
    await jobs.ended(job_id)
    assert job_id in [job.job_id for job in await jobs.listed(foreign=True)]


async def test_submission_requests_are_returned(jobs):
    spec = await jobs.spec(say, ("a",), retry_attempts=2)
    found = await jobs.backend.requests_of(await jobs.submit(spec))
    assert spec.name in json.dumps(found)
    assert await jobs.backend.requests_of(UNKNOWN_ID) is None


async def test_job_options_are_returned(jobs):
    spec = await jobs.spec(say, ("a",), retry_attempts=2)
    found = await jobs.backend.options_of(await jobs.submit(spec))
    given = {name: value for name, value in found.items() if name != "batch_job_definition_name"}
    again = spec.settings.replace(**given)
    assert again.queue == spec.settings.queue
    assert again.image == spec.settings.image
    assert await jobs.backend.options_of(UNKNOWN_ID) == {}


async def test_submitted_ticket_cannot_be_withdrawn(jobs):
    ticket = Ticket()
    await jobs.backend.submit(await jobs.spec(say, ("a",)), ticket)
    assert not ticket.withdraw()


async def test_oversized_job_is_not_submitted(jobs):
    spec = await jobs.spec(say, ("a",))
    large = dataclasses.replace(spec, environment={**spec.environment, "X": "x" * 2_000_000})
    with pytest.raises(farcall.TaskTooLargeError):
        await jobs.backend.prepare(large)
    assert await jobs.backend.find(spec.name, spec.settings.queue) == []


@pytest.mark.parametrize("offline", [False, True])
async def test_plan_submits_nothing(jobs, offline):
    spec = await jobs.spec(say, ("a",), image="an/image:1")
    planned = json.dumps(await jobs.backend.plan(spec, offline=offline))
    assert spec.name in planned
    assert await jobs.backend.find(spec.name, spec.settings.queue) == []


async def test_configured_resources_pass_checks(jobs):
    await jobs.backend.check(Settings())
    assert [finding.verdict for finding in await jobs.backend.reach()] == ["ok"]


async def test_unknown_jobs_are_missing(jobs):
    job_id = await jobs.start(say, ("a",), ("b",))
    await jobs.ended(job_id)
    asked = [job_id, UNKNOWN_ID, f"{job_id}:0", f"{job_id}:1", f"{job_id}:2", f"{UNKNOWN_ID}:0"]
    assert list(await jobs.backend.describe(asked)) == [job_id, f"{job_id}:0", f"{job_id}:1"]
    assert await jobs.backend.describe([]) == {}
    assert UNKNOWN_ID in jobs.backend.unknown(UNKNOWN_ID)


async def test_describe_exceeds_one_request(jobs):
    size = jobs.backend.capabilities.described_together + 1
    job_id = await jobs.start(say, ("a",))
    await jobs.ended(job_id)
    unknown = (f"{UNKNOWN_ID[:-4]}{n:04}" for n in range(size))
    found = await jobs.backend.describe([*unknown, job_id])
    assert list(found) == [job_id]


async def test_job_outlives_its_session(jobs, go):
    other = await open_session(Settings())
    job_id = await Jobs(other).start(wait_for, (str(go),))
    await other.close()
    go.touch()
    assert (await jobs.ended(job_id)).status is JobStatus.SUCCEEDED


async def test_requests_are_counted(jobs):
    before = jobs.backend.meter.last_minute
    await jobs.backend.describe([UNKNOWN_ID])
    assert jobs.backend.meter.last_minute == before + 1


async def test_unanswered_submission_runs_once(jobs, tmp_path):
    """`farcall.engine.sender` relies on this."""
    marks = tmp_path / "marks"
    marks.mkdir()
    settings = Settings(vcpu=1, memory=1)
    bundle, spec = await jobs.bundle(mark_in, (str(marks),), settings=settings)
    store = jobs.session.stores.of(settings.s3_bucket_name)
    sender = Sender(LostResponse(jobs.backend), store, jobs.session.timing)
    job_id = await sender.send(bundle, lambda: spec, Ticket())
    await sender.close()
    assert (await jobs.ended(job_id)).status is JobStatus.SUCCEEDED
    assert len(list(marks.iterdir())) == 1
    assert await jobs.backend.find(spec.name, settings.queue) == [job_id]


class LostResponse:
    """A backend that loses the response to a submission."""

    def __init__(self, backend):
        self._backend = backend

    def __getattr__(self, name):
        return getattr(self._backend, name)

    async def submit(self, job, ticket):
        await self._backend.submit(job, ticket)
        raise ServiceError("no answer", operation="SubmitJob", sent=True)


# --- arrays and lists -------------------------------------------------------------------------


async def test_array_counts_children_by_status(jobs, go, tmp_path):
    quick = tmp_path / "quick"
    quick.touch()
    job_id = await jobs.start(wait_for, (str(quick),), (str(go),), (str(quick),))
    await jobs.ended(f"{job_id}:0")

    async def counted():
        found = await jobs.describe(job_id)
        return found if found.status_summary.get("SUCCEEDED") else None

    found = await until_async(counted)
    assert found.array_size == 3
    assert not found.status.is_final
    assert sum(found.status_summary.values()) == 3
    assert found.status_summary["SUCCEEDED"] >= 1
    go.touch()
    found = await jobs.ended(job_id)
    assert found.status is JobStatus.SUCCEEDED
    assert found.status_summary["SUCCEEDED"] == 3


async def test_child_has_its_index(jobs):
    job_id = await jobs.start(say, ("a",), ("b",))
    found = await jobs.ended(f"{job_id}:1")
    assert (found.is_child, found.index, found.array_size) == (True, 1, 0)


async def test_failed_child_fails_the_array(jobs, tmp_path):
    job_id = await jobs.start(str, ("a",), (b"a", "no codec"))
    found = await jobs.ended(job_id)
    assert found.status is JobStatus.FAILED
    assert (await jobs.describe(f"{job_id}:0")).status is JobStatus.SUCCEEDED
    failed = await jobs.children(job_id, [JobStatus.FAILED])
    assert [child.job_id for child in failed] == [f"{job_id}:1"]


async def test_children_are_listed_by_status(jobs, go):
    count = PLACES + 3
    job_id = await jobs.start(wait_for, *[(str(go),)] * count)
    await jobs.until(f"{job_id}:0", JobStatus.RUNNING)
    open_ones = [status for status in JobStatus if not status.is_final]
    assert await jobs.children(job_id, ENDED) == []
    waiting = await jobs.children(job_id, open_ones)
    assert {child.job_id for child in waiting} <= {f"{job_id}:{n}" for n in range(count)}
    go.touch()
    await jobs.ended(job_id)
    done = await jobs.children(job_id, [JobStatus.SUCCEEDED])
    assert sorted(child.index for child in done) == list(range(count))
    assert await jobs.children(job_id, open_ones) == []


async def test_list_is_newest_first_without_children(jobs):
    first = await jobs.start(say, ("a",))
    await jobs.ended(first)
    second = await jobs.start(say, ("a",), ("b",))
    await jobs.ended(second)
    third = await jobs.start(say, ("a",))
    await jobs.ended(third)
    ours = (first, second, third)
    listed = [job.job_id for job in await jobs.listed()]
    assert [job_id for job_id in listed if job_id.partition(":")[0] in ours] == [*reversed(ours)]


async def test_jobs_are_listed_by_name_prefix(jobs):
    spec = await jobs.spec(say, ("a",))
    job_id = await jobs.submit(spec)
    await jobs.ended(job_id)
    assert [job.job_id for job in await jobs.listed(named=spec.name[:-1])] == [job_id]
    assert await jobs.listed(named=f"{spec.name}x") == []
    assert await jobs.listed(named=spec.name.upper()) == []


async def test_list_starts_at_given_time(jobs):
    first = await jobs.start(say, ("a",))
    found = await jobs.ended(first)
    later = [job.job_id for job in await jobs.listed(since=found.created_at + timedelta(days=1))]
    assert later == []
    then = [job.job_id for job in await jobs.listed(since=found.created_at)]
    assert first in then
    assert all(job.created_at is not None for job in await jobs.listed())


async def test_only_waiting_job_has_queue_position(jobs, platform, go):
    await jobs.start(wait_for, *[(str(go),)] * (PLACES + 1), vcpu=1)
    waiting = await jobs.start(say, ("a",))
    found = await jobs.until(waiting, JobStatus.RUNNABLE)
    positions = await jobs.backend.positions(found.queue_arn or found.queue)
    assert (waiting in positions) == platform.reports_position
    assert all(place >= 1 for place in positions.values())
    go.touch()
    await jobs.ended(waiting)
    assert waiting not in await jobs.backend.positions(found.queue_arn or found.queue)


# --- termination ------------------------------------------------------------------------------


async def test_terminated_job_keeps_reason(jobs, go):
    job_id = await jobs.start(wait_for, (str(go),))
    await jobs.until(job_id, JobStatus.RUNNING)
    assert await jobs.backend.terminate([job_id], "no longer needed") == {}
    found = await jobs.ended(job_id)
    assert found.status is JobStatus.FAILED
    assert found.is_terminated
    assert found.is_explained
    assert found.status_reason.startswith(f"{OWN_REASON}no longer needed")
    assert found.failure_reason().kind is farcall.JobCancelledError


async def test_terminated_waiting_job_never_runs(jobs, go, tmp_path):
    await jobs.start(wait_for, *[(str(go),)] * (PLACES + 1))
    mark = tmp_path / "ran"
    waiting = await jobs.start(Path.touch, (mark,))
    await jobs.until(waiting, JobStatus.RUNNABLE)
    assert await jobs.backend.terminate([waiting], "too late") == {}
    found = await jobs.ended(waiting)
    assert found.status_reason.startswith(f"{OWN_REASON}too late")
    assert found.failure_reason().kind is farcall.JobCancelledError
    assert found.started_at is None
    assert found.attempts == 0
    assert not mark.exists()


async def test_cancelled_waiting_job_leaves_started_tasks(jobs, go, tmp_path):
    started = await jobs.start(wait_for, *[(str(go),)] * (PLACES + 1))
    mark = tmp_path / "ran"
    waiting = await jobs.start(Path.touch, (mark,))
    await jobs.until(waiting, JobStatus.RUNNABLE)
    await jobs.until(f"{started}:0", JobStatus.RUNNING)
    assert await jobs.backend.cancel_waiting([waiting, started], f"{NO_INSTANCE}60 s") == {}
    found = await jobs.ended(waiting)
    assert found.failure_reason().kind is farcall.JobStuckError
    assert (found.attempts, mark.exists()) == (0, False)
    assert (await jobs.describe(f"{started}:0")).status is JobStatus.RUNNING


async def test_terminated_child_leaves_siblings(jobs, go):
    job_id = await jobs.start(wait_for, (str(go),), (str(go),))
    await jobs.until(f"{job_id}:0", JobStatus.RUNNING)
    assert await jobs.backend.terminate([f"{job_id}:0"], "this one alone") == {}
    assert (await jobs.ended(f"{job_id}:0")).status is JobStatus.FAILED
    assert not (await jobs.describe(f"{job_id}:1")).status.is_final
    assert not (await jobs.describe(job_id)).status.is_final
    go.touch()
    assert (await jobs.ended(f"{job_id}:1")).status is JobStatus.SUCCEEDED
    found = await jobs.ended(job_id)
    assert found.status is JobStatus.FAILED
    assert (found.status_summary["SUCCEEDED"], found.status_summary["FAILED"]) == (1, 1)


async def test_terminated_array_ends_all_children(jobs, go):
    job_id = await jobs.start(wait_for, *[(str(go),)] * (PLACES + 2))
    await jobs.until(f"{job_id}:0", JobStatus.RUNNING)
    assert await jobs.backend.terminate([job_id], "all of it") == {}
    assert (await jobs.ended(job_id)).status is JobStatus.FAILED
    failed = await jobs.children(job_id, [JobStatus.FAILED])
    assert len(failed) == PLACES + 2
    told = await jobs.backend.describe(child.job_id for child in failed)
    assert {child.failure_reason().kind for child in told.values()} == {farcall.JobCancelledError}


async def test_terminating_finished_job_changes_nothing(jobs):
    job_id = await jobs.start(say, ("a",))
    before = await jobs.ended(job_id)
    assert await jobs.backend.terminate([job_id], "too late") == {}
    assert await jobs.describe(job_id) == before


async def test_several_jobs_are_terminated_together(jobs, go):
    ids = [await jobs.start(wait_for, (str(go),)) for _ in range(3)]
    assert await jobs.backend.terminate(ids, "all") == {}
    for job_id in ids:
        assert (await jobs.ended(job_id)).status is JobStatus.FAILED
    assert await jobs.backend.terminate([], "none") == {}


async def test_unknown_job_blocks_no_termination(jobs, go):
    job_id = await jobs.start(wait_for, (str(go),))
    refused = await jobs.backend.terminate([UNKNOWN_ID, job_id], "all")
    assert set(refused) <= {UNKNOWN_ID}
    assert all(isinstance(error, ServiceError) for error in refused.values())
    assert (await jobs.ended(job_id)).status is JobStatus.FAILED


async def test_other_session_sees_termination_reason(jobs, go):
    job_id = await jobs.start(wait_for, (str(go),))
    await jobs.until(job_id, JobStatus.RUNNING)
    await jobs.backend.terminate([job_id], "cancelled by its owner")
    await jobs.ended(job_id)
    other = await open_session(Settings())
    try:
        found = await Jobs(other).describe(job_id)
    finally:
        await other.close()
    assert "cancelled by its owner" in found.status_reason
    assert found.failure_reason().kind is farcall.JobCancelledError


# --- failure reasons --------------------------------------------------------------------------


async def test_lost_host_is_reported(jobs, platform, go):
    job_id = await platform.losing_its_host(jobs, lambda: jobs.start(wait_for, (str(go),)))
    found = await jobs.ended(job_id)
    assert found.status is JobStatus.FAILED
    assert found.exit_code is None
    assert found.failure_reason().kind is farcall.HostLostError
    assert found.platform_reason

    async def ended_in_list() -> JobDetail | None:
        # A Kubernetes Job reports a failure a moment after its pod, and lists read only Jobs.
        listed = {job.job_id: job for job in await jobs.listed()}
        return listed[job_id] if listed[job_id].status.is_final else None

    listed = await until_async(ended_in_list)
    assert listed is not None
    assert listed.failure_reason() == found.failure_reason()


async def test_failed_container_start_is_reported(jobs, platform):
    job_id = await platform.not_starting(jobs, lambda: jobs.start(say, ("a",)))
    found = await jobs.ended(job_id)
    assert found.failure_reason().kind is farcall.ImageError
    assert found.is_explained
    assert (found.exit_code, found.log_stream) == (None, "")


async def test_missing_payload_is_reported(jobs):
    spec = await jobs.spec(say, ("a",))
    where = contract.Location.parse(spec.environment[contract.ENV_BUNDLE])
    await jobs.session.stores.of(where.bucket).delete([where.bundle_key])
    found = await jobs.ended(await jobs.submit(spec))
    assert found.exit_code == contract.ExitCode.BUNDLE_MISSING
    assert found.failure_reason().kind is farcall.OutcomeMissingError


async def test_success_without_outcome_is_reported(jobs):
    found = await jobs.ended(await jobs.start(say, ("a",)))
    assert found.failure_reason().kind is farcall.OutcomeMissingError


@pytest.mark.parametrize(("retry_on", "attempts"), [("failure", 3), ("infrastructure", 1)])
@pytest.mark.slow  # Kubernetes waits 10 s and more between attempts
async def test_retry_on_decides_attempts(jobs, retry_on, attempts):
    job_id = await jobs.start(fail, (), retry_attempts=3, retry_on=retry_on)
    found = await jobs.ended(job_id)
    assert found.status is JobStatus.FAILED
    assert found.attempts == attempts
    assert {each.exit_code for each in found.tried} == {contract.ExitCode.RAISED}


@pytest.mark.parametrize("retry_on", ["failure", "infrastructure"])
@pytest.mark.slow  # Kubernetes waits 10 s and more between attempts
async def test_lost_host_is_retried(jobs, platform, go, retry_on):
    job_id = await platform.losing_its_host(
        jobs, lambda: jobs.start(wait_for, (str(go),), retry_attempts=2, retry_on=retry_on)
    )
    await until_async(lambda: _has_tried(jobs, job_id))
    go.touch()
    found = await jobs.ended(job_id)
    assert found.status is JobStatus.SUCCEEDED
    first, second = found.tried
    assert found.of_attempt(first).failure_reason().kind is farcall.HostLostError
    assert second.exit_code == 0


async def _has_tried(jobs, job_id):
    return (await jobs.describe(job_id)).attempts


# --- logs and links ---------------------------------------------------------------------------


async def test_log_has_container_output(jobs):
    found = await jobs.ended(await jobs.start(say, ("one\ntwo\nthree",)))
    log = jobs.backend.log(found.log_group, found.log_stream)
    lines = [line async for page in log.read() for line in page]
    # stdout and stderr reach the log in any order.
    (usage,) = filter(None, (Usage.logged([line.text]) for line in lines))
    assert usage.peak_memory_bytes > 2**20
    assert [each.text for each in lines if not Usage.logged([each.text])] == [
        "one",
        "two",
        "three",
    ]
    assert log.exists
    last = found.stopped_at + timedelta(seconds=1)  # it may be reported in whole seconds
    assert all(found.created_at <= line.at <= last for line in lines)
    assert [line async for page in log.read() for line in page] == []
    ended = jobs.backend.log(found.log_group, found.log_stream)
    assert await ended.last(2) == lines[-2:]
    assert await ended.last(0) == []
    assert [line async for page in ended.read(follow=True) for line in page] == []
    await ended.close()
    late = jobs.backend.log(found.log_group, found.log_stream, lines[-1].at)
    assert [line async for page in late.read() for line in page] == [
        line for line in lines if line.at >= lines[-1].at
    ]


@pytest.mark.parametrize("stream", ["", "no/such/stream"])
async def test_missing_log_is_empty(jobs, stream):
    found = await jobs.ended(await jobs.start(say, ("a",)))
    log = jobs.backend.log(found.log_group, stream)
    assert await log.last(5) == []
    assert log.exists is False
    assert [page async for page in jobs.backend.log(found.log_group, stream).read()] == []


async def test_links_are_https_urls(jobs):
    found = await jobs.ended(await jobs.start(say, ("a",)))
    links = jobs.backend.links(found)
    assert set(links) <= {"job", "queue", "log"}
    assert all(url.startswith("https://") for url in links.values())
