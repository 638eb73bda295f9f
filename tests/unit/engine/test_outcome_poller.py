"""Number of LIST requests until the outcomes of many tasks are found, and the delay."""

import asyncio
import itertools
import random

import pytest

from farcall.storage.store import Arrived
from tests.unit.tracking import arrived


class Consumer:
    """Fetches outcomes at a steady pace, and deletes them a little later."""

    def __init__(self, world, job_id, per_s, keeps=False):
        self.waiting = []
        self.most = 0
        self._world, self._bundle = world, f"bundle-of-{job_id}"
        self._per_s, self._keeps = per_s, keeps
        self._task = asyncio.ensure_future(self._fetch())

    def tell(self, index, arrival):
        self.waiting.append(index)
        self.most = max(self.most, len(self.waiting))
        self._world.notified.append((self._bundle, index, arrival))

    async def _fetch(self):
        while True:
            await asyncio.sleep(0.1)
            for _ in range(self._per_s // 10):
                if self.waiting and not self._keeps:
                    self._world.inbox.delete(self._bundle, self.waiting[0])
                del self.waiting[:1]


async def count(world, seconds, bundle=None):
    """Return the number of requests that are sent within a time."""
    before = len(world.inbox.listed(bundle))
    await asyncio.sleep(seconds)
    return len(world.inbox.listed(bundle)) - before


# --- requests ---------------------------------------------------------------------------------


async def test_one_listing_covers_all_jobs(world):
    for n in range(300):
        world.watch(f"j{n}")
        world.store(f"j{n}")
    await world.until(300)
    assert sorted(world.tasks()) == sorted((f"j{n}", 0) for n in range(300))
    assert len(world.inbox.requests) == 1


@pytest.mark.parametrize("keeps", [False, True])
async def test_slow_consumer_costs_no_extra_requests(keeps, world):
    consumer = Consumer(world, "p", per_s=50, keeps=keeps)
    world.store("p", *range(10_000))
    world.jobs.set("p", "SUCCEEDED", summary={"SUCCEEDED": 10_000})
    world.watch("p", 10_000, tell=consumer.tell, is_full=lambda: len(consumer.waiting) >= 1000)
    await world.until(10_000)
    await asyncio.sleep(60)
    assert len(world.inbox.requests) <= 11
    assert consumer.most <= 1000 + 1000
    assert {type(arrival) for _, _, arrival in world.notified} == {Arrived}


async def test_outcome_stored_during_listing_is_found(world):
    """A task that ends during a listing may have an outcome that the listing lacks."""

    def end():
        world.inbox.while_listing = lambda: None
        world.store("j")
        world.jobs.set("j", "SUCCEEDED")
        world.tracker._jobs["j"].take(world.jobs.detail("j"))

    world.inbox.while_listing = end
    world.watch("j")
    await world.until(1)
    assert world.notified == [("j", 0, arrived("j"))]


async def test_full_consumer_stops_listing(world):
    full = [True]
    world.jobs.set("p", "FAILED", summary={"FAILED": 2, "SUCCEEDED": 1})
    for index in range(3):
        world.jobs.set(f"p:{index}", "FAILED")
    world.watch("p", size=3, is_full=lambda: full[0])
    world.store("p", 1)
    await asyncio.sleep(600)
    assert (world.notified, world.inbox.requests) == ([], [])
    full[0] = False
    assert await world.until(3) < 3
    assert arrived("p", 1) in [arrival for _, _, arrival in world.notified]


async def test_full_consumer_does_not_delay_others(world):
    world.watch("p", size=2, indexes=[0], is_full=lambda: True)
    world.watch("p", size=2, indexes=[1])
    world.store("p", 1)
    await world.until(1, at_most_s=1)
    assert world.notified == [("p", 1, arrived("p", 1))]


@pytest.mark.slow  # thousands of simulated jobs
async def test_undeleted_outcomes_cost_one_page_each(world):
    world.jobs.set("p", "PENDING", summary={"RUNNING": 10_000})
    stay = random.Random(1).sample(range(10_000), 5000)
    world.store("p", *stay)
    world.watch("p", size=10_000)
    await world.until(5000, at_most_s=5)
    await asyncio.sleep(5)
    # There are 5000 keys: each poll lists six pages and is followed by a pause for each page.
    assert await count(world, 60) <= 60 * 4
    await asyncio.sleep(1000)  # from then on every 10 s (poll_freq)
    assert await count(world, 100) <= 66


async def test_only_pages_with_missing_tasks_listed(world):
    world.jobs.set("p", "PENDING", summary={"RUNNING": 3})
    world.store("p", *set(range(10_000)) - {899, 4711, 4712})
    world.watch("p", size=10_000)
    await world.until(9_997, at_most_s=5)
    await asyncio.sleep(5)
    assert await count(world, 10) <= 10 * 4
    looks = world.inbox.listed()[-10:]
    assert sum(later - sooner < 0.1 for sooner, later in itertools.pairwise(looks)) in (4, 5)
    for left, index in enumerate([4712, 899, 4711], 9_998):
        world.store("p", index)
        await world.until(left, at_most_s=1)


async def test_unwatched_outcomes_cost_nothing(world):
    """Failed tasks of earlier sweeps stay in the run's inbox permanently."""
    for n in range(5):
        world.store(f"{n}x", *range(1000))
    for n in range(4):
        world.jobs.set(f"{n}", "RUNNING")
        world.watch(f"{n}")
    await asyncio.sleep(1)
    assert await count(world, 9) <= 9 * 4 * 4
    assert {bundle for *_, bundle in world.inbox.requests} == {f"bundle-of-{n}" for n in range(4)}


async def test_listing_skips_keys_between_bundles(world):
    for n in range(6):
        world.jobs.set(f"{n}", "RUNNING")
        world.watch(f"{n}")
    for n in range(2, 4):
        world.store(f"{n}x", *range(9000))  # sorts between the watched bundles
    await asyncio.sleep(2)
    assert await count(world, 10) <= 10 * 4
    before = len(world.inbox.requests)
    world.store("5")
    await world.until(1, at_most_s=2)
    assert world.notified == [("5", 0, arrived("5"))]
    assert len(world.inbox.requests) - before <= 3 * 2  # three pages instead of 19


@pytest.mark.parametrize(("junk", "pages"), [("1x{:05}", 1), ("1{:05}", 1), ("1\u00fc{:05}", 3)])
async def test_foreign_keys_do_not_hide_outcomes(junk, pages, world, caplog):
    """Foreign keys also cost few requests."""
    for n in range(100_000 if pages == 1 else 2500):
        world.inbox.put("bundle-of-p", junk.format(n))
    world.jobs.set("p", "PENDING", summary={"RUNNING": 3})
    world.watch("p", size=3)
    world.store("p", 0)
    await world.until(1, at_most_s=2)
    world.store("p", 1, 2)
    await world.until(3, at_most_s=3)
    assert len(world.inbox.requests) <= 12
    assert not caplog.text


async def test_every_task_is_found_despite_skipping(world):
    """A poll must not start too late or skip too many keys."""
    order = random.Random(7)
    left = {(f"{n}", i) for n in range(7) for i in range(order.choice([3, 90, 150, 1500]))}
    sizes = {}
    for job_id, index in left:
        sizes[job_id] = max(sizes.get(job_id, 0), index + 1)
    world.store("0x", *range(2500))
    world.store("3", *range(10_000, 12_000))
    for job_id, size in sizes.items():
        world.jobs.set(job_id, "PENDING", summary={"RUNNING": size})
        world.watch(job_id, size)
    todo = sorted(left)
    order.shuffle(todo)
    while todo:
        for job_id, index in [todo.pop() for _ in range(min(len(todo), 200))]:
            world.store(job_id, index)
        await asyncio.sleep(order.uniform(0, 3))
    await world.until(len(left), at_most_s=30)
    assert sorted(world.tasks()) == sorted(left)


# --- pace -------------------------------------------------------------------------------------


async def test_idle_polling_slows_to_poll_freq(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j", poll_freq=10)
    assert await count(world, 10) >= 30
    await asyncio.sleep(4000 - 10)
    asked = len(world.jobs.log)
    assert 90 <= await count(world, 1000) <= 100
    assert 90 <= len(world.jobs.log) - asked <= 100


@pytest.mark.parametrize("age_s", [0.05, 0.1, 0.5, 1.0])
async def test_near_endpoint_is_polled_by_age(age_s, world):
    """The younger a task is, the more often a near endpoint is polled."""
    world.inbox.request_s = 0.003
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(age_s)
    begin = world.clock.now()
    world.store("j")
    while not world.notified:
        await asyncio.sleep(0.001)
    assert world.clock.now() - begin <= 0.2 * age_s + 0.03


async def test_near_endpoint_backs_off_after_second(world):
    world.inbox.request_s = 0.003
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    assert await count(world, 1.25) <= 25
    assert await count(world, 60) <= 60 * 4


async def test_busy_near_endpoint_is_polled_rarely(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    await asyncio.sleep(0.1)
    assert await count(world, 10) <= 10 * 4
    world.inbox.request_s = 0.003
    world.store("j")
    await world.until(1)
    world.inbox.request_s = 0.05
    before = len(world.inbox.requests)
    for n in range(100):
        world.jobs.set(f"j{n}", "RUNNING")
        world.watch(f"j{n}")
        await asyncio.sleep(0.1)
    assert len(world.inbox.requests) - before <= 10 * 4 + 1


async def test_near_endpoint_has_steady_request_limit(world):
    """With a steady flow of outcomes, a near endpoint is polled as rarely as a far one."""
    world.inbox.request_s = 0.003
    for n in range(200):
        world.jobs.set(f"j{n}", "RUNNING")
        world.watch(f"j{n}")
    world.watch("p", size=200)
    before = len(world.inbox.requests)
    for n in range(99):
        world.store(f"j{n}")
        world.store("p", n)
        await asyncio.sleep(0.1)
    assert len(world.inbox.requests) - before <= 2 * 10 * 4


async def test_single_task_is_found_during_sweep(world):
    """It is found quickly, although the outcomes of the sweep stay in the bucket."""
    world.jobs.set("p", "PENDING", summary={"RUNNING": 10_000})
    world.watch("p", size=10_000)
    world.store("p", *range(9_999))
    for n in range(20):
        world.store("p", 9_999 - n)  # one outcome is always missing
        world.jobs.set(f"j{n}", "RUNNING")
        world.watch(f"j{n}")
        await asyncio.sleep(3 + n / 7)
        begin, before = world.clock.now(), world.tasks().count((f"j{n}", 0))
        world.store(f"j{n}")
        while not world.tasks().count((f"j{n}", 0)) > before:
            assert world.clock.now() - begin < 0.6
            await asyncio.sleep(0.01)


async def test_sweep_is_found_among_single_tasks(world):
    for n in range(2000):
        world.watch(f"j{n}")
    world.watch("p", size=200)
    await asyncio.sleep(3)
    for index in range(200):
        world.store("p", index)
        await world.until(index + 1, at_most_s=0.6)


@pytest.mark.slow  # thousands of simulated jobs
async def test_young_task_leaves_other_polls_slow(world):
    world.jobs.set("p", "PENDING", summary={"RUNNING": 10_000})
    world.watch("p", size=10_000)
    await asyncio.sleep(3000)
    assert await count(world, 100, "bundle-of-p") <= 11
    before = len(world.inbox.listed("bundle-of-p"))
    for n in range(30):
        world.jobs.set(f"j{n}", "RUNNING")
        world.watch(f"j{n}")
        await asyncio.sleep(5)
        world.store(f"j{n}")
        await world.until(n + 1, at_most_s=0.6)
    assert len(world.inbox.listed("bundle-of-p")) - before <= 17
    assert len(world.inbox.listed()) - before >= 30 * 15


async def test_concurrent_sweeps_share_request_budget(world):
    for n in range(40):
        world.jobs.set(f"p{n}", "PENDING", summary={"RUNNING": 1000})
        world.watch(f"p{n}", size=1000)
    assert await count(world, 20) <= 20 * 16
    world.store("p17", 3)
    await world.until(1, at_most_s=4)


async def test_frequent_poll_soon_is_throttled(world):
    world.jobs.set("j", "RUNNING")
    world.watch("j")
    before = len(world.inbox.requests)
    for _ in range(1000):
        world.tracker.poll_soon(["j"])
        await asyncio.sleep(0.01)
    assert len(world.inbox.requests) - before <= 10 * 4
