from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from farcall.engine.logs import nodes
from farcall.engine.logs.nodes import JobNodes
from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import Attempt, JobStatus
from tests.unit.nodes import job, moment, node


def tried(stream, start, stop, code=1):
    return Attempt("", "", code, stream, moment(start), moment(stop))


def test_single_node_job_has_one_node():
    alone = replace(job(), log_stream="s", started_at=moment(0))
    found = JobNodes(alone, {0: alone})
    assert (found.count, found.ids([0])) == (1, ["job"])
    assert [(log.node, log.number, log.stream, log.is_over) for log in found.attempts(0)] == [
        (0, 1, "s", False)
    ]


def test_each_attempt_of_node_has_log():
    both = (tried("a", 0, 10), tried("b", 20, 30))
    whole = job(2, attempts_allowed=3, tried=both)
    found = JobNodes(whole, {1: node(1, stream="c", tried=both, started_at=moment(40))})
    assert [(log.number, log.stream, log.is_over) for log in found.attempts(1)] == [
        (1, "a", True),
        (2, "b", True),
        (3, "c", False),
    ]


def test_late_node_belongs_to_second_attempt():
    whole = job(2, attempts_allowed=3, tried=(tried("", 0, 10),))
    found = JobNodes(whole, {1: node(1, stream="c", started_at=moment(20))})
    assert [(log.number, log.stream) for log in found.attempts(1)] == [(2, "c")]


def test_node_has_ended_after_last_attempt():
    done = node(1, JobStatus.SUCCEEDED)
    assert JobNodes(job(2), {1: done}).has_ended(1)
    assert not JobNodes(job(2, attempts_allowed=2), {1: done}).has_ended(1)
    failed_once = job(2, attempts_allowed=2, tried=(tried("a", 0, 10),))
    assert not JobNodes(failed_once, {1: done}).has_ended(1)
    again = node(1, JobStatus.SUCCEEDED, started_at=moment(20))
    assert JobNodes(failed_once, {1: again}).has_ended(1)
    assert JobNodes(failed_once, {}).has_ended(1, 1)
    assert not JobNodes(failed_once, {}).has_ended(1)


def test_node_that_never_ran_has_ended():
    """The end of its job is confirmed by a second description."""
    found = JobNodes(job(2), {})
    assert not found.has_ended(1)
    failed = {"job": job(2, JobStatus.FAILED)}
    found.update(failed, [1])
    assert not found.has_ended(1)
    found.update(failed, [1])
    assert found.has_ended(1)
    assert found.attempts(1) == []


def test_node_may_stop_after_its_job():
    found = JobNodes(job(2), {1: node(1)})
    ended = {"job": job(2, JobStatus.SUCCEEDED, stopped_at=datetime.now(UTC))}
    for now in (1000, 1030):
        found.update(ended, [1], now)
        assert not found.has_ended(1)
        assert not found.attempts(1)[0].is_over
    found.update(ended, [1], 1070)
    assert found.has_ended(1)
    assert found.attempts(1)[0].is_over


def test_old_job_has_no_stopping_nodes():
    found = JobNodes(job(2, JobStatus.SUCCEEDED, stopped_at=moment(0)), {1: node(1)})
    assert found.has_ended(1)
    assert found.attempts(1)[0].is_over


def test_failed_node_may_run_again():
    attempt = tried("a", 0, 10)
    failed = node(1, JobStatus.FAILED, stream="a", tried=(attempt,))
    waits = job(2, JobStatus.RUNNABLE, attempts_allowed=2, tried=(attempt,))
    assert not JobNodes(waits, {1: failed}).has_ended(1)


def test_forgotten_job_has_ended():
    found = JobNodes(job(2), {1: node(1)})
    found.is_forgotten = True
    assert found.has_ended(1)
    assert found.attempts(1)[0].is_over


@pytest.mark.parametrize(
    ("nodes", "wanted", "message"),
    [(1, [1], "no node 1; it has only node 0"), (4, [0, -1], "no node -1; it has nodes 0 to 3")],
)
def test_unknown_node_error_lists_nodes(nodes, wanted, message):
    with pytest.raises(UnknownError, match=message):
        JobNodes(job(nodes), {}).chosen(wanted, None, follow=False)


@pytest.mark.parametrize(
    ("status", "follow", "attempt", "message"),
    [
        (JobStatus.RUNNING, False, 3, "no attempt 3: it has had 2 attempts, counted from 1"),
        (JobStatus.RUNNING, True, 4, "no attempt 4: it may have 3 attempts"),
        (JobStatus.FAILED, True, 2, "no attempt 2: it has had 1 attempt"),
        (JobStatus.FAILED, False, 0, "no attempt 0"),
    ],
)
def test_unknown_attempt_error_lists_attempts(status, follow, attempt, message):
    found = JobNodes(job(status=status, attempts_allowed=3, tried=(tried("a", 0, 1),)), {})
    with pytest.raises(UnknownError, match=message):
        found.chosen(None, attempt, follow=follow)


def test_following_starts_at_latest_attempt():
    found = JobNodes(job(attempts_allowed=4, tried=(tried("a", 0, 1),)), {})
    assert found.chosen(None, None, follow=False) == range(1, 3)
    assert found.chosen(None, None, follow=True) == range(2, 5)
    assert found.chosen(None, 4, follow=True) == range(4, 5)


def test_array_job_error_names_one_task():
    with pytest.raises(FarcallError, match="an array of 7 jobs.*job:0"):
        JobNodes(job(array_size=7), {}).chosen(None, None, follow=False)


def test_node_id_names_job_and_node():
    assert nodes.parts_of("job#3", None) == ("job", [3])
    assert nodes.parts_of("job", [1]) == ("job", [1])
    assert nodes.parts_of("job#x", None) == ("job#x", None)
    assert nodes.parts_of("job#3", [0]) == ("job#3", [0])
