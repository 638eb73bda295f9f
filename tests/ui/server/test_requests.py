"""API requests of the web UI's server, and its errors if Batch does not respond.

Starts the web UI behind a proxy that rejects requests and changes the local AWS emulator's
responses.
"""

import pytest

from tests.ui.server.screen import Screen, cancel, listening


async def test_error_is_shown_until_it_passes(page, submit, proxy):
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
    """Changes of Batch's responses; they are cleared after the test."""
    yield proxy.changes
    proxy.changes.clear()


async def test_arrays_are_counted_without_list_counts(page, submit, changes):
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


async def test_since_limits_each_browser(page, submit, changes):
    old, new = submit("sleep 600"), submit("sleep 600")

    def age(answer):
        for job in answer.get("jobSummaryList", []) + answer.get("jobs", []):
            if job["jobId"] == old:
                job["createdAt"] -= 2 * 24 * 3600 * 1000
        # Batch returns the newest jobs first.
        answer.get("jobSummaryList", []).sort(key=lambda job: -job["createdAt"])

    changes.update(listjobs=age, describejobs=age)
    async with listening(page, "/api/events?since=1d") as events:
        near = Screen(events)
        await near.until(lambda: near.has(new, "RUNNING") and not near.state["loading"])
        async with listening(page, "/api/events?since=30d") as more:
            far = Screen(more)
            await far.until(lambda: far.has(old, "RUNNING") and far.has(new, "RUNNING"))
            await far.loaded()
        await near.wait_for_polls(2)
        assert old not in near.jobs


async def test_late_listed_job_is_found(page, submit, changes):
    """ListJobs is eventually consistent: an earlier job may be listed after a later one."""
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
