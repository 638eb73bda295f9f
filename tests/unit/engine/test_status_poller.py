"""Number of API requests until all ends are known, and their order.

Also jobs of a cluster that cannot start: they are reported, and terminated if waiting is
pointless.
"""

import asyncio

import pytest

from farcall.backends.kubernetes import describe
from farcall.model.errors import ImageError
from farcall.model.failure_reasons import OWN_REASON
from tests.unit.backends.kubernetes.objects import NAME, condition, job, pod, unscheduled
from tests.unit.fakes import TIMING
from tests.unit.tracking import HOST_LOST


def most_per_s(world, seconds=5):
    """Return the highest rate of calls per second, averaged over some seconds."""
    times = [at for at, _, _ in world.jobs.log]
    return max(sum(at <= other < at + seconds for other in times) for at in times) / seconds


async def test_jobs_are_described_in_hundreds(world):
    for n in range(250):
        world.jobs.set(f"j{n}", "RUNNING")
        world.watch(f"j{n}")
    await asyncio.sleep(1.9)
    assert [len(ids) for ids in world.jobs.asked("describe")] == [100, 100, 50]


async def test_jobs_may_be_added_during_poll(world):
    for n in range(150):
        world.watch(f"j{n}")
    for n in range(150, 300):
        await asyncio.sleep(0.02)
        world.watch(f"j{n}")
    for n in range(300):
        world.jobs.set(f"j{n}", "FAILED", HOST_LOST)
    await world.until(300, at_most_s=10)
    assert len(set(world.tasks())) == 300


@pytest.mark.slow  # thousands of simulated jobs
async def test_ten_thousand_jobs_are_polled_fairly(world):
    for n in range(10_000):
        world.jobs.set(f"j{n}", "RUNNING")
        world.watch(f"j{n}")
    await asyncio.sleep(60)
    calls = world.jobs.asked("describe")
    assert most_per_s(world) <= 5.2
    asked = [job_id for ids in calls[:100] for job_id in ids]
    assert len(set(asked)) == 10_000  # none twice before all others once
    begin = world.clock.now()
    world.jobs.set("j1234", "FAILED", HOST_LOST)
    await world.until(1)
    assert world.clock.now() - begin <= 45


@pytest.mark.slow  # thousands of simulated jobs
async def test_young_job_is_polled_first(world):
    for n in range(5000):
        world.jobs.set(f"j{n}", "RUNNABLE")
        world.watch(f"j{n}")
    await asyncio.sleep(60)
    world.jobs.set("young", "FAILED", HOST_LOST)
    world.watch("young")
    assert await world.until(1) < 3
    # A job that was seen to start is near its end, too.
    world.jobs.set("j77", "RUNNING")
    while world.tracker.latest("j77").status != "RUNNING":
        await asyncio.sleep(0.1)
    world.jobs.set("j77", "FAILED", HOST_LOST)
    assert await world.until(2) < 4
    assert most_per_s(world) <= 5.2


@pytest.mark.slow  # thousands of simulated jobs
async def test_job_and_array_share_calls(world):
    world.jobs.set("p", "PENDING", summary={"RUNNING": 10_000})
    world.watch("p", size=10_000)
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(1.5)
    assert world.jobs.asked("describe") == [["p", "j"]]
    await asyncio.sleep(1000)
    before = len(world.jobs.log)
    world.jobs.set("k", "FAILED", HOST_LOST)
    world.watch("k")
    await world.until(1, at_most_s=3)
    assert sum("p" in ids for ids in world.jobs.asked("describe")[before:]) <= 1


async def test_fast_array_costs_few_calls(world):
    world.jobs.set("p", "PENDING", summary={"RUNNING": 10_000})
    world.watch("p", size=10_000)
    for index in range(10_000):
        world.store("p", index)
        await asyncio.sleep(0.01)
    await world.until(10_000, at_most_s=10)
    assert len(world.jobs.log) <= 40  # in 100 s


async def test_children_are_listed_after_new_failures(world):
    def fail(count):
        for index in range(count):
            world.jobs.set(f"p:{index}", "FAILED", HOST_LOST)
        world.jobs.set("p", "PENDING", summary={"FAILED": count, "RUNNING": 5000 - count})

    fail(0)
    world.watch("p", size=5000)
    for count in (1, 3, 2500):
        await asyncio.sleep(30)
        fail(count)
        await world.until(count, at_most_s=30)
    await asyncio.sleep(100)
    assert world.jobs.asked("list") == ["p"] * (1 + 1 + 3)
    # Each of these 2500 is described once, with the parent.
    stragglers = [ids for ids in world.jobs.asked("describe") if ids != ["p"]]
    assert sum(map(len, stragglers)) == 2500
    assert len(stragglers) == 25 + 2
    assert most_per_s(world) <= 5.2
    assert {index for _, index in world.tasks()} == set(range(2500))


async def test_children_with_outcome_are_not_described(world):
    for index in range(1000):
        world.jobs.set(f"p:{index}", "FAILED", "Essential container in task exited")
        world.store("p", index)
    world.jobs.set("p", "PENDING", summary={"FAILED": 1000, "RUNNING": 1000})
    world.watch("p", size=2000)
    await asyncio.sleep(100)
    assert len(world.notified) == 1000
    assert {tuple(ids) for ids in world.jobs.asked("describe")} == {("p",)}


async def test_unlisted_failed_child_is_listed_again(world):
    """Counts and lists come from different places, and one may lag behind."""
    world.jobs.set("p", "PENDING", summary={"FAILED": 2, "RUNNING": 3})
    world.jobs.set("p:1", "FAILED", HOST_LOST)
    world.watch("p", size=5)
    await world.until(1, at_most_s=5)
    world.jobs.set("p:4", "FAILED", HOST_LOST)
    await world.until(2, at_most_s=10)
    assert world.tasks() == [("p", 1), ("p", 4)]


async def test_child_listed_as_failed_may_run(world):
    world.jobs.set("p", "PENDING", summary={"FAILED": 1, "RUNNING": 1})
    world.jobs.set("p:1", "RUNNING")
    world.watch("p", size=2)
    world.jobs.known["p:1"]["status"] = "FAILED"
    while not world.jobs.asked("list"):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.02)  # listed as failed, and not described yet
    world.jobs.known["p:1"]["status"] = "RUNNING"
    await asyncio.sleep(30)
    assert world.notified == []
    assert len(world.jobs.log) <= 100
    world.jobs.set("p:1", "FAILED", HOST_LOST)
    await world.until(1, at_most_s=10)
    assert world.tasks() == [("p", 1)]


async def test_mass_failure_does_not_delay_others(world):
    world.watch("p", size=10_000)
    world.watch("q", size=3)
    world.jobs.set("q", "PENDING", summary={"RUNNING": 3})
    for index in range(10_000):
        world.jobs.set(f"p:{index}", "FAILED", HOST_LOST)
    world.jobs.set("p", "FAILED", HOST_LOST, summary={"FAILED": 10_000})
    await world.until(300, at_most_s=5)
    world.jobs.set("q:1", "FAILED", HOST_LOST)
    world.jobs.set("q", "PENDING", summary={"RUNNING": 2, "FAILED": 1})
    world.jobs.set("j", "FAILED", HOST_LOST)
    world.watch("j")
    await asyncio.sleep(6)
    assert {("q", 1), ("j", 0)} <= set(world.tasks())
    assert len(world.notified) < 5000
    await world.until(10_002, at_most_s=60)
    assert most_per_s(world) <= 5.2
    assert len(world.jobs.log) <= 100 + 60


async def test_forgotten_child_is_lost(world):
    world.jobs.set("p", "PENDING", summary={"RUNNING": 2, "FAILED": 1})
    world.watch("p", size=3)
    world.jobs.set("p:1", "FAILED", HOST_LOST)
    await world.until(1, at_most_s=5)
    world.jobs.set("p", "FAILED", summary={"FAILED": 3})
    world.jobs.set("p:0", "FAILED", HOST_LOST)
    assert await world.until(2) < 20
    assert 60 <= await world.until(3) < 90
    assert world.notified[2][:2] == ("p", 2)
    assert world.notified[2][2].detail is None


async def test_briefly_missing_children_are_not_lost(world):
    world.watch("p", size=2)
    for index in range(2):
        job_id = f"p:{index}"
        world.jobs.set(job_id, "FAILED", HOST_LOST)
        world.jobs.set("p", "PENDING", summary={"FAILED": index + 1, "RUNNING": 1 - index})
        asked = len(world.jobs.asked("list"))
        while len(world.jobs.asked("list")) == asked:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # it is listed, but missing when it is described
        hidden = world.jobs.known.pop(job_id)
        await asyncio.sleep(20)
        world.jobs.known[job_id] = hidden
        await world.until(index + 1, at_most_s=10)
        await asyncio.sleep(100)
    assert [arrival.detail.job_id for _, _, arrival in world.notified] == ["p:0", "p:1"]


# --- pace -------------------------------------------------------------------------------------


async def measure_latency(world, request_s):
    """Describe a job that has already ended, so that the latency of Batch is known."""
    world.jobs.request_s = request_s
    world.jobs.set("first", "FAILED", HOST_LOST)
    world.watch("first")
    await world.until(1)
    world.jobs.log.clear()


@pytest.mark.parametrize("age_s", [0.1, 0.5, 2.0])
async def test_near_batch_is_polled_early(age_s, world):
    world.inbox.request_s = 0.003
    await measure_latency(world, 0.003)
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(age_s)
    begin = world.clock.now()
    world.jobs.set("j", "FAILED", HOST_LOST)
    while len(world.notified) < 2:
        await asyncio.sleep(0.01)
    assert world.clock.now() - begin <= 0.3 + 0.3 * age_s


async def test_near_batch_is_polled_rarely_later(world):
    await measure_latency(world, 0.003)
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(10)
    assert len(world.jobs.log) <= 10 + 10
    before = len(world.jobs.log)
    await asyncio.sleep(100)
    assert len(world.jobs.log) - before <= 26


async def test_far_batch_is_polled_each_second(world):
    await measure_latency(world, 0.03)
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(10)
    assert len(world.jobs.log) <= 10


async def test_idle_queue_is_reported_once(world, caplog):
    world.jobs.set("waits", "RUNNABLE")
    world.jobs.set("array", "PENDING", summary={"RUNNABLE": 2})
    world.watch("waits")
    world.watch("array", 2)
    await asyncio.sleep(TIMING.idle_report_s * 0.9)
    assert caplog.records == []
    await asyncio.sleep(300)
    (record,) = caplog.records
    assert "3 tasks have waited for" in record.getMessage()
    assert "`farcall describe waits` shows more" in record.getMessage()


async def test_finished_task_counts_as_progress(world, caplog):
    """Between two array tasks none may be running when Batch is polled."""
    world.jobs.set("array", "PENDING", summary={"RUNNABLE": 9})
    world.watch("array", 9)
    for index in range(8):
        await asyncio.sleep(TIMING.idle_report_s * 0.9)
        world.store("array", index)
    assert caplog.records == []


async def test_running_job_is_not_idle(world, caplog):
    world.jobs.set("waits", "RUNNABLE")
    world.jobs.set("runs", "RUNNING")
    world.watch("waits")
    world.watch("runs")
    await asyncio.sleep(60)
    assert caplog.records == []


# --- jobs of a cluster that cannot be started -------------------------------------------------


class Cluster:
    """Job of a cluster instead of Batch.

    Attributes:
        document: The Job.
        pods: Its pods.
        ended: Time and reason of each termination.
    """

    def __init__(self, world):
        self._world = world
        self._backend = world.jobs.backend
        self.document, self.pods, self.ended = job(), (), []
        self._backend.describe = self._describe
        self._backend.terminate = self._terminate

    async def _describe(self, job_ids):
        await asyncio.sleep(0.01)
        found = {}
        for job_id in job_ids:
            _, mark, index = job_id.partition(":")
            found[job_id] = (
                describe.Description(self.document).task(int(index), self.pods)
                if mark
                else describe.Description(self.document).whole(self.pods)
            )
        return found

    async def _terminate(self, job_ids, reason):
        self.ended.append((self._world.clock.now(), list(job_ids), reason))
        end = condition("Failed", "DeadlineExceeded", "Job was active longer")
        size = self.document["spec"]["completions"]
        reasons = {"farcall/reason": f"{OWN_REASON}{reason}"}
        self.document, self.pods = job(size, end, annotations=reasons), ()
        return {}


@pytest.fixture
def cluster(world):
    return Cluster(world)


def waiting(reason, message="m"):
    return pod("Pending", waiting={"reason": reason, "message": message})


@pytest.mark.parametrize(
    ("reason", "after_s"),
    [("InvalidImageName", TIMING.start_dwell_s), ("ImagePullBackOff", TIMING.pull_dwell_s)],
)
@pytest.mark.parametrize("size", [1, 100])
async def test_permanently_blocked_job_is_terminated(
    world, cluster, caplog, reason, after_s, size
):
    cluster.document, cluster.pods = job(size, active=size), (waiting(reason),)
    begin = world.clock.now()
    world.watch(NAME, size)
    await world.until(size)
    ((at, job_ids, termination_reason),) = cluster.ended
    assert after_s <= at - begin <= after_s * 1.2 + 10
    assert job_ids == [NAME]
    assert termination_reason == f"stuck for {after_s:g} s: {reason}: m"
    assert {arrival.detail.failure_reason().kind for _, _, arrival in world.notified} == {
        ImageError
    }
    (record,) = caplog.records
    assert (
        f"job {NAME} is waiting, because Kubernetes reports '{reason}: m'. To do: "
        in record.getMessage()
    )


async def test_late_image_pull_is_tolerated(world, cluster, caplog):
    cluster.document, cluster.pods = job(active=1), (waiting("ErrImagePull"),)
    world.watch(NAME)
    await asyncio.sleep(TIMING.pull_dwell_s * 0.8)
    assert len(caplog.records) == 1
    cluster.pods = (pod("Running", running=True),)
    await asyncio.sleep(10 * TIMING.pull_dwell_s)
    assert cluster.ended == []


async def test_brief_block_is_not_reported(world, cluster, caplog):
    cluster.document, cluster.pods = job(active=1), (unscheduled("0/3 nodes are available"),)
    world.watch(NAME)
    await asyncio.sleep(TIMING.blocked_report_s * 0.6)
    cluster.pods = (pod("Running", running=True),)
    await asyncio.sleep(60)
    assert caplog.records == []
