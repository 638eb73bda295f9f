"""Costs of jobs with the user's prices."""

from datetime import UTC, datetime, timedelta

import pytest

from farcall import Settings
from farcall.model.jobs import Attempt, JobDetail, JobStatus, NodeGroup
from farcall.operations.costs import cost, dollars

_START = datetime(2026, 11, 12, 10, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_PRICES = Settings(vcpu_hour_price=0.5, gb_hour_price=0.25)


def job(**more):
    """Return a job with 2 vCPUs and 4 GiB that starts at 10:00."""
    size = {"vcpu": 2, "memory_mib": 4096}
    return JobDetail("job", "a-job", JobStatus.RUNNING, **{**size, "started_at": _START, **more})


@pytest.mark.parametrize(
    ("found", "dollars"),
    [
        (job(stopped_at=_START + 3 * _HOUR), 6),
        (job(), 4),  # up to now, 12:00
        (job(started_at=None), 0),
        # The platform lists the last attempt, too.
        (
            job(
                stopped_at=_START + _HOUR,
                tried=(
                    Attempt(started_at=_START - 2 * _HOUR, stopped_at=_START - _HOUR),
                    Attempt(started_at=_START, stopped_at=_START + _HOUR),
                ),
            ),
            4,
        ),
        (job(groups=(NodeGroup(0, 0, vcpu=2), NodeGroup(1, 3, vcpu=4))), 14),
        (job(array_size=8), None),
    ],
)
def test_attempts_and_nodes_have_cost(found, dollars):
    assert cost(found, _PRICES, _START + 2 * _HOUR) == dollars


def test_cost_needs_price():
    assert cost(job(), Settings(), _START + _HOUR) is None


def test_small_cost_is_no_zero():
    assert [dollars(amount) for amount in (0.009, 0.014, 1234.5)] == [
        "less than $0.01",
        "$0.01",
        "$1,234.50",
    ]
