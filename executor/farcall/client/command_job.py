"""Command job: status, result and nodes of a command in an image."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from farcall.client.job import SubmittedJob
from farcall.engine import failures
from farcall.engine.run import CommandRun
from farcall.engine.session import Session
from farcall.engine.tracked_job import Ended
from farcall.model.commands import Nodes
from farcall.model.errors import JobLostError, SettingsError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.output import LogLine


@dataclass(frozen=True)
class CommandResult:
    """Result of a successful command job.

    Attributes:
        job_id: The job's ID.
        exit_codes: Exit code of each node's command in the last attempt; None if a node was
            stopped early or Batch does not report it. The main node's is 0.
        attempts: Number of attempts.
        started_at: Start time of the last attempt.
        stopped_at: End time of the last attempt.
    """

    job_id: str
    exit_codes: tuple[int | None, ...]
    attempts: int
    started_at: datetime | None
    stopped_at: datetime | None


class CommandJob(SubmittedJob[CommandRun]):
    """Command job: one AWS Batch job, on one node or several.

    Created by `BatchExecutor.command` and `BatchExecutor.attach_command`. Only one event loop at a
    time can wait for it.

    Attributes:
        id: The job's ID.
    """

    async def wait(self) -> CommandResult:
        """Wait until the job has finished.

        Cancelling the wait leaves the job running; `cancel` terminates the job.

        Returns:
            The result, if the main node's command returned 0.

        Raises:
            JobError: The job failed; the class names the reason: `farcall.CommandError` if the
                command itself failed. ``exit_code`` is the main node's, ``stdout`` the last 200
                lines of its log.
            UnknownError: The job is not a farcall command job.
            ServiceError: AWS refused a call.
        """
        arrived = await self._run.wait()
        session = await self._run.session()
        detail = arrived.detail if isinstance(arrived, Ended) else None
        if detail is None:
            raise JobLostError(session.backend.unknown(self.id), job_id=self.id)
        if detail.status is not JobStatus.SUCCEEDED:
            raise await failures.of_command(session.backend, session.timing, detail)
        codes = {node.node_index or 0: node.exit_code for node in await _nodes(session, detail)}
        return CommandResult(
            self.id,
            tuple(codes.get(index) for index in range(max(1, detail.nodes))),
            detail.attempts,
            detail.started_at,
            detail.stopped_at,
        )

    async def nodes(self) -> list[JobDetail]:
        """Return Batch's description of each node, the main node first.

        For a job on one node without an instance type, that is the job itself. Nodes that Batch
        does not know yet are missing; `JobDetail.node_index` identifies a node.

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
        """Yield the lines that nodes have written, sorted by time across nodes.

        The lines come from the platform's own log, which merges both streams and shows a line some
        seconds after it was written. All followers share one poll.

        Args:
            node: Index of a node, from 0; by default all.
            follow: Continue until the nodes have finished, including their last lines.
            tail: Maximum number of existing lines, the latest ones.
            since: Earliest time of a line. Without a time zone it is local time.

        Raises:
            ValueError: ``tail`` is negative.
            UnknownError: The node does not exist; the error names the existing ones.
            JobLostError: Batch does not know the job.
            ServiceError: AWS refused a call.
        """
        session = await self._run.session()
        nodes = None if node is None else [node]
        batches = session.logs.lines(self.id, nodes, follow=follow, tail=tail, since=since)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for line in batch:
                    yield line

    async def delete(self) -> None:
        """Terminate an unfinished job, and deregister its own job definition, if any.

        A job has its own definition if its command or variables are too long for SubmitJob. Shared
        definitions are kept; Batch itself deletes jobs some days after their end.

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
    details = await session.backend.describe(ids)
    return [details[node_id] for node_id in ids if node_id in details]


def group_nodes(
    groups: Sequence[Nodes] | None, alone: Mapping[str, Any], count: int
) -> tuple[Nodes, ...]:
    """Return a job's node groups from the user's arguments.

    Args:
        groups: The groups, or None for a single one.
        alone: Arguments of a single group, by the names of `Nodes`; ``nodes`` for the number of
            nodes.
        count: Default number of nodes.

    Raises:
        SettingsError: Both are given, or neither.
    """
    given = {name: value for name, value in alone.items() if value or _is_zero(value)}
    if groups and given:
        raise SettingsError(
            f"{', '.join(given)} cannot be combined with groups: a command job has either an "
            "image and a command, or groups of nodes, each with its own: "
            "groups=[Nodes(1, image, command), ...]",
            option=next(iter(given)),
        )
    if not groups and not alone.get("image"):
        raise SettingsError(
            "a command job needs an image or groups: pass an image and a command, such as "
            'command("alpine:3", ["echo", "hi"]), or groups=[Nodes(1, image, command), ...]',
            option="image",
        )
    if not groups:
        given["count"] = given.pop("nodes", count)
        return (Nodes(**given),)
    for group in groups:
        if not isinstance(group, Nodes):
            raise SettingsError(
                f"groups contains a {type(group).__name__}; use farcall.Nodes",
                option="groups",
            )
    return tuple(groups)


def _is_zero(value: object) -> bool:
    """Return whether an invalid number was given, as opposed to none."""
    return value == 0 and value is not False


def name_of(groups: Sequence[Nodes]) -> str:
    """Return the default name of a job: the main node's image."""
    return str(groups[0].image).rpartition("/")[2].partition("@")[0].partition(":")[0]
