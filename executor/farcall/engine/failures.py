"""Errors of failed jobs: facts that an error has in addition to the failure reason."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from farcall.backends.base import Backend, platform_of
from farcall.engine.attempt_reporter import of_tried
from farcall.model.errors import FarcallError
from farcall.model.failure_reasons import About
from farcall.model.jobs import JobDetail
from farcall.model.timing import Timing

_LAST_LINES = 200


def about_job(backend: Backend, job: About, detail: JobDetail | None, attempts: int) -> About:
    """Add the platform's report of a job's end to the facts of an error.

    Args:
        backend: Platform that ran the job.
        job: ID and name of the job.
        detail: The platform's description of the job, if known.
        attempts: Number of attempts.
    """
    reason, platform_text, log_url = "", "", None
    if detail is not None:
        # For a job that continues according to the backend, these texts are not about its end.
        if detail.status.is_final:
            reason, platform_text = detail.reason, detail.platform_reason
        log_url = backend.links(detail).get("log")
    platform = platform_of(backend)
    return About(
        job.job_id, job.name, reason, platform_text, attempts, log_url=log_url, platform=platform
    )


async def last_lines(backend: Backend, detail: JobDetail) -> bytes:
    """Return the end of the platform's log; empty if the log cannot be read."""
    try:
        last = await backend.log(detail.log_group, detail.log_stream).last(_LAST_LINES)
    except FarcallError:
        return b""  # a missing log must not hide why the job failed
    return "".join(f"{line.text}\n" for line in last).encode()


async def of_command(backend: Backend, timing: Timing, detail: JobDetail) -> FarcallError:
    """Return the error of a failed command job, with the main node's last lines.

    Args:
        backend: Platform that ran the job.
        timing: Delay after which the log is complete.
        detail: The finished job.
    """
    if detail.log_stream and detail.stopped_at is not None:
        settled = detail.stopped_at + timedelta(seconds=timing.log_settle_s)
        left_s = (settled - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(min(left_s, timing.log_settle_s))
    earlier = [of_tried(detail.of_attempt(tried)) for tried in detail.tried[:-1]]
    job = about_job(backend, About(detail.job_id, detail.name), detail, detail.attempts)
    job = job.of(await last_lines(backend, detail), b"")._replace(earlier=tuple(earlier))
    return detail.failure_reason().error(job)
