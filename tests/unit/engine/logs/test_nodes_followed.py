from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from farcall.model.errors import FarcallError, JobLostError, ServiceError
from farcall.model.jobs import Attempt, JobStatus
from farcall.model.timing import Timing
from tests.unit.fakes import Clock
from tests.unit.nodes import Platform, collect, job, lines_of, moment, node, node_logs, texts

TIMING = Timing()
DONE = JobStatus.SUCCEEDED


@pytest.fixture
async def clock(monkeypatch):
    return Clock(asyncio.get_running_loop(), monkeypatch)


def running(count):
    """Return a platform with a running multi-node job whose logs are empty."""
    platform = Platform()
    set_status(platform, count, JobStatus.RUNNING)
    for index in range(count):
        platform.write(f"s{index}")
    return platform


def set_status(platform, count, status):
    """Set the status of the job and all its nodes."""
    platform.update(*(node(index, status) for index in range(count)))
    platform.update(job(count, status) if count > 1 else replace(node(0, status), job_id="job"))


def finish(platform, count):
    """Set the job and all its nodes to SUCCEEDED."""
    set_status(platform, count, DONE)


@contextlib.asynccontextmanager
async def following(platform, *nodes, timing=TIMING, logs=None, **how):
    """Follow a job within a block, yield the list of its lines, and wait for the end."""
    logs = logs or node_logs(platform, timing)
    lines = []

    async def follow():
        async for line in lines_of(logs, "job", nodes or None, follow=True, **how):
            lines.append(line)

    task = asyncio.ensure_future(follow())
    await asyncio.sleep(0.5)
    try:
        yield lines
        await task
    finally:
        task.cancel()


# --- each line once ---------------------------------------------------------------------------


async def test_each_line_is_yielded_once(clock):
    platform = running(2)
    platform.write("s0", "a", at=1)
    async with following(platform) as lines:
        await asyncio.sleep(3)
        platform.write("s1", "b", "b", at=2)
        await asyncio.sleep(30)
        finish(platform, 2)
    assert texts(lines) == ["a", "b", "b"]


async def test_last_lines_may_follow_job_end(clock):
    platform = running(2)
    platform.write("s0", "a", at=1)
    async with following(platform) as lines:
        finish(platform, 2)
        await asyncio.sleep(TIMING.attempts_pause_s + 1)
        platform.write("s1", "b", at=3)
        await asyncio.sleep(1)
        platform.write("s0", "c", at=4)
    assert sorted(texts(lines)) == ["a", "b", "c"]


async def test_late_lines_of_node_are_kept(clock):
    platform = running(2)
    async with following(platform) as lines:
        for second in range(100):
            platform.write("s0", f"0/{second}", at=second)
            if second >= 55:
                platform.write("s1", f"1/{second}", at=second - 55)
            await asyncio.sleep(1)
        finish(platform, 2)
    assert sorted(texts(lines)) == sorted(
        [f"0/{second}" for second in range(100)] + [f"1/{second}" for second in range(55, 100)]
    )


async def test_lines_of_same_millisecond_are_distinct(clock):
    platform = running(1)
    async with following(platform) as lines:
        for number in range(10):
            platform.write("s0", "the same", at=7)
            await asyncio.sleep(0.3 * number)
        finish(platform, 1)
    assert texts(lines) == ["the same"] * 10


async def test_small_pages_are_handled(clock):
    platform = running(3)
    platform.page = 2
    async with following(platform) as lines:
        for second in range(20):
            for index in range(3):
                platform.write(f"s{index}", *(f"{index}/{second}.{n}" for n in range(5)))
            await asyncio.sleep(0.7)
        finish(platform, 3)
    for index in range(3):
        mine = [line.text for line in lines if line.node == index]
        assert mine == [f"{index}/{second}.{n}" for second in range(20) for n in range(5)]


async def test_long_log_does_not_delay_others(clock):
    platform = running(2)
    platform.write("s0", *map(str, range(50_000)), at=1)
    platform.write("s1", "a", at=2)
    async with following(platform) as lines:
        finish(platform, 2)
    assert len(lines) == 50_001
    assert [line.node for line in lines].index(1) <= 10_000


# --- requests ---------------------------------------------------------------------------------


async def test_followers_share_rate_limit(clock):
    platform = running(64)
    logs = node_logs(platform, TIMING)
    async with contextlib.AsyncExitStack() as stack:
        each = [
            await stack.enter_async_context(following(platform, index, logs=logs))
            for index in range(64)
        ]
        reads = len(platform.reads)
        for second in range(60):
            for index in range(64):
                platform.write(f"s{index}", f"{index}/{second}", at=second)
            await asyncio.sleep(1)
        assert 580 <= len(platform.reads) - reads <= 605
        finish(platform, 64)
    for index, lines in enumerate(each):
        assert texts(lines) == [f"{index}/{second}" for second in range(60)]


async def test_idle_polling_slows_down(clock):
    platform = running(1)
    async with following(platform):
        await asyncio.sleep(20)
        reads = len(platform.reads)
        await asyncio.sleep(40)
        assert len(platform.reads) - reads <= 10
        platform.write("s0", "a", at=1)
        await asyncio.sleep(5)
        reads = len(platform.reads)
        platform.write("s0", "b", at=2)
        await asyncio.sleep(1.2)
        assert len(platform.reads) > reads
        finish(platform, 1)


# --- missing logs -----------------------------------------------------------------------------


async def test_late_log_is_read_from_start(clock):
    platform = running(16)
    for missing in (3, 7, 8):
        del platform.logs[f"s{missing}"]
    async with following(platform) as lines:
        for second in range(40):
            for index in range(16):
                if second > 20 or index not in (3, 7, 8):
                    platform.write(f"s{index}", f"{index}/{second}", at=second)
            await asyncio.sleep(1)
        finish(platform, 16)
    for index in range(16):
        first = 21 if index in (3, 7, 8) else 0
        mine = [line.text for line in lines if line.node == index]
        assert mine == [f"{index}/{second}" for second in range(first, 40)]


async def test_deleted_log_does_not_hide_others(clock):
    platform = running(3)
    platform.write("s0", "before", at=1)
    async with following(platform) as lines:
        del platform.logs["s1"]
        await asyncio.sleep(5)
        platform.write("s2", "after", at=5)
        await asyncio.sleep(5)
        finish(platform, 3)
    assert texts(lines) == ["before", "after"]


# --- errors -----------------------------------------------------------------------------------


def refused(code, status):
    return ServiceError(
        f"GetLogEvents: no ({code})", operation="GetLogEvents", code=code, status=status
    )


async def test_deleted_pod_log_ends_its_node(clock):
    """Kubernetes deletes the pods of the other nodes when the main node succeeds."""
    platform = running(2)
    platform.write("s1", "from the other node", at=1)
    async with following(platform) as lines:
        await asyncio.sleep(3)
        del platform.logs["s1"]
        platform.update(job(2, DONE), node(0, DONE), node(1, DONE, stream=""))
    assert texts(lines) == ["from the other node"]


async def test_throttling_is_tolerated(clock):
    platform = running(2)
    async with following(platform) as lines:
        platform.write("s0", "a", at=1)
        platform.errors += [refused("ThrottlingException", 400)] * 5
        await asyncio.sleep(40)
        platform.write("s1", "b", at=40)
        finish(platform, 2)
    assert texts(lines) == ["a", "b"]


async def test_permanent_refusal_reaches_followers(clock):
    platform = running(2)
    lines = []
    platform.write("s0", "a", at=1)
    with pytest.raises(ServiceError, match="AccessDenied"):
        async with following(platform) as lines:
            platform.errors.append(refused("AccessDeniedException", 400))
    assert texts(lines) == ["a"]


async def test_unexpected_error_reaches_followers(clock):
    platform = running(1)
    with pytest.raises(ZeroDivisionError):
        async with following(platform):
            platform.errors.append(ZeroDivisionError())


# --- start and end ----------------------------------------------------------------------------


async def test_unstarted_job_is_awaited(clock):
    platform = Platform(job(2, JobStatus.RUNNABLE))
    async with following(platform) as lines:
        await asyncio.sleep(100)
        assert platform.reads == []
        platform.update(job(2), node(0), node(1))
        platform.write("s0", "a", at=1)
        platform.write("s1", "b", at=2)
        await asyncio.sleep(10)
        finish(platform, 2)
    assert texts(lines) == ["a", "b"]


async def test_new_job_may_be_missing(clock):
    platform = Platform()
    async with following(platform, 1) as lines:
        await asyncio.sleep(10)
        platform.update(job(2), node(0), node(1))
        platform.write("s1", "a", at=1)
        await asyncio.sleep(10)
        finish(platform, 2)
    assert texts(lines) == ["a"]
    with pytest.raises(JobLostError):
        async with following(Platform()):
            pass


async def test_never_started_job_has_no_lines(clock):
    platform = Platform(job(2, JobStatus.RUNNABLE))
    async with following(platform) as lines:
        platform.update(job(2, JobStatus.FAILED))
    assert lines == []


async def test_forgotten_job_has_ended(clock):
    platform = running(2)
    platform.write("s0", "a", at=1)
    async with following(platform) as lines:
        platform.jobs.clear()
    assert texts(lines) == ["a"]


async def test_old_job_needs_one_request(clock):
    done = {"stopped_at": moment(100)}
    platform = Platform(job(2, DONE, **done), node(0, DONE, **done), node(1, DONE, **done))
    platform.write("s0", "a", at=1)
    platform.write("s1", "b", at=2)
    async with following(platform) as lines:
        pass
    assert texts(lines) == ["a", "b"]
    assert platform.reads == ["s0", "s1"]


async def test_followed_node_may_end_first(clock):
    platform = running(2)
    platform.write("s1", "a", at=1)
    async with following(platform, 1) as lines:
        platform.update(node(1, DONE))
    assert texts(lines) == ["a"]


def attempt(stream, start, stop):
    return Attempt("", "", 1, stream, moment(start), moment(stop))


async def test_following_skips_earlier_attempts(clock):
    tried = (attempt("f0", 0, 10),)
    platform = Platform(
        job(2, attempts_allowed=3, tried=tried),
        node(0, tried=tried, started_at=moment(20)),
        node(1, started_at=moment(20)),
    )
    platform.write("f0", "of the first", at=5)
    platform.write("s0", "a", at=21)
    platform.write("s1", "b", at=22)
    async with following(platform) as lines:
        await asyncio.sleep(5)
        tried = (*tried, attempt("s0", 20, 30))
        waits = {"attempts_allowed": 3, "tried": tried}
        platform.update(
            job(2, JobStatus.RUNNABLE, **waits),
            node(0, JobStatus.FAILED, tried=tried, started_at=moment(20)),
            node(1, JobStatus.FAILED, tried=(attempt("s1", 20, 30),), started_at=moment(20)),
        )
        await asyncio.sleep(20)
        platform.update(
            job(2, **waits),
            node(0, stream="t0", tried=tried, started_at=moment(40)),
            node(1, stream="t1", tried=(attempt("s1", 20, 30),), started_at=moment(40)),
        )
        platform.write("t0", "c", at=41)
        platform.write("t1", "d", at=42)
        await asyncio.sleep(20)
        finish(platform, 2)
        platform.update(
            node(0, DONE, stream="t0", tried=tried, started_at=moment(40)),
            node(1, DONE, stream="t1", tried=(attempt("s1", 20, 30),), started_at=moment(40)),
        )
    assert [(line.attempt, line.text) for line in lines] == [
        (2, "a"),
        (2, "b"),
        (3, "c"),
        (3, "d"),
    ]


async def test_single_attempt_is_followed_to_end(clock):
    platform = Platform(
        job(2, attempts_allowed=2), node(0, attempts_allowed=2), node(1, attempts_allowed=2)
    )
    platform.write("s0", "a", at=1)
    platform.write("s1", "b", at=2)
    async with following(platform, attempt=1) as lines:
        await asyncio.sleep(5)
        platform.update(
            job(2, JobStatus.RUNNABLE, attempts_allowed=2, tried=(attempt("s0", 0, 10),)),
            node(0, JobStatus.FAILED, tried=(attempt("s0", 0, 10),)),
            node(1, JobStatus.FAILED, tried=(attempt("s1", 0, 10),)),
        )
    assert texts(lines) == ["a", "b"]


# --- selections -------------------------------------------------------------------------------


async def test_tail_precedes_new_lines(clock):
    platform = running(2)
    for second in range(50):
        platform.write("s0", str(second), at=second)
        platform.write("s1", str(second), at=second)
    async with following(platform, tail=3) as lines:
        assert texts(lines) == ["48", "49", "49"]
        await asyncio.sleep(5)
        platform.write("s0", "new", at=50)
        await asyncio.sleep(20)
        finish(platform, 2)
    assert texts(lines) == ["48", "49", "49", "new"]


async def test_tail_zero_yields_only_new_lines(clock):
    platform = running(1)
    platform.write("s0", "old", at=1)
    async with following(platform, tail=0) as lines:
        platform.write("s0", "new", at=2)
        await asyncio.sleep(5)
        finish(platform, 1)
    assert texts(lines) == ["new"]


async def test_time_range_is_followed_to_end(clock):
    platform = running(1)
    for second in range(10):
        platform.write("s0", str(second), at=second)
    async with following(platform, since=moment(3), until=moment(5)) as lines:
        pass
    assert texts(lines) == ["3", "4", "5"]


async def test_closed_follower_is_not_polled_for(clock):
    platform = running(2)
    logs = node_logs(platform, TIMING)
    lines = lines_of(logs, "job", follow=True)
    platform.write("s0", "a", at=1)
    assert (await anext(lines)).text == "a"
    await lines.aclose()
    asked = len(platform.reads), len(platform.describes)
    await asyncio.sleep(100)
    assert (len(platform.reads), len(platform.describes)) == asked
    assert platform.open == 0
    # A new follower is served.
    async with following(platform, logs=logs) as again:
        finish(platform, 2)
    assert texts(again) == ["a"]


async def test_cancelled_follower_is_released(clock):
    platform = running(2)
    logs = node_logs(platform, TIMING)
    task = asyncio.ensure_future(collect(lines_of(logs, "job", follow=True)))
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    asked = len(platform.reads)
    await asyncio.sleep(100)
    assert len(platform.reads) == asked


async def test_close_raises_in_followers(clock):
    platform = running(2)
    logs = node_logs(platform, TIMING)
    task = asyncio.ensure_future(collect(lines_of(logs, "job", follow=True)))
    await asyncio.sleep(5)
    logs.close()
    with pytest.raises(FarcallError, match="the session was closed"):
        await task
    with pytest.raises(FarcallError, match="the session was closed"):
        await collect(lines_of(logs, "job", follow=True))
