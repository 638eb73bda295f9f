"""Job of a task group of Covalent's: one that is to be submitted, runs, or has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from farcall.aws import refusals
from farcall.client.job import Job
from farcall.covalent import node_results
from farcall.covalent.node_results import NodeEnd
from farcall.engine.delivered import Delivered
from farcall.engine.fetcher import Output
from farcall.engine.session import Session, session_for
from farcall.engine.watch import Arrival, Patience, UnseenError
from farcall.model.errors import JobCancelledError, ServiceError
from farcall.model.settings import Settings
from farcall.model.submission import Submission

_log = logging.getLogger("farcall")

Key = tuple[str, int]
"""Dispatch and number of a node."""

_AGAIN_S = 5.0
"""After so long what could not be fetched is fetched again."""

_kept: set[asyncio.Future[Any]] = set()


class CancelledGroupError(Exception):
    """The task group was cancelled before it became a job."""


class GroupJob(Job[Any]):
    """A job whose answer stays bytes, and whose objects stay until Covalent has them."""

    async def _fetch(
        self,
        session: Session,
        submission: Submission,
        index: int,
        arrived: Arrival,
        output: Output,  # Covalent shows it, so all of it is fetched
    ) -> Delivered:
        return await session.fetch(
            submission, index, arrived, node_results.read, self._settings.cache_dir
        )

    async def delivered(self) -> Delivered:
        """Wait for the end, and return what came of the group."""
        return await self._delivered()

    async def discard(self, *, keep: bool) -> None:
        """Have the job's objects deleted, or let go of them where they are to be kept."""
        session, submission, index = await self._find()
        delivered = await self._delivered()
        spent = [] if keep else delivered.all_spent
        session.discard(self._settings, submission, index, spent)


class Run:
    """One task group that is to become a job, is one, or has ended.

    Attributes:
        keys: Its nodes.
        job: Its job, once Batch has accepted it.
        cancelled: Whether somebody cancelled it through Covalent.
        tell: Takes what keeps its end from being known, while it is waited for, and an empty text
            when nothing does any more.
    """

    def __init__(
        self, settings: Settings, keys: Sequence[Key], job: GroupJob | None = None
    ) -> None:
        self.keys = keys
        self.job = job
        self.cancelled = False
        self.tell: Callable[[str], None] = lambda _: None
        self.settings = settings
        self._numbers: set[int] = set()
        self._taken: set[int] = set()
        self._succeeded = False
        self.submitting: asyncio.Task[GroupJob] | None = None

    @property
    def job_id(self) -> str:
        """ID of its job, once Batch has accepted it."""
        if self.job is None:
            raise CancelledGroupError
        return self.job.id

    async def was_cancelled(self) -> bool:
        """Wait for the end, and tell whether the job was terminated, here or elsewhere."""
        result = (await self._delivered()).results[0]
        return isinstance(result.error, JobCancelledError)

    async def ends(self) -> dict[int, NodeEnd]:
        """Wait for the end, and return how each node ended."""
        delivered = await self._delivered()
        numbers = [number for _, number in self.keys]
        found = node_results.ends(
            delivered.results[0], numbers, delivered.stdout, delivered.stderr
        )
        self._numbers = {end.node for end in found}
        self._succeeded = all(end.value is not None for end in found)
        return {end.node: end for end in found}

    def take(self, node: int) -> None:
        """Note that Covalent has been told of a node's end.

        After the last one the objects are deleted, if all went well.
        """
        self._taken.add(node)
        if self._taken >= self._numbers and self.job is not None:
            _keep(asyncio.ensure_future(self.job.discard(keep=not self._succeeded)))

    async def _delivered(self) -> Delivered:
        if self.job is None:
            raise CancelledGroupError
        trouble = (await session_for(self.settings)).tracker.trouble
        patience = Patience(trouble)
        with trouble.told_to(self.tell):
            try:
                while True:
                    try:
                        return await self.job.delivered()
                    except ServiceError as error:  # nobody would ask a second time
                        passes = refusals.may_pass(error) or refusals.is_of_credentials(error)
                        if isinstance(error, UnseenError):
                            raise
                        if not (passes and patience.bear(error)):
                            kept = f"what job {self.job.id} has stored is kept"
                            raise refusals.like(error, f"{error}; {kept}") from error
                    await asyncio.sleep(_AGAIN_S)
            finally:
                patience.end()


def _keep(future: asyncio.Future[Any]) -> None:
    """Hold on to a task that nobody waits for: the event loop alone would let it be collected."""
    _kept.add(future)
    future.add_done_callback(_forget_future)


def _forget_future(future: asyncio.Future[Any]) -> None:
    _kept.discard(future)
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("delivered objects may stay in the bucket: %s", error)
