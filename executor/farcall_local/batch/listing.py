"""ListJobs: one page of a queue's jobs, an array's children or a multi-node parallel job's nodes.

Source:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ListJobs.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farcall_local.batch import paging, validate
from farcall_local.batch.describe import summary
from farcall_local.batch.errors import ClientError
from farcall_local.batch.jobs import Job, Jobs, Status
from farcall_local.batch.queues import Resource

MAX_LISTED, MAX_FILTERED = 1000, 100

Test = Callable[[Job], bool]


def list_jobs(
    document: dict[str, Any], jobs: Jobs, queue: Callable[[str], Resource]
) -> dict[str, Any]:
    """Answer ListJobs.

    Without filters the jobs in one state are listed, RUNNING by default; a filter ignores the
    state, except SHARE_IDENTIFIER, and takes no children and no nodes. Jobs come newest first,
    children by index, nodes as they were launched.
    """
    given = [key for key in ("jobQueue", "arrayJobId", "multiNodeJobId") if document.get(key)]
    if len(given) != 1:
        raise ClientError("Specify exactly one of jobQueue, arrayJobId and multiNodeJobId.")
    filters = document.get("filters") or []
    test = _filter(filters, document.get("jobStatus")) if filters else _in_state(document)
    if given == ["jobQueue"]:
        where = queue(document["jobQueue"])
        pool = [job for job in jobs.submitted if job.submission.queue is where]
        newest_first = True
    else:
        parent = jobs.find(document[given[0]])
        pool = []
        if parent is not None and not filters:
            is_array = given == ["arrayJobId"]
            pool = parent.children if is_array else list(parent.nodes.values())
        newest_first = False
    return _page(pool, test, document, newest_first=newest_first)


def _page(
    pool: list[Job], test: Test, document: dict[str, Any], *, newest_first: bool
) -> dict[str, Any]:
    """Cut a page by position in the pool, so that jobs that change state shift nothing."""
    most = paging.size(document, MAX_FILTERED if document.get("filters") else MAX_LISTED)
    start = paging.position(document)
    if newest_first:
        order = range(len(pool) - 1 if start is None else min(start, len(pool) - 1), -1, -1)
    else:
        order = range(start or 0, len(pool))
    rows: list[dict[str, Any]] = []
    for place in order:
        if not test(pool[place]):
            continue
        if len(rows) == most:
            return {"jobSummaryList": rows, "nextToken": paging.token(place)}
        rows.append(summary(pool[place]))
    return {"jobSummaryList": rows}


def _in_state(document: dict[str, Any]) -> Test:
    try:
        status = Status(document.get("jobStatus") or "RUNNING")
    except ValueError:
        raise ClientError(f"Job status {document['jobStatus']} is not valid.") from None
    return lambda job: job.status is status


def _filter(filters: list[dict[str, Any]], job_status: str | None) -> Test:
    if len(filters) != 1:
        raise ClientError("Only one filter can be used at a time.")
    validate.require(filters[0], "name", "values")
    name, values = filters[0]["name"], filters[0]["values"]
    if name == "JOB_NAME":
        return lambda job: any(_glob(v.lower(), job.submission.name.lower()) for v in values)
    if name == "JOB_DEFINITION":
        return lambda job: any(_runs(value, job) for value in values)
    if name == "SHARE_IDENTIFIER":
        return lambda job: (
            job.submission.extra.get("shareIdentifier") in values
            and job_status in (None, job.status.value)
        )
    if name in ("BEFORE_CREATED_AT", "AFTER_CREATED_AT"):
        moment = _moment(values[0])
        if name == "BEFORE_CREATED_AT":
            return lambda job: job.submission.created_at < moment
        return lambda job: job.submission.created_at > moment
    raise ClientError(f"Filter {name} is not valid.")


def _glob(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern


def _runs(pattern: str, job: Job) -> bool:
    definition = job.submission.definition
    if pattern.startswith("arn:"):
        return definition.arn == pattern
    return _glob(pattern, definition.name)


def _moment(value: str) -> int:
    if not value.isdecimal():
        raise ClientError("Filter value must be a number of milliseconds.")
    return int(value)
