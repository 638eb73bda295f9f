"""Command job: an image and a command that were submitted, their status, end and nodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from farcall.client.job import SubmittedJob
from farcall.engine import fetcher
from farcall.engine.run import CommandRun
from farcall.engine.session import Session
from farcall.engine.tracked_job import Ended
from farcall.model.commands import Nodes
from farcall.model.errors import JobLostError, SettingsError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.output import LogLine


@dataclass(frozen=True)
class CommandResult:
    """What came of a command job that ended well.

    Attributes:
        job_id: The job's ID.
        exit_codes: By node, what its command returned in the last attempt; None where a node was
            stopped before, or Batch does not tell. The main node's is 0.
        attempts: How many attempts there were.
        started_at: When the last attempt began to run.
        stopped_at: When it ended.
    """

    job_id: str
    exit_codes: tuple[int | None, ...]
    attempts: int
    started_at: datetime | None
    stopped_at: datetime | None


class CommandJob(SubmittedJob[CommandRun]):
    """A command job: one AWS Batch job, on one node or several.

    Made by `BatchExecutor.command` and `BatchExecutor.attach_command`. One event loop at a time
    waits by it.

    Args:
        run: The job.

    Attributes:
        id: The job's ID.
    """

    async def wait(self) -> CommandResult:
        """Wait for the job's end.

        Cancelling the wait leaves the job running; `cancel` ends the job.

        Returns:
            What came of it, where the main node's command returned 0.

        Raises:
            JobError: The job ended otherwise; its class says how: `farcall.CommandError` where
                the command itself failed. ``exit_code`` is the main node's, ``stdout`` the last
                200 lines of its log.
            UnknownError: It is no command job of farcall's.
            ServiceError: AWS refused a call.
        """
        arrived = await self._run.wait()
        session = await self._run.session()
        detail = arrived.detail if isinstance(arrived, Ended) else None
        if detail is None:
            raise JobLostError(session.backend.unknown(self.id), job_id=self.id)
        if detail.status is not JobStatus.SUCCEEDED:
            raise await fetcher.of_command(session.backend, session.timing, detail)
        codes = {node.node_index or 0: node.exit_code for node in await _nodes(session, detail)}
        return CommandResult(
            self.id,
            tuple(codes.get(index) for index in range(max(1, detail.nodes))),
            detail.attempts,
            detail.started_at,
            detail.stopped_at,
        )

    async def nodes(self) -> list[JobDetail]:
        """Ask Batch for everything it says of each node, the main node first.

        Of a job on one node, without an instance type, that is the job itself. Nodes that Batch
        does not know yet are missing; `JobDetail.node_index` tells which one is which.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        session = await self._run.session()
        return await _nodes(session, await session.describe(self.id))

    async def logs(
        self,
        node: int | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the lines that nodes have written: of each in its order, of several by time.

        They are those of the platform's own log, which has both streams in one, and shows a line
        some seconds after it was written. However many follow, one look at it serves them all.

        Args:
            node: Index of a node, from 0; by default all.
            follow: Go on until the nodes have ended; their last lines are among them.
            tail: Only so many lines of what there is up to now, the last ones.
            since: Only what was written at this moment or later. Without a time zone it is local
                time.

        Raises:
            ValueError: ``tail`` is negative.
            UnknownError: There is no such node; it names those there are.
            JobLostError: Batch does not know the job.
            ServiceError: AWS refused a call.
        """
        session = await self._run.session()
        nodes = None if node is None else [node]
        batches = session.node_logs.batches(self.id, nodes, follow=follow, tail=tail, since=since)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for line in batch:
                    yield line

    async def delete(self) -> None:
        """End the job if it has not ended, and deregister a definition that is its own.

        It has one where its command or its variables are too long for SubmitJob. Other definitions
        serve equal jobs, and stay; Batch itself forgets jobs some days after their end.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused a call.
        """
        session = await self._run.session()
        detail = await session.describe(self.id)
        if not detail.status.is_final:
            await self.cancel("deleted by its owner")
        await session.backend.forget(detail)


async def _nodes(session: Session, detail: JobDetail) -> list[JobDetail]:
    if not detail.groups:
        return [detail]
    ids = [detail.node_id(index) for index in range(detail.nodes)]
    found = await session.backend.describe(ids)
    return [found[node_id] for node_id in ids if node_id in found]


def group_nodes(
    groups: Sequence[Nodes] | None, alone: Mapping[str, Any], count: int
) -> tuple[Nodes, ...]:
    """Return what the nodes of a job run, of what a user says of it.

    Args:
        groups: The groups, or None for a single one.
        alone: What is said of a single one, by the names of `Nodes`; ``nodes`` for their number.
        count: That number where it is not said.

    Raises:
        SettingsError: Both are given, or neither.
    """
    given = {name: value for name, value in alone.items() if value or _is_zero(value)}
    if groups and given:
        raise SettingsError(
            f"{', '.join(given)} beside groups: a command job has either an image and a command, "
            "or groups of nodes, each with its own: groups=[Nodes(1, image, command), ...]",
            option=next(iter(given)),
        )
    if not groups and not alone.get("image"):
        raise SettingsError(
            "there is neither an image nor groups: name an image and a command, such as "
            'command("alpine:3", ["echo", "hi"]), or groups=[Nodes(1, image, command), ...]',
            option="image",
        )
    if not groups:
        given["count"] = given.pop("nodes", count)
        return (Nodes(**given),)
    for group in groups:
        if not isinstance(group, Nodes):
            raise SettingsError(
                f"groups has a {type(group).__name__} in it; use farcall.Nodes",
                option="groups",
            )
    return tuple(groups)


def _is_zero(value: object) -> bool:
    """Return whether a number was given that is not allowed, as opposed to none."""
    return value == 0 and value is not False


def name_of(groups: Sequence[Nodes]) -> str:
    """Return what a job is called that its user gave no name: as the main node's image is."""
    return str(groups[0].image).rpartition("/")[2].partition("@")[0].partition(":")[0]
