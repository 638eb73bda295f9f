"""Cancellation of jobs, with the result for each job."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from farcall.backends.base import platform_of
from farcall.engine.session import Session
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.jobs import JobDetail
from farcall.operations import json_view
from farcall.operations.catalog import Catalog, Entry

if TYPE_CHECKING:
    from farcall.covalent.cancel import CovalentCompanion

OTHER_USER = "other_user"
NODE = "node"


class Cancelled(NamedTuple):
    """Result of one cancel request.

    Attributes:
        job_id: The job, or a Covalent dispatch without an unfinished job.
        outcome: ``cancelling``: being cancelled; ``finished``: had already finished; ``unknown``
            to Batch; ``not_farcall``: not submitted by farcall, and unchanged; ``other_user``:
            owned by another user who was not named, and unchanged; ``node``: cannot be cancelled
            without its job; or ``refused`` by Batch.
        text: Result as a sentence.
    """

    job_id: str
    outcome: str
    text: str


def unfinished(entries: Iterable[Entry]) -> list[Entry]:
    """Return the unfinished jobs."""
    return [entry for entry in entries if not entry.detail.status.is_final]


async def idle(entries: Iterable[Entry], companion: CovalentCompanion | None) -> list[str]:
    """Return dispatches that still run in Covalent, but have no unfinished job.

    Args:
        entries: Jobs, including finished ones.
        companion: Covalent's server, if any. If it does not respond, the result is empty.
    """
    entries = list(entries)
    busy = {entry.workflow.dispatch for entry in unfinished(entries)}
    maybe = {entry.workflow.dispatch for entry in entries} - busy - {""}
    return [] if companion is None else await companion.going(maybe)


async def cancel_all(
    session: Session,
    entries: Sequence[Entry],
    reason: str,
    companion: CovalentCompanion | None = None,
    *,
    dry_run: bool = False,
) -> list[Cancelled]:
    """Cancel the jobs of a workflow or a run, so that no more of its tasks start.

    A Covalent dispatch is cancelled as a whole, with its sublattices and all other tasks;
    otherwise this is the same as `cancel`.

    Returns:
        A result for each unfinished job, and for each dispatch that is `idle`.

    Raises:
        ServiceError: Batch did not return the state of the jobs.
    """
    left = unfinished(entries)
    whole = {entry.workflow.dispatch for entry in left}
    job_ids = [entry.detail.job_id for entry in left]
    done = await cancel(session, job_ids, reason, companion, whole=whole, dry_run=dry_run)
    waiting = await idle(entries, companion)
    if dry_run:
        return done + [
            Cancelled(each, "cancelling", f"{each} would be cancelled") for each in waiting
        ]
    if companion is not None and waiting:
        unnotified = await companion.notify_whole(waiting)
        for each in waiting:
            outcome, text = "cancelling", f"dispatch {each} is being cancelled by Covalent"
            if each in unnotified:
                outcome, text = "refused", f"dispatch {each} may continue: {unnotified[each]}"
            done.append(Cancelled(each, outcome, text))
    return done


async def cancel(
    session: Session,
    job_ids: Iterable[str],
    reason: str,
    companion: CovalentCompanion | None = None,
    user: str | None = None,
    *,
    whole: Collection[str] = (),
    dry_run: bool = False,
) -> list[Cancelled]:
    """Cancel jobs that farcall submitted, in any state.

    An array job is cancelled with all its tasks, and also if all its tasks are listed.
    A node cannot be cancelled alone. Batch is called for the states before and after, one request
    per hundred jobs.

    Electrons are also cancelled in Covalent, so that its UI shows that at once. If that fails, the
    text reports it, and the server notices the cancelled job at its next poll.

    Args:
        session: Open clients.
        job_ids: Jobs; an array task is ``<array job>:<index>``.
        reason: Reason that Batch stores, up to 1000 characters.
        companion: Covalent's server, if any.
        user: Only cancel jobs of this user, as `Entry.user`; by default jobs of all users.
        whole: Dispatches to cancel as a whole in Covalent.
        dry_run: Whether to cancel nothing, and report what would be cancelled as ``cancelling``.

    Returns:
        A result for each job, in the same order.

    Raises:
        ServiceError: Batch did not return the state of the jobs.
    """
    job_ids = list(dict.fromkeys(job_ids))
    entries = await Catalog(session.backend).describe(each for each in job_ids if "#" not in each)
    ours = {
        job_id: entry
        for job_id, entry in entries.items()
        if entry is not None and user in (None, entry.user)
    }
    left = {job_id: each for job_id, each in ours.items() if not each.detail.status.is_final}
    none: _Ended = ({}, {}, {})
    ending = none if dry_run else await _end(session, ours, left, reason, companion, whole)
    refused, unnotified, later = ending

    def result_of(job_id: str) -> Cancelled:
        if "#" in job_id:
            return _whole_alone(job_id)
        entry = ours.get(job_id)
        if entry is None:
            return _left_alone(session, job_id, entries)
        error = refused.get(job_id) or refused.get(job_id.partition(":")[0])
        detail = later.get(job_id, entry.detail)
        if job_id not in left or _has_ended_by_itself(detail):
            text = f"{job_id} has finished: {json_view.word(detail)}"
            return Cancelled(job_id, "finished", text)
        if error is not None:
            return Cancelled(job_id, "refused", f"{job_id} may still run: {error}")
        if dry_run:
            text = f"{job_id} is {json_view.word(entry.detail)} and would be cancelled"
            return Cancelled(job_id, "cancelling", text)
        text = f"{job_id} was {json_view.word(entry.detail)} and is being cancelled"
        if job_id in unnotified:
            text += f"; Covalent was not notified: {unnotified[job_id]}"
        return Cancelled(job_id, "cancelling", text)

    return [result_of(job_id) for job_id in job_ids]


_Ended = tuple[dict[str, FarcallError], dict[str, str], Mapping[str, JobDetail]]
"""By job ID: errors of terminations and of notifications, and later descriptions."""


async def _end(
    session: Session,
    named: Mapping[str, Entry],
    left: Mapping[str, Entry],
    reason: str,
    companion: CovalentCompanion | None,
    whole: Collection[str],
) -> _Ended:
    unnotified: dict[str, str] = {}
    wanted = await _collapse_children(session, named=named, left=left)
    ending = session.terminations.end(wanted, reason)
    if companion is None:
        refused = await ending
    else:
        refused, unnotified = await asyncio.gather(ending, companion.notify(session, left, whole))
    later: Mapping[str, JobDetail] = {}
    with contextlib.suppress(ServiceError):  # the termination's result is known anyway
        later = await session.backend.describe(left)
    return refused, unnotified, later


_FOREIGN = {"Batch": "aws batch terminate-job", "Kubernetes": "kubectl delete job"}


def _left_alone(session: Session, job_id: str, entries: Mapping[str, Entry | None]) -> Cancelled:
    if job_id not in entries:
        return Cancelled(job_id, "unknown", session.backend.unknown(job_id))
    entry = entries[job_id]
    if entry is None:
        text = (
            f"{job_id} was not submitted by farcall and is not cancelled. Use "
            f"{_FOREIGN[platform_of(session.backend)]} to cancel it."
        )
        return Cancelled(job_id, "not_farcall", text)
    user = entry.user
    text = f"{job_id} is a job of {user} and is not cancelled. Use --user {user} to cancel it."
    return Cancelled(job_id, OTHER_USER, text)


def _whole_alone(job_id: str) -> Cancelled:
    """Return the result for a node, which cannot be cancelled alone."""
    whole = job_id.partition("#")[0]
    text = (
        f"{job_id} is one node, which cannot be cancelled separately. Run `farcall cancel "
        f"{whole}` to cancel the job with all nodes."
    )
    return Cancelled(job_id, NODE, text)


def _has_ended_by_itself(detail: JobDetail) -> bool:
    return detail.status.is_final and json_view.state(detail) != json_view.CANCELLED


async def _collapse_children(
    session: Session, named: Mapping[str, Entry], left: Mapping[str, Entry]
) -> list[str]:
    """Return the unfinished jobs, with an array job in place of its complete tasks."""
    children: defaultdict[str, set[int]] = defaultdict(set)
    for job_id, entry in named.items():
        if entry.detail.is_child:
            children[job_id.partition(":")[0]].add(entry.detail.index)
    maybe = [parent for parent, of in children.items() if len(of) > 1 and max(of) < len(of)]
    parents = await session.backend.describe(maybe)
    complete = {p for p, parent in parents.items() if parent.array_size == len(children[p])}
    few = (p if (p := job_id.partition(":")[0]) in complete else job_id for job_id in left)
    return list(dict.fromkeys(few))
