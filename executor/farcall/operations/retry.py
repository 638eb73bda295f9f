"""Retries by whoever looks at jobs: what would run again and with what, and having it run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from farcall.engine import retry
from farcall.engine.retry import Plan
from farcall.engine.session import Session
from farcall.model.errors import FarcallError, JobLostError, NothingToRetryError, ServiceError
from farcall.model.jobs import JobStatus
from farcall.model.settings import Settings
from farcall.model.settings_help import describe
from farcall.operations.catalog import Catalog, Entry, Query

SHOWN = ("vcpu", "memory", "num_gpus", "time_limit", "retry_attempts", "queue")
"""Options that a page offers to be changed, in this order."""

_UNITS = {"memory": "GiB", "time_limit": "s"}


class Again(NamedTuple):
    """A job that runs calls of another one again.

    Attributes:
        job_id: Its ID.
        of: ID of the other one.
        calls: How many calls it runs.
        sentence: What it runs, and with what.
    """

    job_id: str
    of: str
    calls: int
    sentence: str


async def plan(session: Session, settings: Settings, job_id: str, *, failed: bool = False) -> Plan:
    """Find out what would run again of a job.

    Args:
        session: The event loop's session.
        settings: The options.
        job_id: A plain job, an array as a whole, or a child of one.
        failed: Leave out what did not fail but was ended.

    Raises:
        NothingToRetryError: Nothing would, or what was submitted is gone.
        FarcallError: It is no job that can be retried.
        ServiceError: AWS refused a call.
    """
    found = await retry.look(session, settings, job_id)
    chosen = found.failed_alone() if failed else found
    chosen.refuse()
    return chosen


async def run(session: Session, chosen: Plan, options: Mapping[str, Any]) -> list[Again]:
    """Have a plan's calls run again, and say by which jobs: one, except very much data.

    Args:
        session: The event loop's session.
        chosen: What is to run.
        options: Options that are to be others; see `CHANGEABLE` of `farcall.engine.retry`.

    Raises:
        SettingsError: An option's value is wrong, or it cannot be changed.
        FarcallError: See `farcall.engine.retry.submit`.
    """
    settings = chosen.with_options(options)
    told = chosen.tell(settings)
    done = await retry.submit(session, chosen, settings)
    of = chosen.submission.job_id
    return [
        Again(
            each.submission.job_id,
            of,
            sum(task.calls for task in each.tasks),
            f"job {each.submission.job_id} runs again {told}",
        )
        for each in done
    ]


async def preview(session: Session, settings: Settings, job_id: str) -> dict[str, Any]:
    """Return what would run again of a job, as JSON has words for it.

    Returns:
        - ``job``, ``function``: what it is of.
        - ``calls`` of ``total`` would run again, of which ``ended`` did not fail; ``succeeded``
          have a value; ``unfinished`` tasks go on. Where the bundle does not say how many calls
          its tasks make, each counts as one.
        - ``refused``: why nothing can run again; empty where something can.
        - ``sentence``: what would run, and with what.
        - ``options``: those that may be others: ``name``, ``value``, ``unit``, ``help``.
        - ``retries``: IDs of the jobs that ran calls of it again.

    Raises:
        JobLostError: Batch does not know the job.
        ServiceError: AWS refused a call.
    """
    said: dict[str, Any] = {
        "job": job_id,
        "function": "",
        "calls": 0,
        "total": 0,
        "succeeded": 0,
        "unfinished": 0,
        "ended": 0,
        "refused": "",
        "sentence": "",
        "options": [],
        "retries": [],
    }
    try:
        found = await retry.look(session, settings, job_id)
    except (ServiceError, JobLostError):
        raise
    except FarcallError as error:
        return {**said, "refused": str(error)}
    _, is_child, index = job_id.partition(":")
    said |= {
        "function": found.function,
        "calls": found.calls,
        "total": found.total,
        "succeeded": found.succeeded,
        "unfinished": found.unfinished,
        "ended": found.ended,
        "retries": await retry.retries_of(
            session, found.submission, int(index) if is_child else None
        ),
    }
    try:
        found.refuse()
    except NothingToRetryError as error:
        return {**said, "refused": str(error)}
    texts = {each.name: each.text for each in describe()}
    return {
        **said,
        "sentence": found.tell(found.settings),
        "options": [
            {
                "name": name,
                "value": getattr(found.settings, name),
                "unit": _UNITS.get(name, ""),
                "help": texts[name],
            }
            for name in SHOWN
        ],
    }


async def jobs_of(session: Session, queues: Collection[str], run_name: str) -> list[Entry]:
    """Return the jobs of a run that have failed, wholly or in part, the oldest first.

    Jobs that are retries of another one in the list are not in it: what they ran is that one's.

    Args:
        session: The event loop's session.
        queues: Names or ARNs of the queues that are looked through.
        run_name: A client process.

    Raises:
        ServiceError: AWS refused a call.
    """
    query = Query(run=run_name, statuses=frozenset({JobStatus.FAILED}))
    found = [entry async for entry in Catalog(session.backend).find(queues, query)]
    found.reverse()
    functions = [entry for entry in found if not entry.is_command]
    ids = {entry.detail.job_id for entry in functions}
    return [e for e in functions if e.retry_of.partition(":")[0] not in ids]
