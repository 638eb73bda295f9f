"""Command jobs that are submitted with the backend, for tests that only read jobs."""

from __future__ import annotations

import secrets
from typing import Any

from farcall.backends.base import JobSpec
from farcall.config.settings import Settings
from farcall.engine.session import Session
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.pacing import Ticket
from farcall_runtime.contract import ENV_WORKFLOW
from tests.support.patience import until_async

IMAGE = "busybox:1"
OPTIONS = {"vcpu": 1, "memory": 0.25, "retry_attempts": 1}


def shell(text: str, count: int = 1, **more: Any) -> Nodes:
    """Return nodes that run a shell command."""
    return Nodes(count, IMAGE, ["sh", "-c", text], **more)


async def submit(
    session: Session, *groups: Nodes, name: str = "hello", workflow: str = "", **options: Any
) -> str:
    """Submit a command job of the session's user; return its ID."""
    environment = {ENV_RUN: session.run, ENV_WORKFLOW: workflow}
    unique = f"{name}-{secrets.token_hex(8)}"
    settings = Settings(**{**OPTIONS, **options})
    job = JobSpec(unique, 1, environment, settings, groups)
    await session.backend.check(settings)
    await session.backend.prepare(job)
    return await session.backend.submit(job, Ticket())


async def described(session: Session, job_id: str, *statuses: JobStatus) -> JobDetail:
    """Wait until a job has one of the statuses, by default a final one; describe it."""
    wanted = statuses or (JobStatus.SUCCEEDED, JobStatus.FAILED)

    async def look() -> JobDetail | None:
        detail = (await session.backend.describe([job_id])).get(job_id)
        return detail if detail is not None and detail.status in wanted else None

    found = await until_async(look)
    assert found is not None
    return found
