"""Cells of job tables."""

from datetime import UTC, datetime, timedelta

import pytest

from farcall.backends.batch.describe import BatchJob
from farcall.cli import tables
from farcall.model.failure_reasons import OWN_REASON
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.workflows import Workflow
from farcall.operations.catalog import Entry, Why

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Blocked(JobDetail):
    """Job that a backend cannot place."""

    is_blocked = True


def detail(status=JobStatus.RUNNING, **text):
    return JobDetail("6f1c", "sample-0123456789abcdef", status, **text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"),
        (0.34, "0.3s"),
        (12, "12s"),
        (119, "119s"),
        (120, "2m"),
        (7_199, "120m"),
        (7_200, "2h"),
        (86_400, "24h"),
        (172_800, "2d"),
    ],
)
def test_duration_has_at_most_two_units(seconds, text):
    assert tables.span(seconds) == text


@pytest.mark.parametrize(
    ("status", "since"),
    [
        (JobStatus.RUNNABLE, NOON),
        (JobStatus.RUNNING, NOON + timedelta(minutes=1)),
        (JobStatus.FAILED, NOON + timedelta(minutes=2)),
    ],
)
def test_state_starts_at_its_cause(status, since):
    text = {"created_at": NOON, "started_at": NOON + timedelta(minutes=1)}
    if status.is_final:
        text["stopped_at"] = NOON + timedelta(minutes=2)
    assert tables.since(detail(status, **text)) == since


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (detail(JobStatus.SUCCEEDED, status_reason="anything"), ""),
        (
            detail(
                JobStatus.FAILED,
                exit_code=3,
                status_reason="Host lost",
                container_reason="OutOfMemoryError: x",
            ),
            "exit code 3; Host lost; OutOfMemoryError: x",
        ),
        (detail(JobStatus.FAILED, status_reason=f"{OWN_REASON}enough"), "enough"),
        (
            Blocked("6f1c", "sample", JobStatus.RUNNABLE, "NO_ROOM - a long text"),
            "NO_ROOM",
        ),
        (
            detail(
                JobStatus.PENDING,
                array_size=9,
                status_summary={"SUCCEEDED": 2, "FAILED": 1, "RUNNING": 0, "RUNNABLE": 6},
            ),
            "6 waiting, 2 succeeded, 1 failed",
        ),
        (
            BatchJob(
                *("6f1c", "sample-0123456789abcdef", JobStatus.FAILED),
                array_size=6,
                status_reason=f"{OWN_REASON}interrupted by Ctrl-C",
                status_summary={"FAILED": 5, "SUCCEEDED": 1},
            ),
            "1 succeeded, 5 cancelled",
        ),
        (detail(JobStatus.FAILED, status_reason="a\nb\x1b[2J"), "a b^[[2J"),
    ],
)
def test_note_explains_job_state(job, text):
    assert tables.note(job) == text


@pytest.mark.parametrize(
    ("rungs", "text"),
    [
        ("memory=2/3,queue=2/2", "memory 8 GiB (2 of 3), queue spot (2 of 2); ValueError: x"),
        ("memory=1/3,queue=1/2", "ValueError: x"),
    ],
)
def test_second_chance_is_listed(rungs, text):
    job = detail(memory_mib=8192, queue="spot", environment={"FARCALL_RUNGS": rungs})
    row = tables.line(Entry(job, Workflow("w"), "", Why(error="ValueError: x"))).plain
    assert row.endswith(f"sample  {text}")
