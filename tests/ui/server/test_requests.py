"""How little the page's server asks Batch for, and what it tells when Batch does not answer."""

from __future__ import annotations

import asyncio

import pytest

from tests.ui.server.screen import Screen, cancel, listening


async def test_hundreds_of_jobs_take_few_requests(page, submit, proxy):
    """They wait behind one that needs all processors, so all of them are active."""
    submit("sleep 600")
    submit("true", vcpu=1000)
    jobs = [submit("true") for _ in range(120)]
    proxy.counts.clear()
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: set(jobs) <= set(screen.jobs) and not screen.state["loading"])
        first = proxy.of("batch")
        # A page for each 100 jobs there are here by now, and a description of them.
        assert first["listjobs"] + first["describejobs"] <= 2 * (len(screen.jobs) // 100 + 2)

        async with listening(page) as again:
            await Screen(again).loaded()
            proxy.counts.clear()
            await screen.looks(2)
            later = proxy.of("batch")
        # However many browsers there are: pages, or descriptions of those that are active.
        assert sum(later.values()) <= 3 * (len(screen.jobs) // 100 + 1)

        assert set(await cancel(page, jobs=jobs)) == set(jobs)
        await screen.until(lambda: all(screen.has(job, "CANCELLED") for job in jobs))
        while sum(proxy.of("batch").values()) > 2:  # until the first page holds no news
            proxy.counts.clear()
            await screen.looks(1)


async def test_ten_thousand_children_take_few_requests(page, submit, proxy):
    submit("sleep 600")
    array = submit("true", vcpu=1000, size=10_000)
    path = f"/api/jobs/{array}/children/events"
    proxy.counts.clear()
    async with listening(page, path) as events:
        screen = Screen(events)
        await screen.until(lambda: len(screen.children) == 10_000 and not screen.state["loading"])
        assert {"RUNNABLE": 10_000} == screen.states()
        # One to see what it is, one for its counts, ten for the children.
        assert {"describejobs": 2, "listjobs": 10} == proxy.of("batch")
        proxy.counts.clear()
        await screen.looks(1)
        assert sum(proxy.of("batch").values()) <= 2
        proxy.counts.clear()
        assert {f"{array}:77": "ending"} == await cancel(page, jobs=[f"{array}:77"])
        cost = sum(proxy.of("batch").values())
        await screen.until(lambda: screen.children[77]["s"] == "CANCELLED")
        # The list of those that failed is the short one.
        assert sum(proxy.of("batch").values()) - cost <= 6
    await cancel(page, jobs=[array])


async def test_nothing_is_asked_while_nobody_listens(page, submit, proxy):
    job = submit("sleep 600")
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: screen.has(job, "RUNNING"))
    await asyncio.sleep(1)  # what was on its way
    proxy.counts.clear()
    await asyncio.sleep(4)
    assert {} == proxy.of("batch")


async def test_throttling_is_told(page, submit, proxy):
    job = submit("sleep 600")
    proxy.faults["batch listjobs"] += ["throttled"] * 2
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: "too many" in screen.state.get("error", ""))
        await screen.until(lambda: screen.has(job, "RUNNING"))


async def test_what_goes_wrong_is_told_and_passes(page, submit, proxy):
    job = submit("sleep 600")
    proxy.rule = lambda request: "expired" if request.operation == "batch listjobs" else ""
    async with listening(page) as events:
        screen = Screen(events)
        try:
            await screen.until(lambda: "renew the credentials" in screen.state.get("error", ""))
        finally:
            proxy.rule = lambda request: ""
        await screen.until(lambda: screen.has(job, "RUNNING"))
        await screen.until(lambda: not screen.state["error"])


@pytest.fixture
def changes(proxy):
    """Changes of Batch's answers; afterwards they are as they were."""
    yield proxy.changes
    proxy.changes.clear()


async def test_arrays_are_counted_where_lists_do_not_count_them(page, submit, changes):
    def without_counts(answer):
        for job in answer["jobSummaryList"]:
            job.get("arrayProperties", {}).pop("statusSummary", None)

    changes["listjobs"] = without_counts
    array = submit("sleep 600", size=2)
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: screen.jobs.get(array, {}).get("counts") == {"RUNNING": 2})
        await cancel(page, jobs=[f"{array}:0"])
        both = {"FAILED": 1, "RUNNING": 1}
        await screen.until(lambda: screen.jobs[array]["counts"] == both)


async def test_each_browser_sees_as_far_back_as_it_asks(page, submit, changes):
    old, new = submit("sleep 600"), submit("sleep 600")

    def age(answer):
        for job in answer.get("jobSummaryList", []) + answer.get("jobs", []):
            if job["jobId"] == old:
                job["createdAt"] -= 2 * 24 * 3600 * 1000
        # As Batch sorts them.
        answer.get("jobSummaryList", []).sort(key=lambda job: -job["createdAt"])

    changes.update(listjobs=age, describejobs=age)
    async with listening(page, "/api/events?since=1d") as events:
        near = Screen(events)
        await near.until(lambda: near.has(new, "RUNNING") and not near.state["loading"])
        async with listening(page, "/api/events?since=30d") as more:
            far = Screen(more)
            await far.until(lambda: far.has(old, "RUNNING") and far.has(new, "RUNNING"))
            await far.loaded()
        await near.looks(2)
        assert old not in near.jobs


async def test_a_job_that_is_listed_late_is_found(page, submit, changes):
    """Lists lag behind: one submitted before another may be listed after it."""
    late = submit("sleep 600")
    hidden = True

    def hide(answer):
        if hidden:
            kept = [job for job in answer["jobSummaryList"] if job["jobId"] != late]
            answer["jobSummaryList"] = kept

    changes["listjobs"] = hide
    later = [submit("sleep 600") for _ in range(101)]
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: set(later) <= set(screen.jobs) and not screen.state["loading"])
        assert late not in screen.jobs
        hidden = False
        await screen.until(lambda: late in screen.jobs)
