"""Cancellation of a job's nodes in Covalent, so that its UI shows it at once.

A task's bundle names its dispatch and nodes in a section that is not pickled. The digest in the
job's environment covers this section.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from farcall.covalent.api import Covalent
from farcall.engine.session import Session
from farcall.model.errors import FarcallError
from farcall.model.submission import Submission
from farcall.model.workflows import NODES, NodeOf, node_at
from farcall.operations.catalog import Entry
from farcall.storage import bundles
from farcall_runtime.envelope import EnvelopeError

_UNSAID = "its input data does not name the dispatch's task"


@dataclass
class _Share:
    """Cancellation request for one dispatch.

    Attributes:
        nodes: Numbers of the nodes to cancel; empty for the entire dispatch.
        job_ids: The jobs that run these nodes.
    """

    nodes: set[int] = field(default_factory=set)
    job_ids: set[str] = field(default_factory=set)


class CovalentCompanion:
    """Covalent's server, which is notified if jobs that it submitted are cancelled."""

    def __init__(self, server: Covalent) -> None:
        self._server = server

    @classmethod
    def configured(cls, address: str | None = None) -> CovalentCompanion | None:
        """Return the companion of the server that `Covalent.configured` finds.

        Raises:
            FarcallError: Covalent's configuration cannot be read or names no address.
        """
        server = Covalent.configured(address)
        return None if server is None else cls(server)

    @property
    def address(self) -> str:
        """URL of the server."""
        return self._server.address

    async def notify(
        self, session: Session, entries: Mapping[str, Entry], whole: Collection[str] = ()
    ) -> dict[str, str]:
        """Cancel the nodes of jobs in Covalent.

        Args:
            session: Open clients.
            entries: Jobs by ID; jobs that do not belong to the server are ignored.
            whole: Dispatches to cancel completely, with tasks that have not started.

        Returns:
            Job ID to error, for jobs that could not be notified.
        """
        electrons = {job_id: each for job_id, each in entries.items() if each.workflow.dispatch}
        if not electrons:
            return {}
        shares: dict[str, _Share] = {}
        unnotified: dict[str, str] = {}
        others = {job_id: e for job_id, e in electrons.items() if e.workflow.dispatch not in whole}
        nodes = await _nodes(session, others)
        for job_id, entry in electrons.items():
            if job_id not in others:
                shares.setdefault(entry.workflow.dispatch, _Share()).job_ids.add(job_id)
                continue
            job_nodes = nodes[job_id]
            if isinstance(job_nodes, str):
                unnotified[job_id] = job_nodes
                continue
            for dispatch, number in job_nodes:
                share = shares.setdefault(dispatch, _Share())
                share.job_ids.add(job_id)
                if dispatch not in whole:
                    share.nodes.add(number)
        for why, job_ids in await _cancel(self._server, shares):
            unnotified |= dict.fromkeys(job_ids, why)
        return unnotified

    async def going(self, dispatches: Collection[str]) -> list[str]:
        """Return the unfinished dispatches; empty if the server is unreachable."""
        try:
            unfinished = await asyncio.to_thread(self._server.unfinished, sorted(dispatches))
        except FarcallError:
            return []
        return [dispatch for dispatch, is_going in unfinished.items() if is_going]

    async def notify_whole(self, dispatches: Collection[str]) -> dict[str, str]:
        """Cancel entire dispatches; return the error for each that failed."""
        shares = {dispatch: _Share(job_ids={dispatch}) for dispatch in dispatches}
        refused = await _cancel(self._server, shares)
        return {dispatch: why for why, those in refused for dispatch in those}


async def _cancel(covalent: Covalent, shares: Mapping[str, _Share]) -> list[tuple[str, set[str]]]:
    """Cancel shares of dispatches; return failures with their jobs."""
    try:
        unfinished = await asyncio.to_thread(covalent.unfinished, shares)
    except FarcallError as error:
        return [(str(error), share.job_ids) for share in shares.values()]

    async def cancel(dispatch: str, share: _Share) -> str:
        if dispatch not in unfinished:
            return f"its server at {covalent.address} does not know dispatch {dispatch}"
        try:
            if unfinished[dispatch]:
                await asyncio.to_thread(covalent.cancel, dispatch, sorted(share.nodes))
        except FarcallError as error:
            return str(error)
        return ""

    replies = await asyncio.gather(*(cancel(*each) for each in shares.items()))
    return [
        (why, share.job_ids) for why, share in zip(replies, shares.values(), strict=True) if why
    ]


async def _nodes(session: Session, entries: Mapping[str, Entry]) -> dict[str, list[NodeOf] | str]:
    """Return the nodes that each job runs, or why they are unknown."""
    nodes_by_job: dict[str, list[NodeOf] | str] = {}
    submissions: dict[str, Submission] = {}
    for job_id, entry in entries.items():
        try:
            submissions[job_id] = Submission.whole(entry.detail)
        except FarcallError as error:
            nodes_by_job[job_id] = str(error)
    one_of_each = {each.where: each for each in submissions.values()}
    read = await asyncio.gather(*(_facts(session, each) for each in one_of_each.values()))
    listed = dict(zip(one_of_each, read, strict=True))
    for job_id, submission in submissions.items():
        facts = listed[submission.where]
        if isinstance(facts, str):
            nodes_by_job[job_id] = facts
            continue
        detail = entries[job_id].detail
        numbers = [detail.index] if detail.is_child else range(submission.size)
        nodes = (node_at(facts.get(NODES), number) for number in numbers)
        nodes_by_job[job_id] = [node for node in nodes if node is not None] or _UNSAID
    return nodes_by_job


async def _facts(session: Session, submission: Submission) -> dict[str, Any] | str:
    where = submission.where
    try:
        facts = await bundles.facts_of(session.stores.of(where.bucket), submission)
    except EnvelopeError as error:
        return f"{where.url} does not name the dispatch's task ({error})"
    except FarcallError as error:
        return str(error)
    return f"{where.url} no longer exists" if facts is None else facts
