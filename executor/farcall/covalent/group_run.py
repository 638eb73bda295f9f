"""Run of a Covalent task group, from before its submission to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from farcall.aws import error_translation
from farcall.config.settings import Settings
from farcall.covalent import node_results
from farcall.covalent.assets import TaskGroup
from farcall.covalent.node_results import NodeEnd
from farcall.engine.fetcher import Delivered, Output
from farcall.engine.run import TaskRun, Wanted
from farcall.engine.tracked_job import RetryBudget, UnseenError
from farcall.model.errors import FarcallError, JobCancelledError, ServiceError
from farcall.model.workflows import Workflow

_log = logging.getLogger("farcall")

Key = tuple[str, int]
"""Dispatch ID and node number."""

_AGAIN_S = 5.0
"""Interval in seconds before a failed fetch is repeated."""


class CancelledGroupError(Exception):
    """The task group was cancelled before its job was submitted."""


class GroupRun:
    """One task group: not yet submitted, running, or finished.

    Results stay bytes. The group's objects stay in the bucket until Covalent has the results.

    Attributes:
        settings: The options.
        keys: The group's nodes.
        handle: The group's job, once Batch has accepted it.
        group: The group's functions, until it is submitted.
        workflow: The lattice that the nodes belong to; None if Covalent's server is not involved.
        submitting: The submission, once it has begun.
        cancelled: Whether the group was cancelled through Covalent.
        on_trouble: Called with why the status is unknown, and with "" when it is known again.
    """

    def __init__(
        self, settings: Settings, keys: Sequence[Key], handle: TaskRun | None = None
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.handle = handle
        self.group: TaskGroup | None = None
        self.workflow: Workflow | None = None
        self.submitting: asyncio.Task[TaskRun] | None = None
        self.cancelled = False
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._numbers: set[int] = set()
        self._taken: set[int] = set()
        self._deletable: list[str] = []

    @property
    def accepted(self) -> TaskRun | None:
        """The group's job, even if its acceptance was not reported yet."""
        done = self.submitting
        if self.handle is not None or done is None or done.cancelled() or done.exception():
            return self.handle
        return done.result()

    def take_back(self) -> bool:
        """Cancel the group; return whether that is enough because there is no job yet."""
        again, self.cancelled = self.cancelled, True
        if self.group is not None:
            return True
        if self.submitting is None or self.submitting.done():
            return False
        if not again:  # a second cancel would stop the request that terminates the job
            self.submitting.cancel()
        return True

    async def was_cancelled(self) -> bool:
        """Wait for the end; return whether the job was terminated by any client."""
        result = (await self._delivered()).results[0]
        return isinstance(result.error, JobCancelledError)

    async def ends(self) -> dict[int, NodeEnd]:
        """Wait for the end; return the result of each node."""
        delivered = await self._delivered()
        numbers = [number for _, number in self.keys]
        found = node_results.ends(
            delivered.results[0], numbers, delivered.stdout, delivered.stderr
        )
        self._numbers = {end.node for end in found}
        succeeded = all(end.value is not None for end in found)
        self._deletable = delivered.all_deletable if succeeded else []
        return {end.node: end for end in found}

    async def take(self, node: int) -> None:
        """Record that Covalent has a node's result.

        After the last node, the objects are deleted if all nodes succeeded.
        """
        self._taken.add(node)
        if self._taken >= self._numbers and self.handle is not None:
            try:
                session, submission, index = await self.handle.find()
            except FarcallError as error:
                _log.warning("delivered objects may remain in the bucket: %s", error)
            else:
                session.cleaner.discard(self.settings, submission, index, self._deletable)

    async def _delivered(self) -> Delivered:
        if self.handle is None:
            raise CancelledGroupError
        session = await self.handle.session()
        trouble = session.tracker.trouble
        budget = RetryBudget(trouble, session.timing)
        with trouble.notifying(self.on_trouble):
            try:
                while True:
                    try:
                        return await self.handle.delivered()
                    except ServiceError as error:  # Covalent does not request the result again
                        passes = error_translation.may_pass(error)
                        passes = passes or error_translation.is_of_credentials(error)
                        if isinstance(error, UnseenError):
                            raise
                        if not (passes and budget.record_failure(error)):
                            kept = f"the stored results of job {self.handle.id} are kept"
                            raise error_translation.with_text(error, f"{error}; {kept}") from error
                    await asyncio.sleep(_AGAIN_S)
            finally:
                budget.end()


def wanted(settings: Settings) -> Wanted:
    """Return the parts of a task group's outcome to fetch: all, still pickled."""
    return Wanted(
        output=Output.WHOLE, read=node_results.read, folder_for=lambda _: settings.cache_dir
    )
