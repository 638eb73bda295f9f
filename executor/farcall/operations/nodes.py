"""Nodes of a job on several, as the backend describes each."""

from __future__ import annotations

from dataclasses import replace

from farcall.engine.session import Session
from farcall.model.jobs import JobDetail, JobStatus


async def of(session: Session, detail: JobDetail) -> dict[int, JobDetail]:
    """Return what is known of a job's nodes, by number: a request for a hundred.

    Nodes that were not started yet may be missing. Other jobs have none.

    Raises:
        ServiceError: The backend refused a call.
    """
    if not detail.groups:
        return {}
    ids = {detail.node_id(number): number for number in range(detail.nodes)}
    found = await session.backend.describe(ids)
    return {ids[job_id]: node for job_id, node in found.items()}


def unstarted(whole: JobDetail, number: int) -> JobDetail:
    """Describe a node of which the backend says nothing yet: it is as its job is."""
    # The main node runs, and the others are on their way.
    runs = whole.status is JobStatus.RUNNING
    return replace(
        whole,
        job_id=whole.node_id(number),
        status=JobStatus.STARTING if runs else whole.status,
        exit_code=None,
        container_reason="",
        tried=(),
        started_at=None,
        stopped_at=None,
        log_stream="",
        groups=(),
    )
