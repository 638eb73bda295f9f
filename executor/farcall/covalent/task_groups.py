"""Registry of Covalent's task groups on their way through Batch.

Covalent makes a fresh executor for each of its calls, so what is under way hangs on the event
loop. Nothing here needs Covalent.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from farcall.client import recovery
from farcall.covalent.assets import TaskGroup
from farcall.covalent.burst import Gate
from farcall.covalent.group_job import CancelledGroupError, GroupJob, Key, Run
from farcall.engine.session import Session, session_for
from farcall.engine.submitter import Planned
from farcall.model.errors import FarcallError
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.model.workflows import NodeOf, Workflow
from farcall_runtime.contract import Location

_log = logging.getLogger("farcall")

_MOST_REMEMBERED = 20_000
"""Nodes that were cancelled before they came, and nodes that have ended."""

_REASON = "cancelled through Covalent"

_PLANNED = "planned:"
"""How what is noted of a job begins that has no ID yet: its bundle and its number there follow."""

Note: TypeAlias = Callable[[str], Awaitable[None]]


class Desk:
    """What one event loop has under way for Covalent.

    Attributes:
        gate: Makes arrays of tasks that come one after the other.
    """

    def __init__(self) -> None:
        self._runs: dict[Key, Run] = {}
        self._cancelled: dict[Key, None] = {}
        self._ended: dict[Key, None] = {}
        self._looking: dict[str, asyncio.Task[Submission | None]] = {}
        self.gate = Gate()

    def find(self, key: Key) -> Run | None:
        """Return what a node is part of, or None where it is not under way here."""
        return self._runs.get(key)

    async def submit(
        self,
        settings: Settings,
        keys: Sequence[Key],
        group: TaskGroup,
        note: Note | None = None,
        workflow: Workflow | None = None,
    ) -> Run:
        """Submit a task group, together with others that come within ``linger_s``.

        Args:
            settings: The options.
            keys: The group's nodes.
            group: What they do.
            note: Stores a text for `find_job`, before the job is submitted.
            workflow: What Covalent says they belong to; None where its server has no part in it.
                The option ``workflow`` comes before the lattice's name.

        Raises:
            CancelledGroupError: It was cancelled meanwhile; no job of it runs.
            IntegrityError: An asset is not what Covalent writes.
            SettingsError: Something the options name does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        run = Run(settings, keys)
        if any(key in self._cancelled for key in keys):
            raise CancelledGroupError
        for key in keys:
            self._runs[key] = run
        run.submitting = asyncio.ensure_future(self._submit(run, group, note, workflow))
        try:
            run.job = await run.submitting
        except BaseException as error:
            self.forget(keys)
            run.submitting.cancel()  # where it is this wait that was cancelled
            if run.cancelled and isinstance(error, asyncio.CancelledError):
                raise CancelledGroupError from None
            raise
        return run

    def adopt(self, settings: Settings, key: Key, job_id: str) -> Run | None:
        """Join the job of a node that an earlier process submitted.

        Returns:
            The run; None if the node is under way or has ended here, so that nobody is to be told
            of its end twice.
        """
        if key in self._runs or key in self._ended:
            return None
        for run in self._runs.values():
            if run.job is not None and run.job.id == job_id:
                run.keys = [*run.keys, key]
                break
        else:
            job = GroupJob(job_id, settings, lambda: session_for(settings))
            run = Run(settings, [key], job)
        self._runs[key] = run
        return run

    def forget(self, keys: Sequence[Key], *, ended: bool = True) -> None:
        """Let go of nodes.

        Args:
            keys: The nodes.
            ended: Whether Covalent has been told of their end.
        """
        for key in keys:
            self._runs.pop(key, None)
            if ended:
                _remember(self._ended, key)

    async def cancel(self, settings: Settings, key: Key, job_id: str | None) -> bool:
        """End what a node is part of, whatever state it is in.

        Args:
            settings: The options, for a job of an earlier process.
            key: The node.
            job_id: What Covalent knows of the job, for `find_job`.

        Returns:
            Whether something is being ended, or will not be begun.
        """
        run = self._runs.get(key)
        if run is None and key in self._ended:
            return False
        if run is not None:
            again, run.cancelled = run.cancelled, True
            if run.submitting is not None and not run.submitting.done():
                if not again:  # which would stop the request that ends a job just accepted
                    run.submitting.cancel()
                return True
            job = run.job or _accepted(run.submitting)
            if job is None:
                return False
            job_id = job.id
        try:
            job_id = await self.find_job(settings, job_id)
            if job_id is None:
                _remember(self._cancelled, key)
                return True
            session = await session_for(settings)
            await session.terminations.soon(job_id, _REASON)
        except FarcallError as error:
            _log.warning("job %s may still run: %s", job_id, error)
            return False
        return True

    async def note_cancelled(self, settings: Settings, job_id: str) -> None:
        """Note that an earlier process had a job ended: Batch may have lost that.

        Raises:
            ServiceError: There are no credentials.
        """
        session = await session_for(settings)
        session.backend.note_ended([job_id], _REASON)

    async def find_job(self, settings: Settings, handle: str | None) -> str | None:
        """Return the ID of a job, given what was stored of it.

        Args:
            settings: The options.
            handle: The job's ID itself; or what `submit` had noted, if the server was ended before
                there was an ID; or None.

        Returns:
            The ID; None if there is no job.

        Raises:
            FarcallError: That cannot be told.
        """
        if handle is None or not handle.startswith(_PLANNED):
            return handle
        url, _, index = handle.removeprefix(_PLANNED).rpartition("#")
        looking = self._looking.get(url)  # for all tasks of an array
        if looking is None or (looking.done() and (looking.cancelled() or looking.exception())):
            looking = self._looking[url] = asyncio.ensure_future(_find(settings, url))
        submission = await asyncio.shield(looking)
        return None if submission is None else submission.id_of(int(index))

    async def _submit(
        self, run: Run, group: TaskGroup, note: Note | None, workflow: Workflow | None
    ) -> GroupJob:
        session = await session_for(run.settings)
        with session.at_work():
            return await self._submit_in(session, run, group, note, workflow)

    async def _submit_in(
        self,
        session: Session,
        run: Run,
        group: TaskGroup,
        note: Note | None,
        workflow: Workflow | None,
    ) -> GroupJob:
        settings = run.settings
        submitter = await session.submitter(settings)
        function, arguments = await session.in_thread(group.pack)
        await self.gate.passing()
        planned: Planned | None = None
        if note is not None:
            store = note

            async def planned(where: Location, index: int) -> None:
                await store(f"{_PLANNED}{where.url}#{index}")

        node = None
        if workflow is not None:
            workflow = workflow._replace(name=settings.workflow or workflow.name)
            node = NodeOf(*run.keys[-1])
        submission, index = await submitter.submit(
            settings, group.name, function, arguments, planned, workflow, node
        )
        session.note_submission(submission)
        job = GroupJob(
            submission.id_of(index),
            settings,
            lambda: session_for(settings),
            (submission, index),
            lambda _: session.terminations.note_end(submission, index),
        )
        job.watch(session, submission, index)
        return job


_desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = weakref.WeakKeyDictionary()


async def _find(settings: Settings, url: str) -> Submission | None:
    """Look for the job of a bundle."""
    return await recovery.find(await session_for(settings), settings, Location.parse(url))


def desk() -> Desk:
    """Return the running event loop's desk."""
    loop = asyncio.get_running_loop()
    if loop not in _desks:
        _desks[loop] = Desk()
    return _desks[loop]


def _accepted(submitting: asyncio.Task[GroupJob] | None) -> GroupJob | None:
    """Return the job that was accepted a moment ago, so that nobody has been told yet."""
    if submitting is None or submitting.cancelled() or submitting.exception() is not None:
        return None
    return submitting.result()


def _remember(keys: dict[Key, None], key: Key) -> None:
    """Keep a key, and let the oldest go where there are too many."""
    keys[key] = None
    if len(keys) > _MOST_REMEMBERED:
        del keys[next(iter(keys))]
