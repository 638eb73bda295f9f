"""Description of one job, for ``farcall describe`` and the web UI."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from farcall.aws import console_urls
from farcall.engine.retry_notes import retries_of
from farcall.engine.session import Session
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.model.workflows import NODES, node_at
from farcall.operations import json_view
from farcall.operations.catalog import Entry
from farcall.operations.explain import explain, nodes_of, unstarted
from farcall.operations.reasons import Reasons
from farcall.storage import bundles
from farcall_runtime.contract import ENV_BUNDLE
from farcall_runtime.envelope import EnvelopeError


async def of(session: Session, entry: Entry, reasons: Reasons | None = None) -> dict[str, Any]:
    """Return all known data of a job as JSON values.

    Args:
        session: The event loop's session.
        entry: The job, array job, array task or node, from `Catalog.describe`.
        reasons: Source of call and error texts, if there is one.

    Returns:
        - ``job``: see `json_view.job`.
        - ``explanation``: see `explanation.Explanation`; ``usage``: used resources, or None.
        - ``attempts``: the finished attempts; see `json_view.attempt`.
        - ``nodes``: all nodes of a multi-node job; see `json_view.node`.
        - ``electron``: for a Covalent job, the node's number; for a task group, the last node's.
          None if unknown, because delivery of a result deletes it.
        - ``position``: position in the queue, from 1; None if it is not among the first 100.
        - ``log``: ``group`` and ``stream`` in CloudWatch; ``bundle``: the job's bundle in S3; a
          command job has none.
        - ``places``: the job's locations on the platform, by name.
        - ``retries``: IDs of the job's retries, the oldest first. If the job is a retry, ``job``
          has the ID of the original job.
        - ``links``: URLs in the AWS console, if there is one: ``job``, ``queue``, ``log``,
          ``bucket``.

    Raises:
        ServiceError: Batch refused a call.
    """
    detail = entry.detail
    (entry,) = await (reasons or Reasons(session)).fill([entry])
    known = await nodes_of(session, detail)
    explanation = asdict(await explain(session, detail, known))
    bundle = detail.environment.get(ENV_BUNDLE, "")
    return {
        "job": json_view.job(entry),
        "explanation": explanation,
        "usage": explanation["usage"],
        "attempts": [json_view.attempt(n, tried) for n, tried in enumerate(detail.tried, 1)],
        "nodes": [
            json_view.node(known.get(number) or unstarted(detail, number))
            for number in range(detail.nodes)
        ],
        "electron": await _electron(session, entry),
        "position": await _position(session, detail),
        "log": {"group": detail.log_group, "stream": detail.log_stream},
        "log_locations": dict(detail.places),
        "bundle": bundle,
        "retries": await _retries(session, detail),
        "links": _links(session, detail, bundle) if session.aws.has_console else {},
    }


async def _position(session: Session, detail: JobDetail) -> int | None:
    if detail.status is not JobStatus.RUNNABLE:
        return None
    positions = await session.backend.positions(detail.queue_arn or detail.queue)
    return positions.get(detail.job_id)


async def _electron(session: Session, entry: Entry) -> int | None:
    """Return the number of a job's Covalent node, from its bundle."""
    detail = entry.detail
    if not entry.workflow.dispatch or detail.array_size:
        return None
    try:
        submission, index = Submission.of(detail)
        store = session.stores.of(submission.where.bucket)
        facts = await bundles.facts_of(store, submission) or {}
    except (EnvelopeError, FarcallError):  # the explanation reports errors of the bundle
        return None
    node = node_at(facts.get(NODES), index)
    return None if node is None else node.number


async def _retries(session: Session, detail: JobDetail) -> list[str]:
    """Return the IDs of a job's retries; only a job with failed tasks can have some."""
    has_failed = detail.status is JobStatus.FAILED or detail.status_summary.get("FAILED")
    if detail.is_command or not has_failed:
        return []
    try:
        if detail.array_size:
            submission, index = Submission.whole(detail), None
        else:
            submission, index = Submission.of(detail)
        retries = await retries_of(session, submission)
        return [each.job_id for each in retries if index is None or index in each.origin]
    except FarcallError:  # the rest of the description is more important
        return []


def _links(session: Session, detail: JobDetail, bundle: str) -> dict[str, str]:
    links = session.backend.links(detail)
    if not bundle:
        return links
    bucket, _, key = bundle.removeprefix("s3://").partition("/")
    folder = f"{key.partition('/bundles/')[0]}/"
    url = console_urls.bucket_url(session.aws.region, bucket, folder)
    return {**links, "bucket": url} if url else links
