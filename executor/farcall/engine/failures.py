"""Failure of a job: what its error says beside the verdict, as the platform tells it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

from farcall.backends.base import Backend, platform_of
from farcall.engine.attempt_reporter import of_tried
from farcall.model.endings import About
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail
from farcall.model.timing import Timing

_LAST_LINES = 200


def about(backend: Backend, job: About, detail: JobDetail | None, attempts: int) -> About:
    """Add to what an error says of a job the platform's words on its end.

    Args:
        backend: Where the job ran.
        job: Its ID and name.
        detail: What the backend says of it, if that is known.
        attempts: How many attempts there were.
    """
    reason, told, log_url = "", "", None
    if detail is not None:
        # Of one that goes on by the backend's account they are no words on its end.
        if detail.status.is_final:
            reason, told = detail.reason, detail.told
        log_url = backend.links(detail).get("log")
    platform = platform_of(backend)
    return About(job.job_id, job.name, reason, told, attempts, log_url=log_url, platform=platform)


async def last_lines(backend: Backend, detail: JobDetail) -> bytes:
    """Return the end of the platform's own log; empty where there is none to be read."""
    try:
        found = await backend.log(detail, detail.log_stream).last(_LAST_LINES)
    except FarcallError:
        return b""  # a missing log must not hide why the job failed
    return "".join(f"{line.text}\n" for line in found).encode()


async def of_command(backend: Backend, timing: Timing, detail: JobDetail) -> FarcallError:
    """Say why a command job failed, with the last lines of its main node's log.

    Args:
        backend: Where it ran.
        timing: After how long the log shows what was written.
        detail: The job, which has ended.
    """
    if detail.log_stream and detail.stopped_at is not None:
        settled = detail.stopped_at + timedelta(seconds=timing.log_settle_s)
        left_s = (settled - datetime.now(timezone.utc)).total_seconds()
        await asyncio.sleep(min(left_s, timing.log_settle_s))
    earlier = [of_tried(detail.of_attempt(tried)) for tried in detail.tried[:-1]]
    job = about(backend, About(detail.job_id, detail.name), detail, detail.attempts)
    job = job.of(await last_lines(backend, detail), b"")._replace(earlier=tuple(earlier))
    return detail.verdict().error(job)
