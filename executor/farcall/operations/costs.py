"""Cost of a job: the hours of its requested resources, multiplied by the user's prices."""

from __future__ import annotations

from datetime import datetime

from farcall.config.settings import Settings
from farcall.model.jobs import Attempt, JobDetail, NodeGroup

_HOUR_S = 3600.0


def cost(job: JobDetail, settings: Settings, now: datetime) -> float | None:
    """Return the cost of a job's attempts up to now in dollars.

    Returns:
        None without prices, and for an array, whose description lacks its tasks' durations.
    """
    prices = settings.vcpu_hour_price, settings.gb_hour_price
    if not any(prices) or job.array_size:
        return None
    groups = job.groups or (NodeGroup(0, 0, vcpu=job.vcpu, memory_mib=job.memory_mib),)
    sizes = [(group.last - group.first + 1, group) for group in groups]
    vcpu = sum(nodes * group.vcpu for nodes, group in sizes)
    memory_gib = sum(nodes * group.memory_mib for nodes, group in sizes) / 1024
    return _ran_s(job, now) / _HOUR_S * (vcpu * prices[0] + memory_gib * prices[1])


def dollars(amount: float) -> str:
    """Return an amount for people."""
    return "less than $0.01" if amount < 0.01 else f"${amount:,.2f}"


def _ran_s(job: JobDetail, now: datetime) -> float:
    """Return the duration of all attempts in seconds."""
    last = Attempt(started_at=job.started_at, stopped_at=job.stopped_at or now)
    earlier = [tried for tried in job.tried if tried.started_at != job.started_at]
    return sum(
        (tried.stopped_at - tried.started_at).total_seconds()
        for tried in (*earlier, last)
        if tried.started_at and tried.stopped_at
    )
