from __future__ import annotations

import pytest

from farcall.model.errors import JobLostError, UnknownError
from farcall.model.jobs import Attempt, JobStatus
from farcall.model.output import LogLine
from farcall.model.timing import Timing
from tests.unit.nodes import Platform, collect, job, lines_of, moment, node, node_logs, texts

TIMING = Timing()
DONE = JobStatus.SUCCEEDED


def platform_of(count, status=DONE):
    """Return a platform with a multi-node job whose logs are empty."""
    platform = Platform(job(count, status), *(node(index, status) for index in range(count)))
    for index in range(count):
        platform.write(f"s{index}")
    return platform


async def read(platform, nodes=None, **how):
    return await collect(lines_of(node_logs(platform, TIMING), "job", nodes, **how))


async def test_node_lines_are_merged_by_time():
    platform = platform_of(3)
    platform.write("s0", "a", "d", at=1)
    platform.write("s1", "b", at=2)
    platform.write("s2", "c", at=0.5)
    lines = await read(platform)
    assert [(line.node, line.text) for line in lines] == [(2, "c"), (0, "a"), (0, "d"), (1, "b")]
    assert lines[0] == LogLine("c", "log", 1, moment(0.5), node=2)
    assert platform.reads == ["s0", "s1", "s2"]


async def test_only_requested_nodes_are_read():
    platform = platform_of(3)
    for index in range(3):
        platform.write(f"s{index}", str(index))
    assert texts(await read(platform, [2, 1, 2])) == ["2", "1"]
    assert platform.reads == ["s2", "s1"]


async def test_pages_of_logs_are_merged():
    platform = platform_of(30)
    platform.page = 3
    for index in range(30):
        for second in range(40):
            platform.write(f"s{index}", f"{index}", at=index + second * 7)
    lines = await read(platform)
    assert len(lines) == 1200
    assert [line.at for line in lines] == sorted(line.at for line in lines)


async def test_missing_log_does_not_hide_others():
    platform = platform_of(16)
    for index in range(16):
        platform.write(f"s{index}", str(index), at=index)
    del platform.logs["s5"], platform.logs["s11"]
    assert texts(await read(platform)) == [str(i) for i in range(16) if i not in (5, 11)]


async def test_jobs_without_logs_give_no_lines():
    platform = platform_of(4)
    platform.logs.clear()
    assert await read(platform) == []
    assert texts(await read(Platform(job(2, JobStatus.RUNNABLE)))) == []


async def test_time_range_limits_lines():
    platform = platform_of(1)
    platform.jobs["job"] = node(0, DONE, job_id="job")
    for second in range(5):
        platform.write("s0", str(second), at=second)
    lines = await read(platform, since=moment(1), until=moment(3))
    assert texts(lines) == ["1", "2", "3"]


@pytest.mark.parametrize("follow", [False, True])
async def test_time_range_has_millisecond_precision(follow):
    platform = platform_of(1)
    platform.jobs["job"] = node(0, DONE, job_id="job", stopped_at=moment(9))
    platform.write("s0", "a", at=1)
    within = moment(1).replace(microsecond=999)
    assert texts(await read(platform, since=within, until=within, follow=follow)) == ["a"]


def two_attempts():
    first = [Attempt("", "", 1, f"f{index}", moment(0), moment(10)) for index in range(2)]
    second = [Attempt("", "", 0, f"s{index}", moment(20), moment(30)) for index in range(2)]
    platform = Platform(
        job(2, DONE, tried=(first[0], second[0]), attempts_allowed=2, stopped_at=moment(30)),
        *(node(i, DONE, tried=(first[i], second[i]), stopped_at=moment(30)) for i in range(2)),
    )
    for index in range(2):
        platform.write(f"f{index}", f"first {index}", at=5)
        platform.write(f"s{index}", f"second {index}", at=25)
    return platform


async def test_attempts_are_read_in_order():
    lines = await read(two_attempts())
    assert [(line.attempt, line.text) for line in lines] == [
        (1, "first 0"),
        (1, "first 1"),
        (2, "second 0"),
        (2, "second 1"),
    ]


async def test_single_attempt_is_read():
    assert texts(await read(two_attempts(), attempt=1)) == ["first 0", "first 1"]
    with pytest.raises(UnknownError, match="no attempt 3: it has had 2 attempts"):
        await read(two_attempts(), attempt=3)


@pytest.mark.parametrize("count", range(6))
async def test_tail_covers_all_nodes_and_attempts(count):
    lines = texts(await read(two_attempts(), tail=count))
    assert lines == (["first 0", "first 1", "second 0", "second 1"][-count:] if count else [])


async def test_unknown_node_is_rejected_before_reading():
    platform = platform_of(2)
    with pytest.raises(UnknownError, match="nodes 0 to 1"):
        await read(platform, [2])
    with pytest.raises(ValueError, match="tail is -1"):
        await read(platform, tail=-1)
    assert platform.reads == []


async def test_unknown_job_is_lost():
    with pytest.raises(JobLostError, match="not known here"):
        await collect(lines_of(node_logs(Platform(), TIMING), "job"))


async def test_node_id_selects_node():
    platform = platform_of(3)
    platform.write("s1", "one")
    assert texts(await collect(lines_of(node_logs(platform, TIMING), "job#1"))) == ["one"]
