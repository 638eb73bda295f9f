"""Notifications of tasks' ends, with and without outcomes, and of failures meanwhile."""

import asyncio

import pytest

from farcall.backends.batch.failure_reasons import failure_reason
from farcall.engine.tracked_job import ClosedError, Ended, is_unseen
from farcall.model.commands import ENV_RUN
from farcall.model.errors import FarcallError, JobStuckError, ServiceError, SettingsError
from farcall.model.jobs import JobStatus
from tests.unit.fakes import no_answer, refusal
from tests.unit.tracking import HOST_LOST, ROOT, arrived

BLOCKED = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too many vCPUs"


# --- outcomes ---------------------------------------------------------------------------------


async def test_outcome_is_reported_once_and_soon(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(5)
    world.store("j")
    assert await world.until(1) < 0.6
    await asyncio.sleep(30)
    assert world.notified == [("j", 0, arrived("j"))]


async def test_foreign_outcomes_are_ignored(world):
    world.jobs.set("j", "PENDING")
    world.watch("j", size=3)
    world.store("alice")
    world.store("j", 1)
    await asyncio.sleep(10)
    assert world.tasks() == [("j", 1)]


async def test_tasks_of_several_runs_are_reported(world):
    for run in ("a", "b"):
        world.watch(run, root=run)
        world.store(run, root=run)
    await world.until(2, at_most_s=1)
    assert sorted(world.tasks()) == [("a", 0), ("b", 0)]


async def test_idle_tracker_stops_and_restarts(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(1004)
    world.store("j")
    world.tracker.poll_soon(["j"])
    await world.until(1, at_most_s=1)
    await asyncio.sleep(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    world.jobs.set("k", "RUNNING")
    world.watch("k")
    world.store("k")
    assert await world.until(2) < 1


async def test_unwatched_task_costs_no_requests(world):
    def removed_listener(index, arrival):
        raise AssertionError

    world.jobs.set("p", "PENDING", summary={"RUNNING": 3})
    world.watch("p", size=3, tell=removed_listener)
    world.watch("p", size=3, indexes=[1])
    world.tracker.unwatch("p", removed_listener)
    world.store("p", 0, 1, 2)
    await world.until(1)
    await asyncio.sleep(1)
    assert world.notified == [("p", 1, arrived("p", 1))]
    world.watch("q", size=3, tell=removed_listener)
    world.tracker.unwatch("q", removed_listener)
    world.tracker.unwatch("unknown", removed_listener)
    sent = len(world.inbox.requests), len(world.jobs.log)
    await asyncio.sleep(60)
    assert (len(world.inbox.requests), len(world.jobs.log)) == sent


async def test_closing_notifies_waiters(world):
    world.watch("j", size=2)
    await asyncio.sleep(5)
    await world.tracker.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert world.tasks() == [("j", 0), ("j", 1)]
    assert all(isinstance(arrival.error, ClosedError) for _, _, arrival in world.notified)


# --- ends without an outcome ------------------------------------------------------------------


async def test_failure_without_outcome_has_description(world):
    world.watch("j")
    world.jobs.set("j", "FAILED", HOST_LOST)
    assert await world.until(1) < 3
    assert world.notified == [("j", 0, Ended(world.jobs.detail("j")))]


async def test_array_end_ends_every_child(world):
    world.watch("p", size=3)
    world.jobs.set("p", "FAILED", summary={"SUCCEEDED": 1, "FAILED": 2})
    for index, status in enumerate(["SUCCEEDED", "FAILED", "FAILED"]):
        world.jobs.set(f"p:{index}", status)
    world.store("p", 0)
    await world.until(3)
    assert {index: arrival for _, index, arrival in world.notified} == {
        0: arrived("p", 0),
        1: Ended(world.jobs.detail("p:1")),
        2: Ended(world.jobs.detail("p:2")),
    }


async def test_child_may_end_after_array(world):
    """A terminated array is FAILED at once, while its tasks need time to clean up."""
    world.watch("p", size=2)
    world.jobs.set("p", "FAILED", "stopped", summary={"RUNNING": 2})
    for index in range(2):
        world.jobs.set(f"p:{index}", "RUNNING")
    await asyncio.sleep(25)
    assert world.notified == []
    asked = world.jobs.asked("describe")
    assert len(asked) <= 30
    world.store("p", 0)
    world.jobs.set("p:1", "FAILED", "stopped")
    await world.until(2, at_most_s=3)
    assert {index: arrival for _, index, arrival in world.notified} == {
        0: arrived("p", 0),
        1: Ended(world.jobs.detail("p:1")),
    }


async def test_new_job_may_be_missing(world):
    world.watch("j")
    await asyncio.sleep(30)
    world.jobs.set("j", "RUNNING")
    await asyncio.sleep(120)
    assert world.notified == []
    world.store("j")
    await world.until(1)


@pytest.mark.parametrize("size", [1, 2])
async def test_forgotten_job_is_lost_eventually(size, world):
    world.watch("j", size=size)
    assert 60 <= await world.until(size) <= 90
    assert world.notified == [("j", index, Ended(None)) for index in range(size)]


async def test_job_found_again_is_tracked(world):
    """Between the two polls that would make it lost, Batch returns it again."""
    world.watch("j")
    looks = len(world.inbox.requests)

    def restore_during_listing():
        if world.jobs.known or world.clock.now() < 1060:
            return
        job = world.tracker._jobs["j"]
        if job.ended:
            world.jobs.set("j", "RUNNING")

    world.inbox.while_listing = restore_during_listing
    await asyncio.sleep(300)
    assert world.jobs.known
    assert world.notified == []
    asked = len(world.jobs.log)
    await asyncio.sleep(100)
    assert len(world.jobs.log) - asked <= 15
    assert len(world.inbox.requests) > looks
    world.jobs.set("j", "FAILED", HOST_LOST)
    await world.until(1)
    assert world.notified == [("j", 0, Ended(world.jobs.detail("j")))]


async def test_late_watcher_of_array_is_notified(world):
    full = [True]
    world.jobs.set("p", "FAILED", summary={"FAILED": 2})
    for index in range(2):
        world.jobs.set(f"p:{index}", "FAILED", HOST_LOST)
    world.watch("p", size=2, indexes=[0], is_full=lambda: full[0])
    await asyncio.sleep(10)
    world.watch("p", size=2, indexes=[1])
    full[0] = False
    await world.until(2, at_most_s=10)
    assert sorted(world.tasks()) == [("p", 0), ("p", 1)]


# --- jobs that cannot start -------------------------------------------------------------------


async def test_blocked_job_is_reported_once(world, caplog):
    world.jobs.set("j", "RUNNABLE", BLOCKED)
    world.watch("j")
    await asyncio.sleep(3600)
    assert world.notified == []
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"job j is waiting, because Batch reports {BLOCKED!r}. To do: request "
    )


async def test_job_blocked_too_long_is_terminated(world):
    world.jobs.set("j", "RUNNABLE", BLOCKED)
    world.watch("j", stuck_timeout_s=300)
    assert 300 <= await world.until(1) <= 360
    reason = f"farcall: stuck for 300 s: {BLOCKED}"
    assert world.jobs.asked("terminate") == [("j", reason)]
    assert world.notified == [("j", 0, Ended(world.jobs.detail("j")))]


async def test_blocked_jobs_are_handled_together(world, caplog):
    for n in range(250):
        world.jobs.set(f"j{n}", "RUNNABLE", BLOCKED if n < 249 else "CAPACITY:INSUFFICIENT")
        world.watch(f"j{n}", stuck_timeout_s=100)
    await world.until(250, at_most_s=200)
    assert len(caplog.records) == 3 + 1
    assert f"job j0 (and 99 more) is waiting, because Batch reports {BLOCKED!r}" in caplog.text
    assert {failure_reason(arrival.detail).kind for _, _, arrival in world.notified} == {
        JobStuckError
    }
    assert sorted(job_id for job_id, _ in world.jobs.asked("terminate")) == sorted(
        world.jobs.known
    )


async def test_blocked_array_is_terminated(world, caplog):
    """Batch reports the array itself as PENDING permanently."""
    world.jobs.set("a", "PENDING", summary={"RUNNABLE": 3, "RUNNING": 0})
    for index in range(3):
        world.jobs.set(f"a:{index}", "RUNNABLE", "" if index else BLOCKED)
    world.watch("a", 3, stuck_timeout_s=300)
    await asyncio.sleep(30)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"job a is waiting, because Batch reports {BLOCKED!r}. To do: "
    )
    assert world.jobs.asked("terminate") == []
    await asyncio.sleep(330)
    ((job_id, reason),) = set(world.jobs.asked("terminate"))
    assert (job_id, reason) == ("a", f"farcall: stuck for 300 s: {BLOCKED}")
    for index in range(3):
        world.jobs.set(f"a:{index}", "FAILED", reason, isTerminated=True)
    await world.until(3)
    assert {failure_reason(arrival.detail).kind for _, _, arrival in world.notified} == {
        JobStuckError
    }


async def test_partly_running_array_is_not_blocked(world, caplog):
    world.jobs.set("a", "PENDING", summary={"RUNNABLE": 2, "RUNNING": 1})
    world.jobs.set("a:0", "RUNNABLE", BLOCKED)
    world.watch("a", 3, stuck_timeout_s=100)
    await asyncio.sleep(600)
    assert (caplog.records, world.jobs.asked("terminate")) == ([], [])
    asked = {job_id for ids in world.jobs.asked("describe") for job_id in ids}
    assert asked == {"a"}


async def test_refused_termination_is_repeated(world):
    world.jobs.set("j", "RUNNABLE", BLOCKED)
    world.watch("j", stuck_timeout_s=100)
    await asyncio.sleep(90)
    world.jobs.refusal = no_answer()
    await asyncio.sleep(60)
    assert world.jobs.asked("terminate")
    world.jobs.refusal = None
    await world.until(1, at_most_s=60)
    assert world.notified == [("j", 0, Ended(world.jobs.detail("j")))]


async def test_briefly_blocked_job_is_not_stuck(world):
    world.watch("j", stuck_timeout_s=300)
    for reason in (BLOCKED, ""):
        world.jobs.set("j", "RUNNABLE", reason)
        await asyncio.sleep(200)
    world.jobs.set("j", "RUNNABLE", BLOCKED)
    await asyncio.sleep(200)
    assert world.jobs.asked("terminate") == []


# --- latest description -----------------------------------------------------------------------


async def test_latest_description_needs_no_call(world):
    assert world.tracker.latest("p") is None
    world.jobs.set("p", "PENDING", summary={"RUNNING": 2, "RUNNABLE": 1})
    world.watch("p", size=3)
    assert world.tracker.latest("p") is None
    await asyncio.sleep(2)
    asked = len(world.jobs.log)
    assert world.tracker.latest("p").status_summary == {"RUNNING": 2, "RUNNABLE": 1}
    assert world.tracker.latest("p").status is JobStatus.PENDING
    assert len(world.jobs.log) == asked


# --- poll failures ----------------------------------------------------------------------------

UNREACHABLE = ServiceError("ListObjectsV2 failed: no route", operation="ListObjectsV2")
DENIED = ServiceError("ListObjectsV2 refused", operation="ListObjectsV2", code="AccessDenied")
EXPIRED = ServiceError(
    "ListObjectsV2 refused; renew the credentials", operation="ListObjectsV2", code="ExpiredToken"
)
NO_BUCKET = SettingsError("no such bucket", option="s3_bucket_name")


async def test_lasting_listing_failure_notifies_all(world):
    world.watch("j", size=2)
    world.watch("k")
    world.inbox.failures[ROOT] = UNREACHABLE
    assert 600 <= await world.until(3) <= 700
    for job_id, _, arrival in world.notified:
        assert str(arrival.error).startswith(f"{UNREACHABLE}; job {job_id} (n) continues")
        one = f"{job_id}:INDEX" if job_id == "j" else job_id
        assert f"`farcall result {one}`" in str(arrival.error)
        assert "`farcall recover run`" in str(arrival.error)
        assert is_unseen(arrival.error)


@pytest.mark.parametrize("failure", [DENIED, NO_BUCKET])
async def test_permanent_refusal_notifies_its_run(failure, world):
    world.jobs.set("other", "RUNNING")
    world.watch("other", root="another/v1/run")
    world.watch("j", size=2)
    world.watch("k")
    world.inbox.failures[ROOT] = failure
    assert await world.until(3) < 2
    assert sorted(world.tasks()) == [("j", 0), ("j", 1), ("k", 0)]
    assert all(str(arrival.error).startswith(str(failure)) for _, _, arrival in world.notified)
    await asyncio.sleep(10)
    world.store("other", root="another/v1/run")
    await world.until(4, at_most_s=1)
    assert world.notified[3] == ("other", 0, arrived("other"))


async def test_batch_refusal_is_reported(world):
    world.watch("j")
    world.jobs.failure = refusal("AccessDeniedException", 403)
    await world.until(1, at_most_s=10)
    assert world.notified[0][2].error.code == "AccessDeniedException"


async def test_outcomes_arrive_during_batch_outage(world):
    world.watch("j", size=2)
    world.jobs.failure = no_answer()
    await asyncio.sleep(300)
    world.store("j", 0)
    await world.until(1, at_most_s=10)
    assert await world.until(2) > 200
    assert world.notified[0] == ("j", 0, arrived("j", 0))
    assert isinstance(world.notified[1][2].error, ServiceError)


async def test_polling_failure_is_logged_each_minute(world, caplog):
    """All tasks with the same failure share one warning."""
    trouble = world.tracker.trouble
    world.jobs.set("j", "PENDING", summary={"RUNNING": 200})
    world.jobs.set("k", "RUNNING")
    world.watch("j", size=200)  # has its own listing
    world.watch("k")
    await asyncio.sleep(5)
    assert trouble.text == ""
    world.inbox.failures[ROOT] = EXPIRED
    world.jobs.failure = refusal("ExpiredTokenException", 403)
    await asyncio.sleep(200)
    assert "renew the credentials" in trouble.text
    assert "; retrying for" in trouble.text
    assert 3 <= len(caplog.records) <= 5
    assert all("renew the credentials" in record.message for record in caplog.records)
    caplog.clear()
    world.inbox.failures.clear()
    world.jobs.failure = None
    await asyncio.sleep(30)
    assert trouble.text == ""
    (again,) = caplog.records
    assert again.message.startswith("AWS responds again")
    assert world.notified == []


async def test_unwatched_failure_is_not_reported(world):
    def tell(index, arrival):
        raise AssertionError

    world.watch("j", tell=tell)
    world.inbox.failures[ROOT] = EXPIRED
    world.jobs.failure = refusal("ExpiredTokenException", 403)
    await asyncio.sleep(30)
    assert world.tracker.trouble.text != ""
    world.tracker.unwatch("j", tell)
    await asyncio.sleep(30)
    assert world.tracker.trouble.text == ""


@pytest.mark.parametrize("side", ["inbox", "batch"])
async def test_unexpected_error_leaves_no_waiter(side, world):
    """After any error while polling, the tasks are notified or polled again."""
    world.watch("j")
    failure = RuntimeError("a bug, or something new in a library")
    if side == "inbox":
        world.inbox.failures[ROOT] = failure
    else:
        world.jobs.failure = failure
    await world.until(1, at_most_s=700)
    assert isinstance(world.notified[0][2].error, FarcallError)
    assert world.notified[0][2].error.__cause__ is failure


# --- close ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 200])
async def test_close_during_poll_soon_ends(size, world):
    world.jobs.set("j", "RUNNING", summary={"RUNNING": size})
    world.watch("j", size)
    await asyncio.sleep(1000)  # by now, both pollers pause for long
    world.tracker.poll_soon(["j"])
    closing = asyncio.ensure_future(world.tracker.close())
    await asyncio.wait([closing], timeout=600)
    assert closing.done()
    (end,) = {arrival.error for _, _, arrival in world.notified}
    assert isinstance(end, ClosedError)


# --- queries ----------------------------------------------------------------------------------


async def test_concurrent_queries_share_a_call(world):
    for n in range(5):
        world.jobs.set(f"j{n}", "RUNNING")
    asked = [world.tracker.detail(f"j{n % 6}") for n in range(30)]
    found = await asyncio.gather(*asked)
    assert [detail and detail.job_id for detail in found[:6]] == [
        *(f"j{n}" for n in range(5)),
        None,
    ]
    assert len(world.jobs.log) == 1


# --- command jobs -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
async def test_command_job_end_has_description(world, status):
    world.jobs.set("c", "RUNNING")
    world.watch_command("c")
    await asyncio.sleep(5)
    world.jobs.set("c", status, "why")
    assert await world.until(1) < 3
    ((_, index, arrival),) = world.notified
    assert index == 0
    assert arrival == Ended(world.jobs.detail("c"))
    assert world.inbox.requests == []
    asked = len(world.jobs.log)
    await asyncio.sleep(600)
    assert len(world.jobs.log) == asked


async def test_failed_command_attempt_is_reported(world, caplog):
    failed = {"container": {"exitCode": 3}, "statusReason": "Essential container in task exited"}
    environment = [{"name": ENV_RUN, "value": "mary-1"}]
    more = {"retryStrategy": {"attempts": 2}, "container": {"environment": environment}}
    world.jobs.set("c", "RUNNING", **more)
    world.watch_command("c")
    await asyncio.sleep(5)
    world.jobs.set("c", "RUNNABLE", attempts=[{**failed, "stoppedAt": 1000}], **more)
    await asyncio.sleep(5)
    (hint,) = caplog.messages
    assert hint == (
        "job c (n): attempt 1 of 2 failed and is retried: "
        "CommandError: the command failed (exit code 3)"
    )
    assert world.inbox.requests == []


async def test_unseen_command_job_explains_joining(world):
    world.jobs.set("c", "RUNNING")
    world.watch_command("c")
    world.jobs.failure = refusal("AccessDeniedException", 403)
    await world.until(1)
    ((_, _, arrival),) = world.notified
    assert is_unseen(arrival.error)
    hint = (
        "job c (n) continues. When the problem is fixed, run `farcall logs -f c` to wait for it."
    )
    assert str(arrival.error).endswith(hint)
