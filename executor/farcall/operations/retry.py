"""Retries for the command line and the web UI: preview and submission."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from farcall.config.help import describe
from farcall.config.settings import Settings
from farcall.engine import retry
from farcall.engine.retry_plan import Plan, plan_for
from farcall.engine.session import Session
from farcall.model.errors import FarcallError, JobLostError, ServiceError
from farcall.operations import json_view
from farcall.operations.catalog import Catalog, Entry, Query

SHOWN = ("vcpu", "memory", "num_gpus", "time_limit", "retry_attempts", "queue")
"""Options that the web UI offers for a retry, in this order."""

_UNITS = {"memory": "GiB", "time_limit": "s"}


class Again(NamedTuple):
    """Submitted retry.

    Attributes:
        job_id: ID of the retry.
        retry_of: ID of the retried job.
        tasks: Number of tasks.
        message: Tasks and options of the retry.
    """

    job_id: str
    retry_of: str
    tasks: int
    message: str


async def plan(session: Session, settings: Settings, job_id: str, *, failed: bool = False) -> Plan:
    """Return the plan of a job's retry.

    Args:
        session: The event loop's session.
        settings: The options.
        job_id: A single job, an array job, or an array task.
        failed: Leave out tasks that did not fail by themselves, but were cancelled.

    Raises:
        NothingToRetryError: No task can run again, or the bundle is no longer in the bucket.
        FarcallError: The job cannot be retried.
        ServiceError: AWS refused a call.
    """
    retry_plan = await plan_for(session, settings, job_id)
    chosen = retry_plan.failed_alone() if failed else retry_plan
    chosen.refuse()
    return chosen


async def run(session: Session, chosen: Plan, options: Mapping[str, Any]) -> list[Again]:
    """Submit a retry: one job, or several if the data does not fit into one bundle.

    Args:
        session: The event loop's session.
        chosen: The tasks to run again.
        options: Options to change; see `CHANGEABLE` of `farcall.engine.retry`.

    Raises:
        SettingsError: An option's value is wrong, or it cannot be changed.
        FarcallError: See `farcall.engine.retry.submit`.
    """
    settings = chosen.with_options(options)
    summary = chosen.summary(settings)
    done = await retry.submit(session, chosen, settings)
    of = chosen.submission.job_id
    return [
        Again(
            each.submission.job_id,
            of,
            len(each.origin),
            f"job {each.submission.job_id} runs again {summary}",
        )
        for each in done
    ]


async def preview(session: Session, settings: Settings, job_id: str) -> dict[str, Any]:
    """Return the plan of a job's retry as JSON values.

    Returns:
        - ``job``, ``function``: ID and function of the job.
        - ``tasks``: how many of ``total`` tasks would run again; ``cancelled`` of them did not
          fail, but were cancelled. ``unfinished``: number of tasks that have not finished.
        - ``refused``: why no task can run again; empty if one can.
        - ``message``: what would run, and with which options.
        - ``options``: options that can be changed: ``name``, ``value``, ``unit``, ``help``.
        - ``retries``: IDs of earlier retries.

    Raises:
        JobLostError: Batch does not know the job.
        ServiceError: AWS refused a call.
    """
    view: dict[str, Any] = {
        "job": job_id,
        "function": "",
        **dict.fromkeys(("tasks", "total", "unfinished", "cancelled"), 0),
        **dict.fromkeys(("refused", "message"), ""),
        "options": [],
        "retries": [],
    }
    try:
        retry_plan = await plan_for(session, settings, job_id)
        view |= {
            "function": retry_plan.function,
            "tasks": len(retry_plan.tasks),
            "total": retry_plan.total,
            "unfinished": retry_plan.unfinished,
            "cancelled": retry_plan.ended,
            "retries": [each.job_id for each in retry_plan.retries],
        }
        retry_plan.refuse()
    except (ServiceError, JobLostError):
        raise
    except FarcallError as error:
        return {**view, "refused": str(error)}
    texts = {each.name: each.text for each in describe()}
    return {
        **view,
        "message": retry_plan.summary(retry_plan.settings),
        "options": [
            {
                "name": name,
                "value": getattr(retry_plan.settings, name),
                "unit": _UNITS.get(name, ""),
                "help": texts[name],
            }
            for name in SHOWN
        ],
    }


async def jobs_of(session: Session, queues: Collection[str], run_name: str) -> list[Entry]:
    """Return the jobs of a run with failed tasks, the oldest first.

    Args:
        session: The event loop's session.
        queues: Names or ARNs of the queues to search.
        run_name: Name of the client's run.

    Raises:
        ServiceError: AWS refused a call.
    """
    query = Query(run=run_name, states=frozenset({"FAILED", json_view.CANCELLED}))
    entries = [entry async for entry in Catalog(session.backend).find(queues, query)]
    entries.reverse()
    return [entry for entry in entries if not entry.is_command]
