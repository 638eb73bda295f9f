"""The web UI's API while jobs are submitted, run and finish.

Starts the web UI and jobs on the local AWS emulator, because events follow the jobs' states.
"""

import aiohttp
import pytest

from tests.ui import serving, tasks
from tests.ui.server.screen import Screen, cancel, get, listening

OTHER = "alice-20260101-000000-abcdef"


async def test_task_events_follow_its_states(page, executor, tmp_path):
    gate = tmp_path / "gate"
    async with listening(page) as events, executor(workflow="seen") as batch:
        screen = Screen(events)
        await screen.loaded()
        job = await batch.submit(tasks.hold, str(gate), 7)
        await screen.until(lambda: screen.has(job.id, "RUNNING"))
        shown = screen.jobs[job.id]
        assert ("hold", "seen", 1.0) == (shown["function"], shown["workflow"], shown["vcpu"])

        async with listening(page, f"/api/jobs/{job.id}/logs") as lines:
            written = []
            while len(written) < 2:
                written += (await anext(lines))[1]["lines"]
            assert {("7 has begun", "stdout"), ("7 complains", "stderr")} == {
                (line["text"], line["stream"]) for line in written
            }
            gate.touch()
            async for name, said in lines:
                if name == "end":
                    assert {} == said
                    break
                written += said["lines"]
        assert "7 is over" == written[-1]["text"]
        assert 1 == written[-1]["attempt"]

        await screen.until(lambda: screen.has(job.id, "SUCCEEDED"))
        assert 1 == screen.jobs[job.id]["attempts"]
        found = await get(page, f"/api/jobs/{job.id}")
        assert screen.jobs[job.id] == {**found["job"], "waits_for": ""}
        assert "returned" == found["explanation"]["kind"]
        assert [1] == [attempt["attempt"] for attempt in found["attempts"]]
        assert (None, {}) == (found["position"], found["links"])
        assert 7 == await job.result()


@pytest.mark.core
async def test_array_task_and_run_are_cancelled(page, submit, client):
    array = submit("sleep 600", size=3)
    other = submit("sleep 600", workflow="other")
    path = f"/api/jobs/{array}/children/events"
    async with listening(page, path) as events, listening(page) as jobs:
        screen, all_jobs = Screen(events), Screen(jobs)
        await screen.until(lambda: screen.states() == {"RUNNING": 3})
        assert {f"{array}:1": "cancelling"} == await cancel(page, jobs=[f"{array}:1"])
        await screen.until(lambda: screen.children[1]["s"] == "CANCELLED")
        assert {"RUNNING": 2, "CANCELLED": 1} == screen.states()
        assert screen.children[1]["b"] <= screen.children[1]["e"]
        assert {f"{array}:1": "finished"} == await cancel(page, jobs=[f"{array}:1"])

        assert {array: "cancelling"} == await cancel(page, run=client, workflow="shell")
        await screen.until(lambda: screen.states() == {"CANCELLED": 3})
        await all_jobs.until(lambda: all_jobs.has(array, "CANCELLED"))
        await all_jobs.until(lambda: all_jobs.has(other, "RUNNING"))
        assert {} == await cancel(page, run="unknown", workflow="shell")
        assert {other: "cancelling"} == await cancel(page, run=client)


async def test_foreign_jobs_are_hidden_and_kept(page, submit):
    theirs = submit("sleep 600", run=OTHER)
    foreign = submit("sleep 600", run="")
    own = submit("sleep 600")
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: screen.has(own, "RUNNING") and not screen.state["loading"])
    assert not {theirs, foreign} & set(screen.jobs)
    assert {foreign: "not_farcall"} == await cancel(page, jobs=[foreign])
    async with page.get(f"/api/jobs/{foreign}") as answer:
        assert 404 == answer.status
    async with page.get(f"/api/jobs/{own}/children/events") as answer:
        assert 400 == answer.status


async def test_read_only_server_rejects_cancel(embedded, submit, tmp_path):
    theirs = submit("sleep 600", run=OTHER)
    environment = {**embedded.environment, "HOME": str(tmp_path)}
    with serving.page(environment, "--read-only", "--all-users") as served:
        async with aiohttp.ClientSession(served.url, headers=served.headers) as page:
            about = await get(page, "/api/about")
            assert (True, "") == (about["read_only"], about["user"])
            async with listening(page) as events:
                screen = Screen(events)
                await screen.until(lambda: screen.has(theirs, "RUNNING"))
                async with page.post("/api/cancel", json={"jobs": [theirs]}) as answer:
                    assert 403 == answer.status
                    assert "--read-only" in (await answer.json())["error"]
                await screen.wait_for_polls(2)
                assert screen.has(theirs, "RUNNING")
