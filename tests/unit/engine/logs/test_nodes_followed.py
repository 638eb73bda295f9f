from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
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
    """Return a platform with a running job on a number of nodes with empty logs."""
    platform = Platform()
    say(platform, count, JobStatus.RUNNING)
    for index in range(count):
        platform.write(f"s{index}")
    return platform


def say(platform, count, status):
    """Give the job and all its nodes a status."""
    platform.say(*(node(index, status) for index in range(count)))
    platform.say(job(count, status) if count > 1 else replace(node(0, status), job_id="job"))


def finish(platform, count):
    """Have the job and all its nodes ended."""
    say(platform, count, DONE)


@contextlib.asynccontextmanager
async def following(platform, *nodes, timing=TIMING, logs=None, **how):
    """Follow a job in a block, and give the list that the lines come to; then wait for the end."""
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


# --- no line lost, none doubled ---------------------------------------------------------------


async def test_who_follows_gets_each_line_once_and_the_end(clock):
    platform = running(2)
    platform.write("s0", "a", at=1)
    async with following(platform) as lines:
        await asyncio.sleep(3)
        platform.write("s1", "b", "b", at=2)
        await asyncio.sleep(30)
        finish(platform, 2)
    assert texts(lines) == ["a", "b", "b"]


async def test_the_last_lines_may_come_after_the_end(clock):
    platform = running(2)
    platform.write("s0", "a", at=1)
    async with following(platform) as lines:
        finish(platform, 2)
        await asyncio.sleep(TIMING.attempts_pause_s + 1)
        platform.write("s1", "b", at=3)
        await asyncio.sleep(1)
        platform.write("s0", "c", at=4)
    assert texts(lines) == ["a", "b", "c"]


async def test_a_line_that_comes_late_is_given_late(clock):
    platform = running(2)
    async with following(platform) as lines:
        for second in range(0, 120, 2):
            platform.write("s0", f"in time {second}", at=second)
            await asyncio.sleep(2)
            if second == 60:
                platform.write("s1", "late", at=5, taken_at=60)
        finish(platform, 2)
    assert Counter(texts(lines)).most_common(1)[0][1] == 1
    assert len(lines) == 61
    assert ("late", 1) in [(line.text, line.node) for line in lines]


@pytest.mark.parametrize("late_s", [1, 9, 11, 30, 55])
async def test_no_line_is_lost_that_is_late_by_up_to_a_minute(clock, late_s):
    platform = running(2)
    async with following(platform) as lines:
        for second in range(100):
            platform.write("s0", f"0/{second}", at=second)
            if second >= late_s:
                platform.write("s1", f"1/{second}", at=second - late_s, taken_at=second)
            await asyncio.sleep(1)
        finish(platform, 2)
    assert sorted(texts(lines)) == sorted(
        [f"0/{second}" for second in range(100)] + [f"1/{second}" for second in range(late_s, 100)]
    )


async def test_lines_of_one_millisecond_are_told_apart_by_their_keys(clock):
    platform = running(1)
    async with following(platform) as lines:
        for number in range(10):
            platform.write("s0", "the same", at=7)
            await asyncio.sleep(0.3 * number)
        finish(platform, 1)
    assert texts(lines) == ["the same"] * 10


async def test_pages_may_be_small_or_empty(clock):
    platform = running(3)
    platform.page, platform.empty = 2, 1
    async with following(platform) as lines:
        for second in range(20):
            for index in range(3):
                platform.write(f"s{index}", f"{index}/{second}", at=second)
            await asyncio.sleep(0.7)
        finish(platform, 3)
    for index in range(3):
        mine = [line.text for line in lines if line.node == index]
        assert mine == [f"{index}/{second}" for second in range(20)]


async def test_a_machine_whose_clock_is_ahead_hides_no_others_lines(clock):
    platform = running(2)
    async with following(platform) as lines:
        platform.write("s0", "from the future", at=3600, taken_at=0)
        for second in range(10):
            platform.write("s1", str(second), at=second)
            await asyncio.sleep(1)
        finish(platform, 2)
    assert len(lines) == 11


async def test_a_quiet_node_is_not_read_from_its_beginning_with_a_chatty_one(clock):
    platform = running(2)
    for second in range(3000):
        platform.write("s0", f"old {second}", at=second)
    platform.page = 1000
    async with following(platform, 0) as lines:
        await asyncio.sleep(3)
        reads = len(platform.reads)
        async with following(platform, 1, logs=None) as quiet:
            await asyncio.sleep(10)
            finish(platform, 2)
    assert len(lines) == 3000
    assert quiet == []
    assert len(platform.reads) - reads < 40


# --- requests ---------------------------------------------------------------------------------


async def test_all_who_follow_share_one_request_a_look(clock):
    platform = running(16)
    logs = node_logs(platform, TIMING)
    async with contextlib.AsyncExitStack() as stack:
        each = [
            await stack.enter_async_context(following(platform, index, logs=logs))
            for index in range(16)
        ]
        reads = len(platform.reads)
        for second in range(60):
            for index in range(16):
                platform.write(f"s{index}", f"{index}/{second}", at=second)
            await asyncio.sleep(1)
        looked = platform.reads[reads:]
        assert {len(streams) for streams, _, _ in looked} == {16}
        assert 50 <= len(looked) <= 70
        assert reads <= 40
        finish(platform, 16)
    for index, lines in enumerate(each):
        assert texts(lines) == [f"{index}/{second}" for second in range(60)]


async def test_those_who_come_together_are_read_together(clock):
    platform = running(16)
    logs = node_logs(platform, TIMING)
    each = [
        asyncio.ensure_future(collect(lines_of(logs, "job", [index], follow=True)))
        for index in range(16)
    ]
    await asyncio.sleep(10)
    assert {len(streams) for streams, _, _ in platform.reads[16:]} == {16}
    assert len(platform.describes) <= 8
    finish(platform, 16)
    await asyncio.gather(*each)


async def test_a_thousand_nodes_take_a_request_for_each_hundred(clock):
    platform = running(1000)
    async with following(platform) as lines:
        platform.write("s999", "a", at=1)
        await asyncio.sleep(30)
        assert {len(streams) for streams, _, _ in platform.reads} == {100}
        assert len(platform.reads) <= 10 * 8
        assert len(platform.describes) <= 6 * 11
        finish(platform, 1000)
    assert texts(lines) == ["a"]


async def test_while_nothing_is_written_is_looked_ever_more_seldom(clock):
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


async def test_many_lines_are_looked_at_more_seldom(clock):
    platform = running(1)
    platform.page = 10
    async with following(platform) as lines:
        for second in range(30):
            platform.write("s0", *(str(number) for number in range(20)), at=second)
            await asyncio.sleep(1)
        assert len(platform.reads) <= 30 * 2 + 100
        finish(platform, 1)
    assert len(lines) == 600


# --- logs that are not there ------------------------------------------------------------------


async def test_a_log_that_comes_later_is_read_from_its_beginning(clock):
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


async def test_logs_that_never_come_cost_few_requests_and_no_end(clock):
    platform = running(16)
    platform.logs.clear()
    async with following(platform) as lines:
        await asyncio.sleep(60)
        assert len(platform.reads) <= 130
        finish(platform, 16)
    assert lines == []


async def test_a_log_that_is_deleted_keeps_no_other_from_being_read(clock):
    platform = running(3)
    platform.write("s0", "before", at=1)
    async with following(platform) as lines:
        del platform.logs["s1"]
        await asyncio.sleep(5)
        platform.write("s2", "after", at=5)
        await asyncio.sleep(5)
        finish(platform, 3)
    assert texts(lines) == ["before", "after"]


# --- refusals ---------------------------------------------------------------------------------


def refused(code, status):
    return ServiceError(
        f"FilterLogEvents: no ({code})", operation="FilterLogEvents", code=code, status=status
    )


async def test_a_node_without_a_log_at_the_end_is_over(clock):
    """As on Kubernetes, which deletes the pods of other nodes when the main node succeeds."""
    platform = running(2)
    platform.write("s1", "from the other node", at=1)
    async with following(platform) as lines:
        await asyncio.sleep(3)
        del platform.logs["s1"]
        platform.say(job(2, DONE), node(0, DONE), node(1, DONE, stream=""))
    assert texts(lines) == ["from the other node"]


async def test_throttling_is_borne(clock):
    platform = running(2)
    async with following(platform) as lines:
        platform.write("s0", "a", at=1)
        platform.errors += [refused("ThrottlingException", 400)] * 5
        await asyncio.sleep(40)
        platform.write("s1", "b", at=40)
        finish(platform, 2)
    assert texts(lines) == ["a", "b"]


async def test_a_refusal_that_lasts_is_told_to_those_it_concerns(clock):
    platform = running(2)
    lines = []
    platform.write("s0", "a", at=1)
    with pytest.raises(ServiceError, match="AccessDenied"):
        async with following(platform) as lines:
            platform.errors.append(refused("AccessDeniedException", 400))
    assert texts(lines) == ["a"]


async def test_a_bug_keeps_nobody_waiting_for_ever(clock):
    platform = running(1)
    with pytest.raises(ZeroDivisionError):
        async with following(platform):
            platform.errors.append(ZeroDivisionError())


# --- beginnings and ends ----------------------------------------------------------------------


async def test_a_job_that_has_not_started_is_waited_for(clock):
    platform = Platform(job(2, JobStatus.RUNNABLE))
    async with following(platform) as lines:
        await asyncio.sleep(100)
        assert platform.reads == []
        platform.say(job(2), node(0), node(1))
        platform.write("s0", "a", at=1)
        platform.write("s1", "b", at=2)
        await asyncio.sleep(10)
        finish(platform, 2)
    assert texts(lines) == ["a", "b"]


async def test_a_job_just_submitted_may_not_be_known_yet(clock):
    platform = Platform()
    async with following(platform, 1) as lines:
        await asyncio.sleep(10)
        platform.say(job(2), node(0), node(1))
        platform.write("s1", "a", at=1)
        await asyncio.sleep(10)
        finish(platform, 2)
    assert texts(lines) == ["a"]
    with pytest.raises(JobLostError):
        async with following(Platform()):
            pass


async def test_a_job_that_never_runs_ends_with_nothing(clock):
    platform = Platform(job(2, JobStatus.RUNNABLE))
    async with following(platform) as lines:
        platform.say(job(2, JobStatus.FAILED))
    assert lines == []


async def test_a_job_that_is_forgotten_has_ended(clock):
    platform = running(2)
    platform.write("s0", "a", at=1)
    async with following(platform) as lines:
        platform.jobs.clear()
    assert texts(lines) == ["a"]


async def test_a_job_that_ended_long_ago_is_read_with_one_request(clock):
    done = {"stopped_at": moment(100)}
    platform = Platform(job(2, DONE, **done), node(0, DONE, **done), node(1, DONE, **done))
    platform.write("s0", "a", at=1)
    platform.write("s1", "b", at=2)
    async with following(platform) as lines:
        pass
    assert texts(lines) == ["a", "b"]
    assert len(platform.reads) == 1


async def test_a_node_that_ends_before_the_others_is_not_waited_for_with_them(clock):
    platform = running(2)
    platform.write("s1", "a", at=1)
    async with following(platform, 1) as lines:
        platform.say(node(1, DONE))
    assert texts(lines) == ["a"]


def attempt(stream, start, stop):
    return Attempt("", "", 1, stream, moment(start), moment(stop))


async def test_later_attempts_are_followed_and_earlier_ones_are_not_read(clock):
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
        platform.say(
            job(2, JobStatus.RUNNABLE, **waits),
            node(0, JobStatus.FAILED, tried=tried, started_at=moment(20)),
            node(1, JobStatus.FAILED, tried=(attempt("s1", 20, 30),), started_at=moment(20)),
        )
        await asyncio.sleep(20)
        platform.say(
            job(2, **waits),
            node(0, stream="t0", tried=tried, started_at=moment(40)),
            node(1, stream="t1", tried=(attempt("s1", 20, 30),), started_at=moment(40)),
        )
        platform.write("t0", "c", at=41)
        platform.write("t1", "d", at=42)
        await asyncio.sleep(20)
        finish(platform, 2)
        platform.say(
            node(0, DONE, stream="t0", tried=tried, started_at=moment(40)),
            node(1, DONE, stream="t1", tried=(attempt("s1", 20, 30),), started_at=moment(40)),
        )
    assert [(line.attempt, line.text) for line in lines] == [
        (2, "a"),
        (2, "b"),
        (3, "c"),
        (3, "d"),
    ]


async def test_one_attempt_is_followed_to_its_end(clock):
    platform = Platform(
        job(2, attempts_allowed=2), node(0, attempts_allowed=2), node(1, attempts_allowed=2)
    )
    platform.write("s0", "a", at=1)
    platform.write("s1", "b", at=2)
    async with following(platform, attempt=1) as lines:
        await asyncio.sleep(5)
        platform.say(
            job(2, JobStatus.RUNNABLE, attempts_allowed=2, tried=(attempt("s0", 0, 10),)),
            node(0, JobStatus.FAILED, tried=(attempt("s0", 0, 10),)),
            node(1, JobStatus.FAILED, tried=(attempt("s1", 0, 10),)),
        )
    assert texts(lines) == ["a", "b"]


# --- parts ------------------------------------------------------------------------------------


async def test_the_last_lines_come_first_and_then_what_is_new(clock):
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


async def test_of_no_last_lines_only_what_is_new_comes(clock):
    platform = running(1)
    platform.write("s0", "old", at=1)
    async with following(platform, tail=0) as lines:
        platform.write("s0", "new", at=2)
        await asyncio.sleep(5)
        finish(platform, 1)
    assert texts(lines) == ["new"]


async def test_a_range_of_times_is_followed_to_its_end(clock):
    platform = running(1)
    for second in range(10):
        platform.write("s0", str(second), at=second)
    async with following(platform, since=moment(3), until=moment(5)) as lines:
        pass
    assert texts(lines) == ["3", "4", "5"]


async def test_who_takes_slowly_gets_all_and_holds_up_nobody(clock):
    platform = running(2)
    platform.page = 20
    for second in range(500):
        platform.write("s0", str(second), at=second)
    logs = node_logs(platform, TIMING)
    slow = lines_of(logs, "job", [0], follow=True)
    taken = [await anext(slow)]
    async with following(platform, 1, logs=logs) as quick:
        await asyncio.sleep(10)
        assert len(platform.reads) < 30  # which would be more if the rest were read ahead
        platform.write("s1", "a", at=500)
        await asyncio.sleep(10)
        assert texts(quick) == ["a"]
        finish(platform, 2)
        taken += await collect(slow)
    assert texts(taken) == [str(second) for second in range(500)]


async def test_who_leaves_is_looked_for_no_more(clock):
    platform = running(2)
    logs = node_logs(platform, TIMING)
    lines = lines_of(logs, "job", follow=True)
    platform.write("s0", "a", at=1)
    assert (await anext(lines)).text == "a"
    await lines.aclose()
    asked = len(platform.reads), len(platform.describes)
    await asyncio.sleep(100)
    assert (len(platform.reads), len(platform.describes)) == asked
    # Another one may come.
    async with following(platform, logs=logs) as again:
        finish(platform, 2)
    assert texts(again) == ["a"]


async def test_the_sessions_end_waits_for_the_request_of_one_who_has_left(clock):
    platform = running(1)
    logs = node_logs(platform, TIMING)
    ended = []
    read = platform.log_events

    async def log_events(*place):
        if len(platform.reads) >= 2:  # each has read its log from the beginning
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1)
                ended.append("a request")
        async for events in read(*place):
            yield events

    platform.log_events = log_events
    leaves, stays = [
        asyncio.ensure_future(collect(lines_of(logs, "job", follow=True))) for _ in range(2)
    ]
    await asyncio.sleep(10)
    leaves.cancel()
    await asyncio.wait([leaves])
    assert ended == []
    await logs.close()
    assert ended == ["a request"]
    with pytest.raises(FarcallError, match="the session was closed"):
        await stays


async def test_who_is_cancelled_is_let_go_of(clock):
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


async def test_who_follows_is_told_of_the_sessions_end(clock):
    platform = running(2)
    logs = node_logs(platform, TIMING)
    task = asyncio.ensure_future(collect(lines_of(logs, "job", follow=True)))
    await asyncio.sleep(5)
    await logs.close()
    with pytest.raises(FarcallError, match="the session was closed"):
        await task
    with pytest.raises(FarcallError, match="the session was closed"):
        await collect(lines_of(logs, "job", follow=True))
