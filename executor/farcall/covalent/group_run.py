"""Run of a Covalent task group, from before its submission to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from farcall.config.settings import Settings
from farcall.covalent import node_results
from farcall.covalent.assets import TaskGroup
from farcall.covalent.node_results import NodeEnd
from farcall.engine.delivered import Delivered, Output, Wanted
from farcall.engine.run import TaskRun
from farcall.model.errors import JobCancelledError
from farcall.model.workflows import Workflow

Key = tuple[str, int]
"""Dispatch ID and node number."""


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
        node_ends = node_results.ends(
            delivered.results[0], numbers, delivered.stdout, delivered.stderr
        )
        if self.handle is not None and self.handle.is_cached:  # for the numbers at that time
            pairs = zip(node_ends, numbers, strict=True)
            node_ends = [replace(end, node=number) for end, number in pairs]
        self._numbers = {end.node for end in node_ends}
        is_needed = self.settings.keep_artifacts or any(end.value is None for end in node_ends)
        self._deletable = [] if is_needed else delivered.all_deletable
        return {end.node: end for end in node_ends}

    async def take(self, node: int) -> None:
        """Record that Covalent has a node's result.

        After the last node, the objects are deleted if all nodes succeeded.
        """
        self._taken.add(node)
        if self._taken >= self._numbers and self.handle is not None:
            await self.handle.discard_keys(self._deletable)

    async def _delivered(self) -> Delivered:
        if self.handle is None:
            raise CancelledGroupError
        return await self.handle.delivered_patiently(self.on_trouble)


def wanted(settings: Settings) -> Wanted:
    """Return the parts of a task group's outcome to fetch: all, still pickled."""
    return Wanted(
        output=Output.WHOLE, read=node_results.read, folder_for=lambda _: settings.cache_dir
    )
