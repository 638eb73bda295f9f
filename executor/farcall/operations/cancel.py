"""Cancellation of jobs by whoever looks at them, which says of each what came of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from farcall.backends.base import platform_of
from farcall.engine.session import Session
from farcall.model.errors import ServiceError
from farcall.model.jobs import JobDetail
from farcall.operations import json_view
from farcall.operations.catalog import Catalog, Entry

OTHER_USER = "other user"
NODE = "node"


class Companion(Protocol):
    """Who has made jobs for tasks of its own, and is told that they end: Covalent's server."""

    @property
    def address(self) -> str:
        """Its URL."""

    async def tell(
        self, session: Session, entries: Mapping[str, Entry], whole: Collection[str] = ()
    ) -> dict[str, str]:
        """Cancel there what some jobs are to it.

        Args:
            session: The open clients.
            entries: The jobs, by ID; those that are nothing to it may be among them.
            whole: Workflows to be cancelled with all that has not begun yet.

        Returns:
            Of jobs that it could not be told of, why.
        """

    async def going(self, dispatches: Collection[str]) -> list[str]:
        """Return those of some workflows that it has not ended; none where it is not there."""

    async def tell_whole(self, dispatches: Collection[str]) -> dict[str, str]:
        """Cancel workflows as a whole; return why that failed, for those where it did."""


class Cancelled(NamedTuple):
    """What came of the wish to end a job.

    Attributes:
        job_id: The job; or a dispatch of Covalent's of which no job has to be ended.
        outcome: ``ending``; ``ended``, before it could be cancelled; ``unknown`` to Batch;
            ``foreign``, that is not farcall's, and left alone; ``other user``, whose it is and
            who was not named, and left alone; ``node``, which is not ended without its job; or
            ``refused`` by Batch.
        text: A sentence that says so.
    """

    job_id: str
    outcome: str
    text: str


def unfinished(entries: Iterable[Entry]) -> list[Entry]:
    """Return those of some jobs that have not ended."""
    return [entry for entry in entries if not entry.detail.status.is_final]


async def idle(entries: Iterable[Entry], companion: Companion | None) -> list[str]:
    """Return the dispatches of some jobs that go on in Covalent though none of these jobs does.

    Args:
        entries: The jobs, ended ones among them.
        companion: Covalent's server, where there is one. If it does not answer, there are none.
    """
    entries = list(entries)
    busy = {entry.workflow.dispatch for entry in unfinished(entries)}
    maybe = {entry.workflow.dispatch for entry in entries} - busy - {""}
    return [] if companion is None else await companion.going(maybe)


async def cancel_all(
    session: Session, entries: Sequence[Entry], reason: str, companion: Companion | None = None
) -> list[Cancelled]:
    """End the jobs of a workflow or a run, so that no more tasks of it begin.

    Where it is a dispatch of Covalent's, that is cancelled as a whole, with its sublattices and
    whatever else it runs; otherwise this is the same as `cancel`.

    Returns:
        One for each job that has to be ended, and for each dispatch that is `idle`.

    Raises:
        ServiceError: Batch does not say how the jobs are.
    """
    left = unfinished(entries)
    whole = {entry.workflow.dispatch for entry in left}
    job_ids = [entry.detail.job_id for entry in left]
    done = await _cancel(session, job_ids, reason, companion, whole=whole)
    waiting = await idle(entries, companion)
    if companion is not None and waiting:
        untold = await companion.tell_whole(waiting)
        done += [_told(dispatch, untold.get(dispatch, "")) for dispatch in waiting]
    return done


def _told(dispatch: str, why: str) -> Cancelled:
    if why:
        return Cancelled(dispatch, "refused", f"dispatch {dispatch} may go on: {why}")
    return Cancelled(dispatch, "ending", f"dispatch {dispatch} is being cancelled by Covalent")


async def cancel(
    session: Session,
    job_ids: Iterable[str],
    reason: str,
    companion: Companion | None = None,
    user: str | None = None,
) -> list[Cancelled]:
    """End jobs that farcall submitted, whatever their status.

    An array is ended with all its children, a child alone, and an array whose children are all
    named as a whole. No node is ended alone. Batch is asked how they are before and after, a
    request for a hundred jobs.

    Electrons are cancelled in Covalent too, so that its page says so at once. Where that fails
    the text tells, and the server sees by itself, at its next look, that the job was ended.

    Args:
        session: The open clients.
        job_ids: The jobs; the child of an array is ``<parent>:<index>``.
        reason: Kept by Batch, up to 1000 characters.
        companion: Covalent's server, where there is one.
        user: Whose jobs may be ended, as `Entry.user`; by default everybody's.

    Returns:
        One for each job, in their order.

    Raises:
        ServiceError: Batch does not say how the jobs are.
    """
    return await _cancel(session, job_ids, reason, companion, user=user)


async def _cancel(
    session: Session,
    job_ids: Iterable[str],
    reason: str,
    companion: Companion | None,
    *,
    whole: Collection[str] = (),
    user: str | None = None,
) -> list[Cancelled]:
    job_ids = list(dict.fromkeys(job_ids))
    found = await Catalog(session.backend).describe(each for each in job_ids if "#" not in each)
    ours = {
        job_id: entry
        for job_id, entry in found.items()
        if entry is not None and user in (None, entry.user)
    }
    left = {job_id: each for job_id, each in ours.items() if not each.detail.status.is_final}
    wanted = await _in_few(session, named=ours, left=left)
    refused, untold = await asyncio.gather(
        session.terminations.end(wanted, reason),
        _tell(companion, session, left, whole),
    )
    try:
        later = await session.backend.describe(left)
    except ServiceError:  # what was done is known anyway
        later = {}

    def tell(job_id: str) -> Cancelled:
        if "#" in job_id:
            return _whole_alone(job_id)
        entry = ours.get(job_id)
        if entry is None:
            return _left_alone(session, job_id, found)
        error = refused.get(job_id) or refused.get(job_id.partition(":")[0])
        detail = later.get(job_id, entry.detail)
        if job_id not in left or _has_ended_by_itself(detail):
            text = f"{job_id} has ended: {json_view.state(detail)}"
            return Cancelled(job_id, "ended", text)
        if error is not None:
            return Cancelled(job_id, "refused", f"{job_id} may still run: {error}")
        text = f"{job_id} was {entry.detail.status} and is being cancelled"
        if job_id in untold:
            text += f"; Covalent was not notified: {untold[job_id]}"
        return Cancelled(job_id, "ending", text)

    return [tell(job_id) for job_id in job_ids]


async def _tell(
    companion: Companion | None,
    session: Session,
    entries: Mapping[str, Entry],
    whole: Collection[str],
) -> dict[str, str]:
    return {} if companion is None else await companion.tell(session, entries, whole)


_FOREIGN = {"Batch": "aws batch terminate-job", "Kubernetes": "kubectl delete job"}


def _left_alone(session: Session, job_id: str, found: Mapping[str, Entry | None]) -> Cancelled:
    """Say why a job is not to be ended."""
    if job_id not in found:
        return Cancelled(job_id, "unknown", session.backend.unknown(job_id))
    entry = found[job_id]
    if entry is None:
        text = (
            f"{job_id} was not submitted by farcall and is left alone; "
            f"{_FOREIGN[platform_of(session.backend)]} ends it"
        )
        return Cancelled(job_id, "foreign", text)
    user = entry.user
    text = f"{job_id} is a job of {user} and is left alone; --user {user} ends it"
    return Cancelled(job_id, OTHER_USER, text)


def _whole_alone(job_id: str) -> Cancelled:
    """Say that a node is not to be ended."""
    whole = job_id.partition("#")[0]
    text = (
        f"{job_id} is one node, which cannot be cancelled alone; `farcall cancel {whole}` cancels "
        "the job with all nodes"
    )
    return Cancelled(job_id, NODE, text)


def _has_ended_by_itself(detail: JobDetail) -> bool:
    return detail.status.is_final and json_view.state(detail) != json_view.CANCELLED


async def _in_few(
    session: Session, named: Mapping[str, Entry], left: Mapping[str, Entry]
) -> list[str]:
    """Name the jobs that are left, and arrays whose children are all named in place of these."""
    children: defaultdict[str, set[int]] = defaultdict(set)
    for job_id, entry in named.items():
        if entry.detail.is_child:
            children[job_id.partition(":")[0]].add(entry.detail.index)
    maybe = [parent for parent, of in children.items() if len(of) > 1 and max(of) < len(of)]
    parents = await session.backend.describe(maybe)
    complete = {p for p, parent in parents.items() if parent.array_size == len(children[p])}
    few = (p if (p := job_id.partition(":")[0]) in complete else job_id for job_id in left)
    return list(dict.fromkeys(few))
