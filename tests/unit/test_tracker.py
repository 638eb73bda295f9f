"""The tracker with a scripted Batch and inbox, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from farcall import Settings
from farcall.batch import Batch
from farcall.errors import FarcallError, ServiceError, SettingsError
from farcall.states import JobDetail, JobStatus
from farcall.store import Arrived
from farcall.submission import Submission
from farcall.tracker import Ended, Tracker
from farcall_runtime.contract import Location
from unit.fakes import Client

ROOT = "farcall/v1/run"
BLOCKED = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too many vCPUs"


class Inbox:
    """The listing of one bucket's outcomes."""

    def __init__(self):
        self.outcomes = []
        self.failure = None
        self.listings = 0
        self.while_listing = lambda: None

    async def list_outcomes(self, root):
        assert root == ROOT
        self.listings += 1
        snapshot = list(self.outcomes)
        self.while_listing()
        await asyncio.sleep(0.01)
        if self.failure is not None:
            raise self.failure
        for outcome in snapshot:
            yield outcome


class Jobs:
    """Batch, as the tracker uses it."""

    def __init__(self):
        self.known = {}
        self.failed_children = {}
        self.log = []
        self.failure = None

    def set(self, job_id, status, **more):
        self.known[job_id] = JobDetail(job_id, "n", status=JobStatus(status), **more)

    async def describe(self, job_ids):
        job_ids = list(job_ids)
        if not job_ids:
            return {}
        self.log.append(("describe", job_ids))
        await asyncio.sleep(0.01)
        if self.failure is not None:
            raise self.failure
        return {job_id: self.known[job_id] for job_id in job_ids if job_id in self.known}

    async def list_children(self, parent_id, status):
        self.log.append(("list", parent_id, status.value))
        return self.failed_children.get(parent_id, [])

    async def terminate(self, job_ids, reason):
        self.log.append(("terminate", job_ids, reason))
        for job_id in job_ids:
            self.set(job_id, "FAILED", status_reason=reason, is_terminated=True)


class World:
    """A tracker with everything around it."""

    def __init__(self, clock, batch=None):
        self.clock = clock
        self.jobs = Jobs()
        self.inbox = Inbox()
        self.told = []
        self.tracker = Tracker(batch or self.jobs, lambda bucket: self.inbox)

    def watch(self, job_id, size=1, indexes=None, tell=None, **options):
        where = Location("bucket", ROOT, f"bundle-of-{job_id}")
        self.tracker.watch(
            Submission(job_id, "n", where, b"key", size),
            range(size) if indexes is None else indexes,
            Settings(**options),
            tell or (lambda index, arrival: self.told.append((job_id, index, arrival))),
        )

    def store(self, job_id, index=0):
        self.inbox.outcomes.append(Arrived(f"bundle-of-{job_id}", index, 10))

    async def until(self, count, at_most_s=3600.0):
        """Wait until so many ends were told; return how long it took."""
        begin = self.clock.now()
        while len(self.told) < count:
            assert self.clock.now() - begin < at_most_s, self.told
            await asyncio.sleep(0.05)
        return self.clock.now() - begin


@pytest.fixture
async def world(clock):
    made = World(clock)
    yield made
    await made.tracker.close()


def told(world):
    return [(job_id, index) for job_id, index, _ in world.told]


# --- outcomes ---------------------------------------------------------------------------------


async def test_an_outcome_is_told_once_and_soon(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(5)
    world.store("j")
    assert await world.until(1) < 0.6
    await asyncio.sleep(30)
    assert world.told == [("j", 0, Arrived("bundle-of-j", 0, 10))]


async def test_one_listing_finds_the_outcomes_of_all_jobs(world):
    for n in range(300):
        world.jobs.set(f"j{n}", "RUNNING")
        world.watch(f"j{n}")
        world.store(f"j{n}")
    await world.until(300)
    assert sorted(told(world)) == sorted((f"j{n}", 0) for n in range(300))
    assert world.inbox.listings == 1


async def test_outcomes_of_others_and_of_those_told_already_mean_nothing(world):
    world.jobs.set("j", "PENDING")
    world.watch("j", size=3)
    world.store("somebody")
    world.store("j", 1)
    await asyncio.sleep(10)
    assert told(world) == [("j", 1)]


async def test_everybody_who_waits_for_a_task_is_told(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    world.watch("j")
    world.store("j")
    await world.until(2)
    assert told(world) == [("j", 0), ("j", 0)]


async def test_the_tracker_rests_when_nobody_waits_and_begins_again(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    world.store("j")
    await world.until(1)
    await asyncio.sleep(1)
    listings = world.inbox.listings
    await asyncio.sleep(600)
    assert world.inbox.listings == listings
    world.jobs.set("k", "RUNNING")
    world.watch("k")
    world.store("k")
    assert await world.until(2) < 1


async def test_looks_become_rare_while_nothing_happens_but_not_rarer_than_poll_freq(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j", poll_freq=10)
    await asyncio.sleep(10)
    early = world.inbox.listings
    await asyncio.sleep(4000 - 10)
    before, asked = world.inbox.listings, len(world.jobs.log)
    await asyncio.sleep(1000)
    assert early >= 30
    assert 90 <= world.inbox.listings - before <= 100
    assert 90 <= len(world.jobs.log) - asked <= 100


# --- ends without an outcome ------------------------------------------------------------------


async def test_a_job_that_failed_without_an_outcome_is_told_with_what_batch_says(world):
    world.watch("j")
    world.jobs.set("j", "FAILED", status_reason="Host EC2 (instance i-1) terminated.")
    assert await world.until(1) < 3
    assert world.told == [("j", 0, Ended(world.jobs.known["j"]))]


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
async def test_an_outcome_stored_before_the_end_wins_over_the_end(status, world):
    """The listing that began before the job ended does not count: the outcome may be newer."""
    world.jobs.set("j", "RUNNING")
    world.watch("j")

    def end_while_listing():
        if world.clock.now() > 1010 and world.jobs.known["j"].status is JobStatus.RUNNING:
            world.store("j")
            world.jobs.set("j", status)

    world.inbox.while_listing = end_while_listing
    await world.until(1)
    assert world.told == [("j", 0, Arrived("bundle-of-j", 0, 10))]


async def test_an_end_is_told_only_after_a_listing_that_began_later(world):
    world.watch("j")
    world.jobs.set("j", "SUCCEEDED")
    order = []
    world.inbox.while_listing = lambda: order.append("list")
    describe = world.jobs.describe

    async def noted(job_ids):
        if job_ids := list(job_ids):
            order.append("describe")
        return await describe(job_ids)

    world.jobs.describe = noted
    await world.until(1)
    assert order[order.index("describe") :] == ["describe", "list"]


async def test_a_child_that_failed_is_found_by_listing_the_failed_ones(world):
    world.jobs.set("p", "PENDING", array_size=5, status_summary={"FAILED": 1, "RUNNING": 4})
    world.jobs.set("p:3", "FAILED", status_reason="Host EC2 (instance i-1) terminated.")
    world.jobs.failed_children["p"] = [3]
    world.watch("p", size=5)
    await world.until(1, at_most_s=5)
    assert world.told == [("p", 3, Ended(world.jobs.known["p:3"]))]
    await asyncio.sleep(60)
    assert [entry for entry in world.jobs.log if entry[0] == "list"] == [("list", "p", "FAILED")]
    assert len(world.told) == 1


async def test_an_array_whose_children_do_not_fail_is_not_listed(world):
    world.jobs.set("p", "PENDING", array_size=5, status_summary={"RUNNING": 5, "FAILED": 0})
    world.watch("p", size=5)
    await asyncio.sleep(60)
    assert [entry for entry in world.jobs.log if entry[0] == "list"] == []


async def test_the_end_of_an_array_is_the_end_of_every_child(world):
    world.watch("p", size=3)
    world.jobs.set("p", "FAILED", array_size=3)
    for index, status in enumerate(["SUCCEEDED", "FAILED", "FAILED"]):
        world.jobs.set(f"p:{index}", status)
    world.store("p", 0)
    await world.until(3)
    arrivals = {index: arrival for _, index, arrival in world.told}
    assert arrivals == {
        0: Arrived("bundle-of-p", 0, 10),
        1: Ended(world.jobs.known["p:1"]),
        2: Ended(world.jobs.known["p:2"]),
    }


async def test_a_job_just_submitted_may_be_missing_for_a_while(world):
    world.watch("j")
    await asyncio.sleep(30)
    world.jobs.set("j", "RUNNING")
    await asyncio.sleep(120)
    assert world.told == []
    world.store("j")
    await world.until(1)


async def test_a_job_that_batch_forgot_is_lost_after_a_bound(world):
    world.watch("j")
    assert 60 <= await world.until(1) <= 90
    assert world.told == [("j", 0, Ended(None))]


async def test_a_job_that_batch_forgot_has_its_outcome_all_the_same(world):
    world.watch("j")
    world.store("j")
    await world.until(1)
    assert world.told == [("j", 0, Arrived("bundle-of-j", 0, 10))]


# --- jobs that cannot be placed ---------------------------------------------------------------


async def test_a_blocked_job_is_warned_of_once_and_left_alone(world, caplog):
    world.jobs.set("j", "RUNNABLE", status_reason=BLOCKED)
    world.watch("j")
    await asyncio.sleep(3600)
    assert world.told == []
    assert [record.getMessage() for record in caplog.records] == [f"job j waits: {BLOCKED}"]


async def test_a_job_blocked_for_stuck_timeout_is_ended_with_batch_s_words(world):
    world.jobs.set("j", "RUNNABLE", status_reason=BLOCKED)
    world.watch("j", stuck_timeout_s=300)
    assert 300 <= await world.until(1) <= 360
    reason = f"stuck for 300 s: {BLOCKED}"
    assert [e for e in world.jobs.log if e[0] == "terminate"] == [("terminate", ["j"], reason)]
    assert world.told == [("j", 0, Ended(world.jobs.known["j"], stuck=True))]


async def test_a_job_that_was_blocked_for_a_moment_is_not_stuck(world):
    world.watch("j", stuck_timeout_s=300)
    for reason in (BLOCKED, ""):
        world.jobs.set("j", "RUNNABLE", status_reason=reason)
        await asyncio.sleep(200)
    world.jobs.set("j", "RUNNABLE", status_reason=BLOCKED)
    await asyncio.sleep(200)
    assert [e for e in world.jobs.log if e[0] == "terminate"] == []


# --- when looking fails -----------------------------------------------------------------------

UNREACHABLE = ServiceError("ListObjectsV2 failed: no route", operation="ListObjectsV2")
DENIED = ServiceError("ListObjectsV2 refused", operation="ListObjectsV2", code="AccessDenied")
NO_BUCKET = SettingsError("no such bucket", option="s3_bucket_name")


async def test_a_listing_that_fails_for_minutes_is_endured(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    world.inbox.failure = UNREACHABLE
    await asyncio.sleep(500)
    assert world.told == []
    world.inbox.failure = None
    world.store("j")
    await world.until(1)
    assert told(world) == [("j", 0)]


async def test_a_listing_that_fails_for_too_long_is_told_to_all_who_wait(world):
    world.watch("j", size=2)
    world.watch("k")
    world.inbox.failure = UNREACHABLE
    assert 600 <= await world.until(3) <= 700
    assert {arrival.error for _, _, arrival in world.told} == {UNREACHABLE}


@pytest.mark.parametrize("failure", [DENIED, NO_BUCKET])
async def test_a_permanent_refusal_is_told_to_all_who_wait_at_once(failure, world):
    world.watch("j", size=2)
    world.watch("k")
    world.inbox.failure = failure
    assert await world.until(3) < 2
    assert sorted(told(world)) == [("j", 0), ("j", 1), ("k", 0)]
    assert {arrival.error for _, _, arrival in world.told} == {failure}


async def test_batch_s_refusal_is_told_too(world):
    world.watch("j")
    world.jobs.failure = ServiceError("no", operation="DescribeJobs", code="AccessDeniedException")
    await world.until(1, at_most_s=10)
    assert world.told[0][2].error is world.jobs.failure


async def test_after_a_failure_new_tasks_have_their_own_patience(world):
    world.watch("j")
    world.inbox.failure = UNREACHABLE
    await world.until(1)
    await asyncio.sleep(10)
    world.watch("k")
    await asyncio.sleep(300)
    assert told(world) == [("j", 0)]


async def test_what_nobody_foresaw_leaves_nobody_waiting(world):
    """Whatever is raised in the loop, the tasks are told in the end, or looked for again."""
    world.watch("j")
    world.inbox.failure = RuntimeError("a bug, or something new in a library")
    await world.until(1, at_most_s=700)
    assert isinstance(world.told[0][2].error, FarcallError)


async def test_more_than_a_page_of_jobs_may_grow_while_batch_is_asked(clock):
    """DescribeJobs takes 100 IDs, so looking at more takes several calls; others go on."""
    worlds = []
    numbers = itertools.count(150)

    def describe(*, jobs):
        worlds[0].watch(f"j{next(numbers)}")
        return {"jobs": [{"jobId": job, "jobName": "n", "status": "RUNNING"} for job in jobs]}

    client = Client(describe_jobs=describe)
    world = World(clock, Batch(SimpleNamespace(batch=client, submitter=client)))
    worlds.append(world)
    for n in range(150):
        world.watch(f"j{n}")
    await asyncio.sleep(5)
    for n in range(150):
        world.store(f"j{n}")
    try:
        await world.until(150, at_most_s=60)
    finally:
        await world.tracker.close()


# --- questions --------------------------------------------------------------------------------


async def test_many_who_ask_for_jobs_share_a_call(world):
    for n in range(5):
        world.jobs.set(f"j{n}", "RUNNING")
    asked = [world.tracker.detail(f"j{n % 6}") for n in range(30)]
    found = await asyncio.gather(*asked)
    assert [detail and detail.job_id for detail in found[:6]] == [
        *(f"j{n}" for n in range(5)),
        None,
    ]
    assert len(world.jobs.log) == 1


async def test_a_refused_question_is_told_to_each_who_asked(world):
    world.jobs.failure = ServiceError("no", operation="DescribeJobs")
    asked = [world.tracker.detail("a"), world.tracker.detail("b")]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert found == [world.jobs.failure] * 2
