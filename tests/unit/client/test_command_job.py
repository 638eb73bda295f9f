"""Command jobs, as users handle them, on the fake cloud."""

import asyncio
import contextlib

import pytest

from farcall import (
    BatchExecutor,
    CommandError,
    FarcallError,
    JobCancelledError,
    JobStatus,
    Nodes,
    SettingsError,
)
from farcall.client.command_job import group_nodes, name_of
from farcall.engine.session import session_for
from farcall.testing import HostLost


@pytest.fixture
def executor(cloud):
    return BatchExecutor(vcpu=1, memory=0.5, retry_attempts=1)


# --- descriptions -----------------------------------------------------------------------------


def test_top_level_options_form_one_group():
    options = {"image": "a", "command": ["b"], "shm_size": 0.5, "privileged": True, "nodes": 2}
    expected = Nodes(2, "a", ["b"], shm_size=0.5, privileged=True)
    assert group_nodes(None, options, 7) == (expected,)


@pytest.mark.parametrize(
    ("groups", "alone", "message"),
    [
        (None, {"image": None}, "needs an image or groups"),
        ([], {"image": ""}, "needs an image or groups"),
        (
            [Nodes(1, "a")],
            {"image": "a", "user": "b"},
            "image, user cannot be combined with",
        ),
        ([Nodes(1, "a")], {"shm_size": 0}, "shm_size cannot be combined with groups"),
        ([{"image": "a"}], {}, "groups contains a dict"),
    ],
)
def test_invalid_groups_are_rejected(groups, alone, message):
    with pytest.raises(SettingsError, match=message):
        group_nodes(groups, alone, 1)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("alpine", "alpine"),
        ("alpine:3", "alpine"),
        ("host:5000/team/trainer:1.2@sha256:0a1b", "trainer"),
        ("trainer@sha256:0a1b", "trainer"),
    ],
)
def test_unnamed_job_is_named_after_image(image, name):
    assert name_of([Nodes(1, image)]) == name


# --- results, errors and logs -----------------------------------------------------------------


async def test_result_can_be_awaited_repeatedly(executor):
    job = await executor.command("alpine:3", ["true"], name="hello")
    assert repr(job) == f"<CommandJob {job.id}>"
    first = await job.wait()
    assert (first.job_id, first.exit_codes, first.attempts) == (job.id, (0,), 1)
    assert first.started_at <= first.stopped_at
    assert await job.wait() == first
    assert repr(job) == f"<CommandJob {job.id} done>"
    assert await job.status() is JobStatus.SUCCEEDED
    assert [node.job_id for node in await job.nodes()] == [job.id]


async def test_error_has_main_node_log_tail(cloud, executor):
    cloud.next_job(HostLost())
    script = "for n in $(seq 300); do echo $n; done; exit 3"
    job = await executor.command("alpine:3", ["sh", "-c", script], nodes=2, retry_attempts=2)
    with pytest.raises(CommandError, match="Attempt 1 failed with HostLostError") as caught:
        await job.wait()
    error = caught.value
    assert (error.job_id, error.exit_code, error.attempts) == (job.id, 3, 2)
    assert error.stdout.splitlines() == [str(n) for n in range(101, 301)]
    assert isinstance(error, FarcallError)


async def test_logs_cover_one_or_all_nodes(executor):
    job = await executor.command("alpine:3", ["sh", "-c", "echo hi; exec sleep 600"], nodes=2)
    found = set()
    lines = job.logs(follow=True)
    async for line in lines:
        found.add((line.node, line.text))
        if len(found) == 2:
            break
    await lines.aclose()
    assert found == {(0, "hi"), (1, "hi")}
    assert [line.node async for line in job.logs(1)] == [1]
    await job.cancel()


async def test_deleted_job_raises_when_awaited(executor):
    job = await executor.command("alpine:3", ["sleep", "600"])
    await job.delete()
    with pytest.raises(JobCancelledError, match="deleted by its owner"):
        await job.wait()
    await job.delete()  # a second call has no effect


def test_other_event_loop_waits_after_end(executor):
    """While a job runs, only the event loop that submitted it may wait for it."""

    async def begin():
        return await executor.command("alpine:3", ["sleep", "600"])

    async def leave():
        await (await session_for(executor.settings)).close()

    async def end():
        with pytest.raises(JobCancelledError):
            await job.wait()

    with contextlib.closing(asyncio.new_event_loop()) as first:
        job = first.run_until_complete(begin())
        with pytest.raises(FarcallError, match=r"attach_command\('.*'\) to get a handle"):
            asyncio.run(job.wait())
        first.run_until_complete(job.cancel())
        first.run_until_complete(end())
        asyncio.run(end())
        first.run_until_complete(leave())
