"""What the page's server tells while jobs come, run and end."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import boto3

from farcall.ui.watchers import ACTIVE_S
from tests.support.patience import until_async
from tests.ui import serving, tasks
from tests.ui.server.screen import Screen, cancel, get, listening


def place_of(bundle, name):
    """Return bucket and key of an object beside the output of a bundle's only task."""
    bucket, _, key = bundle.removeprefix("s3://").partition("/")
    root, _, bundle = key.rpartition("/bundles/")
    return bucket, f"{root}/streams/{bundle}/0/{name}"


async def is_running(page, job_id):
    return (await get(page, f"/api/jobs/{job_id}"))["job"]["state"] == "RUNNING"


async def is_gone(s3, bucket, key):
    listed = await asyncio.to_thread(s3.list_objects_v2, Bucket=bucket, Prefix=key)
    return not listed["KeyCount"]


OTHER = "somebody-20260101-000000-abcdef"


async def test_a_task_is_seen_from_its_beginning_to_its_end(page, executor, tmp_path):
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
        assert screen.jobs[job.id] == found["job"]
        assert "returned" == found["explanation"]["kind"]
        assert [1] == [attempt["attempt"] for attempt in found["attempts"]]
        assert (None, {}) == (found["position"], found["links"])
        assert 7 == await job.result()


async def test_what_a_task_uses_is_told_while_somebody_looks(page, executor, proxy, tmp_path):
    gate = tmp_path / "gate"
    async with executor(workflow="using") as batch:
        job = await batch.submit(tasks.fill, str(gate), 64)
        await until_async(lambda: is_running(page, job.id))
        found = await get(page, f"/api/jobs/{job.id}")
        assert found["usage_now"] is None  # nobody looks
        bucket, key = place_of(found["bundle"], "usage")
        _, mark = place_of(found["bundle"], "followed")
        s3 = boto3.client("s3")

        async with listening(page, f"/api/jobs/{job.id}/logs"):

            async def is_told():
                nonlocal found
                found = await get(page, f"/api/jobs/{job.id}")
                return found["usage_now"]

            await until_async(is_told)
            said = found["usage_now"]
            assert 64 << 20 <= said["memory_bytes"] <= said["peak_memory_bytes"]
            assert 0 <= said["cpu_s"] < 60

        await asyncio.to_thread(
            s3.put_object, Bucket=bucket, Key=key, Body=b'{"attempt": 1, "memory_bytes": 7}'
        )
        said = (await get(page, f"/api/jobs/{job.id}"))["usage_now"]
        assert said is None or said["memory_bytes"] >= 64 << 20  # the task's own words, anew
        await until_async(lambda: is_gone(s3, bucket, mark))
        proxy.counts.clear()
        await get(page, f"/api/jobs/{job.id}")
        assert 1 == proxy.counts["s3 GET streams"]
        gate.touch()
        assert 64 << 20 == await job.result()
    # Whoever takes the value deletes what was told.
    await until_async(lambda: is_gone(s3, bucket, key))
    assert (await get(page, f"/api/jobs/{job.id}"))["usage_now"] is None


async def test_what_a_lost_attempt_has_told_is_not_the_next_one_s(page, executor, aws, tmp_path):
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    async with executor(workflow="lost", retry_attempts=2) as batch:
        job = await batch.submit(tasks.fill_again, str(gate), str(begun), 64)
        overview = f"/api/jobs/{job.id}"

        async def usage_now():
            return (await get(page, overview))["usage_now"]

        await until_async(lambda: is_running(page, job.id))
        async with listening(page, f"{overview}/logs"):
            await until_async(usage_now)
        found = await get(page, overview)
        bucket, key = place_of(found["bundle"], "usage")
        _, mark = place_of(found["bundle"], "followed")
        s3 = boto3.client("s3")
        await until_async(lambda: is_gone(s3, bucket, mark))
        aws.reclaim(job.id)
        await until_async(begun.exists)
        # It lies there as long as nobody looks at the second attempt.
        found = await get(page, overview)
        assert (1, "RUNNING") == (len(found["attempts"]), found["job"]["state"])
        assert not await is_gone(s3, bucket, key)
        assert found["usage_now"] is None
        gate.touch()
        assert 64 << 20 == await job.result()
    await until_async(lambda: is_gone(s3, bucket, key))


async def test_a_container_that_was_killed_uses_nothing(page, executor, tmp_path):
    end = tmp_path / "end"
    async with executor(workflow="killed") as batch:
        job = await batch.submit(tasks.fill_and_die, str(end), 64)
        overview = f"/api/jobs/{job.id}"

        async def usage_now():
            return (await get(page, overview))["usage_now"]

        async def has_failed():
            return (await get(page, overview))["job"]["state"] == "FAILED"

        await until_async(lambda: is_running(page, job.id))
        async with listening(page, f"{overview}/logs"):
            await until_async(usage_now)
            end.touch()
            await until_async(has_failed)
            assert await usage_now() is None


async def test_only_what_changed_is_told_again(page, submit):
    first = submit("sleep 600")
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: screen.has(first, "RUNNING") and not screen.state["loading"])
        before = screen.told[first]
        second = submit("sleep 600")
        await screen.until(lambda: screen.has(second, "RUNNING"))
        await screen.looks(2)
        assert before == screen.told[first]
        assert {first: "ending"} == await cancel(page, jobs=[first], reason="enough")
        await screen.until(lambda: screen.has(first, "CANCELLED"))
        assert "enough" in screen.jobs[first]["reason"]
        assert screen.has(second, "RUNNING")


async def test_one_child_is_cancelled_and_then_the_run(page, submit, client):
    array = submit("sleep 600", size=3)
    other = submit("sleep 600", workflow="other")
    path = f"/api/jobs/{array}/children/events"
    async with listening(page, path) as events, listening(page) as jobs:
        screen, all_jobs = Screen(events), Screen(jobs)
        await screen.until(lambda: screen.states() == {"RUNNING": 3})
        assert {f"{array}:1": "ending"} == await cancel(page, jobs=[f"{array}:1"])
        await screen.until(lambda: screen.children[1]["s"] == "CANCELLED")
        assert {"RUNNING": 2, "CANCELLED": 1} == screen.states()
        assert screen.children[1]["b"] <= screen.children[1]["e"]
        assert {f"{array}:1": "ended"} == await cancel(page, jobs=[f"{array}:1"])

        assert {array: "ending"} == await cancel(page, run=client, workflow="shell")
        await screen.until(lambda: screen.states() == {"CANCELLED": 3})
        await all_jobs.until(lambda: all_jobs.has(array, "CANCELLED"))
        await all_jobs.until(lambda: all_jobs.has(other, "RUNNING"))
        assert {} == await cancel(page, run="nobody", workflow="shell")
        assert {other: "ending"} == await cancel(page, run=client)


async def test_jobs_of_others_are_not_shown_and_foreign_ones_left_alone(page, submit):
    theirs = submit("sleep 600", run=OTHER)
    foreign = submit("sleep 600", run="")
    own = submit("sleep 600")
    async with listening(page) as events:
        screen = Screen(events)
        await screen.until(lambda: screen.has(own, "RUNNING") and not screen.state["loading"])
    assert not {theirs, foreign} & set(screen.jobs)
    assert {foreign: "foreign"} == await cancel(page, jobs=[foreign])
    async with page.get(f"/api/jobs/{foreign}") as answer:
        assert 404 == answer.status
    async with page.get(f"/api/jobs/{own}/children/events") as answer:
        assert 400 == answer.status


async def test_a_read_only_page_shows_and_cancels_nothing(embedded, submit, tmp_path):
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
                await screen.looks(2)
                assert screen.has(theirs, "RUNNING")


async def test_nodes_of_a_command_job_are_seen_with_what_each_writes(page, executor, tmp_path):
    gate = tmp_path / "gate"
    text = (
        "echo node $AWS_BATCH_JOB_NODE_INDEX; "
        f"if [ $AWS_BATCH_JOB_NODE_INDEX = 1 ]; then exit 7; fi; "
        f"until [ -e {gate} ]; do sleep 0.05; done; exit 3"
    )
    command = ["sh", "-c", text]
    job = await executor(workflow="gang").command("img", command, nodes=2, name="hello")
    async with listening(page) as events:
        all_jobs = Screen(events)
        await all_jobs.until(lambda: all_jobs.has(job.id, "RUNNING"))
        shown = all_jobs.jobs[job.id]
        assert ("hello", "gang", "command") == (
            shown["function"],
            shown["workflow"],
            shown["kind"],
        )
        assert 2 == shown["node_count"]
        async with listening(page, f"/api/jobs/{job.id}/children/events") as told:
            screen = Screen(told)
            await screen.until(lambda: screen.states() == {"RUNNING": 1, "FAILED": 1})
            assert (None, 7) == (screen.children[0]["x"], screen.children[1]["x"])
            assert {f"{job.id}#1": "node"} == await cancel(page, jobs=[f"{job.id}#1"])
            gate.touch()
            await screen.until(lambda: screen.states() == {"FAILED": 2})
            assert 3 == screen.children[0]["x"]
        await all_jobs.until(lambda: all_jobs.has(job.id, "FAILED"))
    found = await get(page, f"/api/jobs/{job.id}%231")
    assert (job.id, 1, 7) == tuple(found["job"][name] for name in ("parent", "index", "exit_code"))
    found = await get(page, f"/api/jobs/{job.id}")
    assert [3, 7] == [node["exit_code"] for node in found["nodes"]]
    assert [job.id + "#1", job.id + "#0"] == [
        c["job_id"] for c in found["explanation"]["children"]
    ]
    for number in range(2):
        written = []
        async with listening(page, f"/api/jobs/{job.id}%23{number}/logs") as lines:
            async for name, said in lines:
                if name == "end":
                    assert {} == said
                    break
                written += said["lines"]
        assert [(f"node {number}", "log")] == [(line["text"], line["stream"]) for line in written]
    async with page.get(f"/api/jobs/{job.id}/logs") as answer:
        assert 400 == answer.status
        assert "its nodes do" in (await answer.json())["error"]


async def test_the_nodes_of_one_job_take_few_requests(page, executor, proxy, tmp_path):
    gate = tmp_path / "gate"
    text = f"until [ -e {gate} ]; do sleep 0.5; done"
    job = await executor().command("img", ["sh", "-c", text], nodes=120)
    path = f"/api/jobs/{job.id}/children/events"
    async with listening(page, path) as events, listening(page, path) as again:
        screen, other = Screen(events), Screen(again)
        await screen.until(lambda: screen.states() == {"RUNNING": 120})
        began = time.monotonic()
        proxy.counts.clear()
        await screen.looks(2)
        await other.until(lambda: other.states() == {"RUNNING": 120})
        asked = proxy.counts["batch describejobs"]
        # Two pages a look, for however many browsers; one of them was on its way, one is.
        assert asked <= 2 * (2 + (time.monotonic() - began) / ACTIVE_S)
        gate.touch()
        await screen.until(lambda: not {"RUNNING", "STARTING"} & set(screen.states()))
        while proxy.counts["batch describejobs"]:  # until its end is known there
            proxy.counts.clear()
            await screen.looks(1)
